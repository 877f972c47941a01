#ifndef DISCO_FUSE_RUNTIME_DEVICE_SESSION_H_
#define DISCO_FUSE_RUNTIME_DEVICE_SESSION_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/communication_thread.h"
#include "runtime/device_log.h"
#include "runtime/nccl_communicator.h"

namespace disco_fuse::runtime {

/*!
 * \brief The buckets of one training step on a GPU and the record of when they travelled.
 *
 *   TVM's stream   kernels | mark | kernels | mark | kernels | wait A | wait B | update
 *                             \               \                 ^        ^
 *   NCCL's stream              --- bucket A ---|-- bucket B -- (mark)   (mark)
 *
 * The host only enqueues: a bucket waits for its gradients, and the update for its bucket, on the
 * GPU. The host waits once, at the end of the step, where a rank that hangs is noticed.
 *
 * All functions belong to one thread. User errors are std::invalid_argument, failed communication
 * std::runtime_error.
 */
class DeviceSession {
 public:
  DeviceSession(std::shared_ptr<NcclCommunicator> communicator, int64_t max_events);
  /*! \brief Gives the communicator up if a bucket is still in flight: its tensors may end here. */
  ~DeviceSession();
  DeviceSession(const DeviceSession&) = delete;
  DeviceSession& operator=(const DeviceSession&) = delete;

  /*! \brief Forgets the last step; time counts from what `stream` does next. */
  void BeginStep(CudaStream stream);

  /*!
   * \brief Returns when the GPU has done all of the step.
   * \throws std::runtime_error, and gives the communicator up, if NCCL fails or the step does not
   * end within the timeout: the first bucket that has not arrived is named.
   */
  void FinishStep(CudaStream stream, CheckInterrupt check_interrupt);

  /*! \brief Enqueues the reduction of `tensors` behind what `stream` has been given so far. */
  void Start(int64_t bucket, const std::vector<DeviceSpan>& tensors, NcclOperation operation,
             CudaStream stream);

  /*! \brief Whatever `stream` is given from here on comes after the reduction of `bucket`. */
  void Wait(int64_t bucket, const std::vector<DeviceSpan>& tensors, CudaStream stream);

  /*! \brief Brackets a kernel. */
  void BeginKernel(CudaStream stream);
  void FinishKernel(const char* name, CudaStream stream);

  /*! \brief Events of the last finished step, in order of their starts. */
  std::vector<Event> Events() const;
  int64_t num_dropped() const { return log_.num_dropped(); }
  const std::vector<std::string>& kernel_names() const { return kernel_names_; }

 private:
  struct Bucket {
    std::vector<DeviceSpan> tensors;
    CudaEvent start = nullptr;
    CudaEvent finish = nullptr;
    bool in_flight = false;
  };

  void RequireNothingInFlight(const char* action) const;
  std::string DescribePending() const;

  std::shared_ptr<NcclCommunicator> communicator_;
  std::map<int64_t, Bucket> buckets_;
  std::vector<int64_t> order_;  // of this step's starts
  DeviceLog log_;
  CudaEvent begin_ = nullptr;
  CudaEvent kernel_start_ = nullptr;
  std::vector<Event> events_;
  bool finished_ = false;
  std::unordered_map<std::string, int64_t> kernel_ids_;
  std::vector<std::string> kernel_names_;
};

}  // namespace disco_fuse::runtime

#endif  // DISCO_FUSE_RUNTIME_DEVICE_SESSION_H_
