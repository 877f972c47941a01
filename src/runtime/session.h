#ifndef DISCO_FUSE_RUNTIME_SESSION_H_
#define DISCO_FUSE_RUNTIME_SESSION_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/communication_thread.h"
#include "runtime/recorder.h"

namespace disco_fuse::runtime {

/*!
 * \brief What every gradient's place in a bucket is a multiple of, in bytes: TVM's kernels rely on
 * it (its kAllocAlignment). Python lays out buckets by the same rule (bucket_memory.py).
 */
constexpr int64_t kGradientAlignment = 64;

/*! \brief The elements of one contiguous tensor in host memory. */
struct TensorSpan {
  void* data;
  int64_t count;
  DataType dtype;

  bool operator==(const TensorSpan& other) const {
    return data == other.data && count == other.count && dtype == other.dtype;
  }
};

/*!
 * \brief The buckets of one training step and the record of when they travelled.
 *
 *   main thread    kernels | Start 0 | kernels | Start 1 | kernels | Wait 0 | Wait 1 | update
 *   communication            ----- bucket 0 -----  ----- bucket 1 -----
 *
 * All functions belong to one thread, the one that runs the step. User errors are
 * std::invalid_argument, failed communication std::runtime_error.
 */
class Session {
 public:
  Session(std::shared_ptr<CommunicationThread> thread, int64_t max_events);
  /*! \brief Closes the communicator if a bucket is still in flight: its buffers end here. */
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /*! \brief Forgets the last step's events; time counts from here. */
  void BeginStep();
  void FinishStep();

  /*!
   * \brief At least `num_bytes` of memory, all zero when new, in which `bucket` travels.
   *
   * Gradients that are computed there need not be copied: the first one at 0, every other at the
   * next multiple of kGradientAlignment behind the one before. Not while the bucket is in flight.
   */
  std::shared_ptr<char> BucketMemory(int64_t bucket, int64_t num_bytes);

  /*! \brief Bytes that the last Start of every bucket had to copy, by bucket. */
  std::map<int64_t, int64_t> CopiedBytes() const;

  /*! \brief Takes the gradients of `bucket`; until Wait nobody may touch them. */
  void Start(int64_t bucket, const std::vector<TensorSpan>& tensors,
             Reduction reduction = Reduction::kAverage);

  /*! \brief Blocks until the same `tensors` hold their averages (or sums) over all ranks. */
  void Wait(int64_t bucket, const std::vector<TensorSpan>& tensors, CheckInterrupt check_interrupt);

  /*! \brief Brackets a kernel's run on the main thread. */
  void BeginKernel() { kernel_start_ = Now(); }
  void FinishKernel(const char* name);

  /*! \brief Both threads' events of the last step, in order of their starts. */
  std::vector<Event> Events() const;
  int64_t num_dropped() const { return main_log_.num_dropped() + allreduce_log_.num_dropped(); }
  /*! \brief Names that the ids of kernel events index. */
  const std::vector<std::string>& kernel_names() const { return kernel_names_; }

 private:
  struct Bucket {
    std::vector<TensorSpan> tensors;
    std::shared_ptr<char> buffer;  // several tensors only: a single one travels in place
    int64_t capacity_bytes = 0;
    int64_t copied_bytes = 0;
    void* data = nullptr;
    int64_t count = 0;
    bool in_flight = false;
    Reduction reduction = Reduction::kAverage;
    std::unique_ptr<CommunicationJob> job;
  };

  std::chrono::nanoseconds Now() const { return std::chrono::steady_clock::now() - step_begin_; }
  Bucket* FindOrCreate(int64_t bucket);
  static void Reserve(Bucket* bucket, int64_t num_bytes);
  static void Pack(Bucket* bucket);
  static void Unpack(const Bucket& bucket);
  void RequireNothingInFlight(const char* action) const;

  std::shared_ptr<CommunicationThread> thread_;
  std::map<int64_t, Bucket> buckets_;  // a map: jobs hold pointers to buckets
  std::chrono::steady_clock::time_point step_begin_;
  EventLog main_log_;
  EventLog allreduce_log_;  // written by the communication thread while a bucket is in flight
  std::chrono::nanoseconds kernel_start_{0};
  std::unordered_map<std::string, int64_t> kernel_ids_;
  std::vector<std::string> kernel_names_;
};

}  // namespace disco_fuse::runtime

#endif  // DISCO_FUSE_RUNTIME_SESSION_H_
