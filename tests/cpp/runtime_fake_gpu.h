#ifndef DISCO_FUSE_TESTS_CPP_RUNTIME_FAKE_GPU_H_
#define DISCO_FUSE_TESTS_CPP_RUNTIME_FAKE_GPU_H_

#include <functional>

#include "runtime/nccl_communicator.h"

namespace disco_fuse::runtime::testing {

/*! \brief Which stream goes first where both could: every legal order lies between the two. */
enum class Prefer { kCompute, kCommunication };

/*!
 * \brief One GPU and NCCL in host memory: streams are queues that run only when they are polled.
 *
 * An AllReduce over n ranks acts as if every other rank had sent zeros. There is one at a time.
 */
class FakeGpu {
 public:
  explicit FakeGpu(Prefer prefer);
  ~FakeGpu();

  static CudaApi Cuda();
  static NcclApi Nccl();

  /*! \brief TVM's stream. */
  static CudaStream compute_stream();

  /*! \brief Enqueues a kernel of that many fake milliseconds. */
  void Launch(double ms, std::function<void()> kernel);

  /*! \brief What goes wrong from here on. */
  void HangReductions();
  void FailReductions();
  void HangJoining();
  void BreakAsync();

  int num_groups() const;
  int num_live_events() const;
  bool is_open() const;

  struct State;
};

}  // namespace disco_fuse::runtime::testing

#endif  // DISCO_FUSE_TESTS_CPP_RUNTIME_FAKE_GPU_H_
