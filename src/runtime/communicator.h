#ifndef DISCO_FUSE_RUNTIME_COMMUNICATOR_H_
#define DISCO_FUSE_RUNTIME_COMMUNICATOR_H_

#include <atomic>
#include <cstdint>

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
struct ProgressControl {
  /*! \brief The running collective must give up. */
  std::atomic<bool> stop{false};
  /*! \brief Threads blocked on a result: their cores are idle, so polling hard costs nobody. */
  std::atomic<int> num_waiters{0};
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
