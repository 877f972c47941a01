#ifndef DISCO_FUSE_GRAPH_OP_GRAPH_H_
#define DISCO_FUSE_GRAPH_OP_GRAPH_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "graph/hash.h"
#include "graph/op.h"

namespace disco_fuse {

/*! \brief A view of consecutive values (std::span is C++20). */
template <typename T>
class Span {
 public:
  Span() = default;
  Span(const T* data, size_t size) : data_(data), size_(size) {}
  Span(const std::vector<T>& values) : data_(values.data()), size_(values.size()) {}  // NOLINT
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const T& operator[](size_t i) const { return data_[i]; }

 private:
  const T* data_ = nullptr;
  size_t size_ = 0;
};

/*! \brief The values of all rows of a sparse table, row after row. */
template <typename T>
struct Csr {
  std::vector<int32_t> begin; /*!< num_rows + 1 offsets into values */
  std::vector<T> values;
  Span<T> operator[](int32_t row) const {
    return {values.data() + begin[row], static_cast<size_t>(begin[row + 1] - begin[row])};
  }
};

/*! \brief The op at the other end of a data edge and the bytes that flow. */
struct DataEnd {
  int32_t op;
  int64_t bytes;
  bool keeps_rows;
};

/*! \brief The urgency of what no gradient waits for. */
constexpr int32_t kNotUrgent = std::numeric_limits<int32_t>::max();

/*! \brief An external value and the bytes read of it. */
struct ValueRead {
  int32_t value;
  int64_t bytes;
};

/*!
 * \brief One training step as an immutable graph of plain values.
 *
 * Op ids are positions in `ops` and topological: every edge goes from a smaller to a larger id.
 */
class OpGraph {
 public:
  /*!
   * \brief Checks and indexes the graph.
   * \throws std::invalid_argument naming the op and the field that is wrong.
   */
  static OpGraph Create(std::vector<Op> ops, std::vector<Edge> edges,
                        std::vector<ExternalRead> external_reads);

  int32_t num_ops() const { return static_cast<int32_t>(ops_.size()); }
  const Op& op(int32_t id) const { return ops_[id]; }
  const std::vector<Op>& ops() const { return ops_; }
  const std::vector<Edge>& edges() const { return edges_; }
  /*! \brief Data producers of `id`, each once, in ascending order. */
  Span<DataEnd> producers(int32_t id) const { return producers_[id]; }
  /*! \brief Data consumers of `id`, each once, in ascending order. */
  Span<DataEnd> consumers(int32_t id) const { return consumers_[id]; }
  /*! \brief Ops that must run before `id` overwrites its buffer. */
  Span<int32_t> order_before(int32_t id) const { return order_before_[id]; }
  /*! \brief Ops that overwrite what `id` reads. */
  Span<int32_t> order_after(int32_t id) const { return order_after_[id]; }
  Span<ValueRead> external_reads(int32_t id) const { return reads_[id]; }
  bool HasDataEdge(int32_t producer, int32_t consumer) const;
  /*! \brief Ids of all allreduce ops, in the order in which their gradients are produced. */
  const std::vector<int32_t>& allreduce_ops() const { return allreduce_ops_; }
  /*! \brief Largest id among the producers of an allreduce op: its place in production order. */
  int32_t ProductionRank(int32_t allreduce_op) const;
  /*! \brief Place of an allreduce op in allreduce_ops(). */
  int32_t ProductionPlace(int32_t allreduce_op) const { return place_[allreduce_op]; }
  /*! \brief Smallest production rank of an allreduce op that `id` is or leads to; else kNotUrgent.
   */
  int32_t Urgency(int32_t id) const { return urgency_[id]; }
  /*! \brief A value that must be written: the graph returns it, or nobody reads it. */
  bool MustWrite(int32_t id) const { return ops_[id].is_output || consumers(id).empty(); }
  bool IsAllReduce(int32_t id) const { return ops_[id].kind == OpKind::kAllReduce; }
  /*! \brief "op 3 ('add')", for messages. */
  std::string Describe(int32_t id) const;
  const Hash128& digest() const { return digest_; }

 private:
  OpGraph() = default;
  void RankGradients();
  void Index(const std::vector<ExternalRead>& external_reads);
  void ComputeDigest(const std::vector<ExternalRead>& external_reads);

  std::vector<Op> ops_;
  std::vector<Edge> edges_;
  Csr<DataEnd> producers_;
  Csr<DataEnd> consumers_;
  Csr<int32_t> order_before_;
  Csr<int32_t> order_after_;
  Csr<ValueRead> reads_;
  std::vector<int32_t> allreduce_ops_;
  std::vector<int32_t> place_;   /*!< per op: its index in allreduce_ops_, or -1 */
  std::vector<int32_t> urgency_; /*!< per op */
  Hash128 digest_;
};

}  // namespace disco_fuse

#endif  // DISCO_FUSE_GRAPH_OP_GRAPH_H_
