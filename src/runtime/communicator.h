#ifndef DISCO_FUSE_RUNTIME_COMMUNICATOR_H_
#define DISCO_FUSE_RUNTIME_COMMUNICATOR_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace disco_fuse::runtime {

enum class DataType { kFloat32, kFloat64, kFloat16, kBfloat16 };

inline int64_t SizeOf(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat32:
      return 4;
    case DataType::kFloat64:
      return 8;
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return 2;
  }
  return 0;  // not reached: all types are above
}

enum class Reduction { kSum, kAverage };

/*! \brief What a collective is called in errors; ranks that disagree on it do not match. */
struct CollectiveName {
  const char* kind;  // "bucket", "broadcast", ...: a literal
  int64_t id;
};

/*! \brief What the threads that wait tell the one that communicates. */
class ProgressControl {
 public:
  /*! \brief Whether the running collective must give up. */
  bool stopped() const { return stop_.load(std::memory_order_relaxed); }
  /*! \brief Whether a thread is blocked on a result: its core is idle, polling hard costs nobody.
   */
  bool has_waiter() const { return num_waiters_.load(std::memory_order_relaxed) > 0; }

  void Stop();
  void AddWaiter();
  void RemoveWaiter() { --num_waiters_; }

  /*! \brief Sleeps for `time`, but no longer than until the first waiter comes or Stop is called.
   */
  void SleepUnlessAwaited(std::chrono::nanoseconds time) const;

 private:
  std::atomic<bool> stop_{false};
  std::atomic<int> num_waiters_{0};
  mutable std::mutex mutex_;
  mutable std::condition_variable awaited_;
};

/*!
 * \brief Collectives between the ranks of one job, run one after the other by one thread.
 *
 * All ranks call the same collectives in the same order. A collective that throws leaves the
 * communicator unusable: what the other ranks got is unknown.
 */
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  /*!
   * \brief Replaces `data` on every rank by the same bits: the sum or average over all ranks.
   *
   * Sixteen-bit numbers are added in float and rounded once for every rank that adds.
   */
  virtual void AllReduce(const CollectiveName& name, void* data, int64_t count, DataType dtype,
                         Reduction reduction, const ProgressControl& control) = 0;

  /*! \brief Replaces `data` on every rank by that of `root`. */
  virtual void Broadcast(const CollectiveName& name, void* data, int64_t num_bytes, int root,
                         const ProgressControl& control) = 0;
};

/*! \brief The only rank of its job: sum, average and copy of one are the value itself. */
class LoopbackCommunicator final : public Communicator {
 public:
  int rank() const final { return 0; }
  int world_size() const final { return 1; }
  void AllReduce(const CollectiveName&, void*, int64_t, DataType, Reduction,
                 const ProgressControl&) final {}
  void Broadcast(const CollectiveName&, void*, int64_t, int, const ProgressControl&) final {}
};

}  // namespace disco_fuse::runtime

#endif  // DISCO_FUSE_RUNTIME_COMMUNICATOR_H_
