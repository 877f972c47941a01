#ifndef DISCO_FUSE_RUNTIME_NCCL_COMMUNICATOR_H_
#define DISCO_FUSE_RUNTIME_NCCL_COMMUNICATOR_H_

#include <chrono>
#include <cstdint>
#include <vector>

#include "runtime/nccl_api.h"

namespace disco_fuse::runtime {

/*! \brief The elements of one contiguous tensor in the memory of a GPU. */
struct DeviceSpan {
  void* data;
  int64_t count;
  NcclType type;

  bool operator==(const DeviceSpan& other) const {
    return data == other.data && count == other.count && type == other.type;
  }
};

/*! \brief Where a rank of an NCCL job runs. */
struct NcclPlace {
  int rank;
  int world_size;
  int device;                        // ordinal of the GPU, as CUDA counts in this process
  std::chrono::nanoseconds timeout;  // of joining, and of a step that does not end
};

/*!
 * \brief The ranks of one job over NCCL, with a CUDA stream of its own on which all AllReduces run.
 *
 * Calls return at once; what they order happens on the stream. All ranks call the same AllReduces
 * in the same order.
 */
class NcclCommunicator {
 public:
  /*!
   * \brief Joins the job; every rank does, with rank 0's `id`.
   * \throws std::runtime_error if CUDA or NCCL fails, or not all ranks came within the timeout.
   */
  NcclCommunicator(const CudaApi& cuda, const NcclApi& nccl, const NcclUniqueId& id,
                   const NcclPlace& place);
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int rank() const { return place_.rank; }
  int world_size() const { return place_.world_size; }
  std::chrono::nanoseconds timeout() const { return place_.timeout; }
  const CudaApi& cuda() const { return cuda_; }
  CudaStream stream() const { return stream_; }

  /*! \brief Makes the GPU's context that of the calling thread. */
  void Enter() const;

  /*!
   * \brief Enqueues the reduction of all `tensors`, in place, as one group: NCCL launches it as
   * one kernel, so a bucket of many tensors needs no copy into a buffer.
   */
  void AllReduce(const std::vector<DeviceSpan>& tensors, NcclOperation operation);

  /*! \brief What has gone wrong since, in NCCL's words; nullptr if nothing has. */
  const char* AsyncError() const;

  /*! \brief Gives up: reductions under way end with rubbish, and nothing more can be enqueued. */
  void Abort();

 private:
  void Join(const NcclUniqueId& id);
  void RequireOpen() const;

  CudaApi cuda_;
  NcclApi nccl_;
  NcclPlace place_;
  int device_ = 0;
  CudaContext context_ = nullptr;
  CudaStream stream_ = nullptr;
  NcclHandle handle_ = nullptr;
};

}  // namespace disco_fuse::runtime

#endif  // DISCO_FUSE_RUNTIME_NCCL_COMMUNICATOR_H_
