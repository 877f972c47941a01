#include "graph/op_graph.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace disco_fuse {
namespace {

std::string DescribeOp(const std::vector<Op>& ops, int32_t id) {
  return "op " + std::to_string(id) + " ('" + ops[id].name + "')";
}

[[noreturn]] void Fail(const std::string& message) { throw std::invalid_argument(message); }

template <typename T>
void Require(bool ok, const std::vector<Op>& ops, int32_t id, const char* field, const T& value,
             const char* allowed) {
  if (ok) return;
  std::ostringstream out;
  out << DescribeOp(ops, id) << ": " << field << " must be " << allowed << ", got " << value;
  Fail(out.str());
}

bool IsKnownPattern(OpPattern pattern) {
  int32_t value = static_cast<int32_t>(pattern);
  return (value >= 0 && value <= 4) || value == 7 || value == 8;
}

void CheckOps(const std::vector<Op>& ops) {
  for (int32_t id = 0; id < static_cast<int32_t>(ops.size()); ++id) {
    const Op& op = ops[id];
    int32_t kind = static_cast<int32_t>(op.kind);
    Require(kind >= 0 && kind <= 2, ops, id, "kind", kind,
            "0 (compute), 1 (library) or 2 (allreduce)");
    Require(IsKnownPattern(op.pattern), ops, id, "pattern", static_cast<int32_t>(op.pattern),
            "one of 0, 1, 2, 3, 4, 7, 8 (TVM's OpPatternKind)");
    Require(std::isfinite(op.flops) && op.flops >= 0, ops, id, "flops", op.flops,
            "finite and >= 0");
    Require(op.num_elements >= 0, ops, id, "num_elements", op.num_elements, ">= 0");
    Require(op.rows >= 0, ops, id, "rows", op.rows, ">= 0");
    Require(op.bytes_read >= 0, ops, id, "bytes_read", op.bytes_read, ">= 0");
    Require(op.bytes_written >= 0, ops, id, "bytes_written", op.bytes_written, ">= 0");
  }
}

void CheckEdges(const std::vector<Op>& ops, const std::vector<Edge>& edges) {
  int32_t num_ops = static_cast<int32_t>(ops.size());
  std::set<std::tuple<int32_t, int32_t, bool>> seen;
  for (size_t i = 0; i < edges.size(); ++i) {
    const Edge& edge = edges[i];
    std::string where = "edge " + std::to_string(i) + " (" + std::to_string(edge.producer) +
                        " -> " + std::to_string(edge.consumer) + "): ";
    if (edge.producer < 0 || edge.producer >= num_ops) {
      Fail(where + "producer must be in [0, " + std::to_string(num_ops) + ")");
    }
    if (edge.consumer < 0 || edge.consumer >= num_ops) {
      Fail(where + "consumer must be in [0, " + std::to_string(num_ops) + ")");
    }
    if (edge.producer >= edge.consumer) {
      Fail(where + "consumer must be larger than producer, because op ids are topological");
    }
    if (edge.bytes < 0) Fail(where + "bytes must be >= 0, got " + std::to_string(edge.bytes));
    if (edge.order_only && edge.bytes != 0) {
      Fail(where + "bytes of an order_only edge must be 0, got " + std::to_string(edge.bytes));
    }
    if (!seen.emplace(edge.producer, edge.consumer, edge.order_only).second) {
      Fail(where + "is given twice; give one edge with all bytes read");
    }
  }
}

void CheckReads(const std::vector<Op>& ops, const std::vector<ExternalRead>& reads) {
  int32_t num_ops = static_cast<int32_t>(ops.size());
  std::set<std::pair<int32_t, int32_t>> seen;
  for (size_t i = 0; i < reads.size(); ++i) {
    const ExternalRead& read = reads[i];
    std::string where = "external read " + std::to_string(i) + ": ";
    if (read.op < 0 || read.op >= num_ops) {
      Fail(where + "op must be in [0, " + std::to_string(num_ops) + "), got " +
           std::to_string(read.op));
    }
    if (read.value < 0) {
      Fail(where + "value of " + DescribeOp(ops, read.op) + " must be >= 0, got " +
           std::to_string(read.value));
    }
    if (read.bytes < 0) {
      Fail(where + "bytes of " + DescribeOp(ops, read.op) + " must be >= 0, got " +
           std::to_string(read.bytes));
    }
    if (!seen.emplace(read.op, read.value).second) {
      Fail(where + DescribeOp(ops, read.op) + " reads value " + std::to_string(read.value) +
           " twice; give one read with all bytes");
    }
  }
}

/*! \brief Sorts (row, value) pairs by row and then by their given order into a Csr. */
template <typename T>
Csr<T> MakeCsr(int32_t num_rows, const std::vector<std::pair<int32_t, T>>& entries) {
  Csr<T> csr;
  csr.begin.assign(num_rows + 1, 0);
  for (const auto& entry : entries) ++csr.begin[entry.first + 1];
  for (int32_t row = 0; row < num_rows; ++row) csr.begin[row + 1] += csr.begin[row];
  csr.values.resize(entries.size());
  std::vector<int32_t> next(csr.begin.begin(), csr.begin.end() - 1);
  for (const auto& entry : entries) csr.values[next[entry.first]++] = entry.second;
  return csr;
}

}  // namespace

OpGraph OpGraph::Create(std::vector<Op> ops, std::vector<Edge> edges,
                        std::vector<ExternalRead> external_reads) {
  CheckOps(ops);
  CheckEdges(ops, edges);
  CheckReads(ops, external_reads);
  OpGraph graph;
  graph.ops_ = std::move(ops);
  // One canonical order, so that neither the digest nor a search depends on how edges were listed.
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) {
    return std::tie(a.consumer, a.producer, a.order_only) <
           std::tie(b.consumer, b.producer, b.order_only);
  });
  std::sort(external_reads.begin(), external_reads.end(),
            [](const ExternalRead& a, const ExternalRead& b) {
              return std::tie(a.op, a.value) < std::tie(b.op, b.value);
            });
  graph.edges_ = std::move(edges);
  graph.Index(external_reads);
  for (int32_t id : graph.allreduce_ops_) {
    Require(!graph.producers(id).empty(), graph.ops_, id, "the number of data producers", 0,
            ">= 1, because it sends a gradient");
  }
  graph.ComputeDigest(external_reads);
  return graph;
}

void OpGraph::Index(const std::vector<ExternalRead>& external_reads) {
  std::vector<std::pair<int32_t, DataEnd>> in, out;
  std::vector<std::pair<int32_t, int32_t>> before, after;
  for (const Edge& edge : edges_) {
    if (edge.order_only) {
      before.emplace_back(edge.consumer, edge.producer);
      after.emplace_back(edge.producer, edge.consumer);
    } else {
      in.push_back({edge.consumer, {edge.producer, edge.bytes, edge.keeps_rows}});
      out.push_back({edge.producer, {edge.consumer, edge.bytes, edge.keeps_rows}});
    }
  }
  std::vector<std::pair<int32_t, ValueRead>> reads;
  for (const ExternalRead& read : external_reads) {
    reads.push_back({read.op, {read.value, read.bytes}});
  }
  producers_ = MakeCsr(num_ops(), in);
  consumers_ = MakeCsr(num_ops(), out);
  order_before_ = MakeCsr(num_ops(), before);
  order_after_ = MakeCsr(num_ops(), after);
  reads_ = MakeCsr(num_ops(), reads);
  for (int32_t id = 0; id < num_ops(); ++id) {
    if (IsAllReduce(id)) allreduce_ops_.push_back(id);
  }
  std::stable_sort(allreduce_ops_.begin(), allreduce_ops_.end(),
                   [this](int32_t a, int32_t b) { return ProductionRank(a) < ProductionRank(b); });
  RankGradients();
}

void OpGraph::RankGradients() {
  place_.assign(num_ops(), -1);
  for (size_t i = 0; i < allreduce_ops_.size(); ++i) {
    place_[allreduce_ops_[i]] = static_cast<int32_t>(i);
  }
  urgency_.assign(num_ops(), kNotUrgent);
  for (int32_t id = num_ops() - 1; id >= 0; --id) {
    if (IsAllReduce(id)) urgency_[id] = ProductionRank(id);
    for (const DataEnd& end : consumers(id)) {
      urgency_[id] = std::min(urgency_[id], urgency_[end.op]);
    }
    for (int32_t writer : order_after(id)) urgency_[id] = std::min(urgency_[id], urgency_[writer]);
  }
}

void OpGraph::ComputeDigest(const std::vector<ExternalRead>& external_reads) {
  Hasher hasher;
  hasher.AddInt(num_ops());
  for (const Op& op : ops_) {
    hasher.AddString(op.name);
    hasher.AddInt(static_cast<int32_t>(op.kind));
    hasher.AddInt(static_cast<int32_t>(op.pattern));
    hasher.AddDouble(op.flops);
    for (int64_t value : {op.num_elements, op.rows, op.bytes_read, op.bytes_written}) {
      hasher.AddInt(value);
    }
    hasher.AddString(op.signature);
    hasher.AddInt(op.is_output ? 1 : 0);
    hasher.AddInt(op.is_donated ? 1 : 0);
    hasher.AddString(op.collective);
    hasher.AddString(op.merge_class);
    hasher.AddString(op.op_class);
  }
  hasher.AddInt(static_cast<int64_t>(edges_.size()));
  for (const Edge& edge : edges_) {
    hasher.AddInt(edge.producer);
    hasher.AddInt(edge.consumer);
    hasher.AddInt(edge.bytes);
    hasher.AddInt(edge.order_only ? 1 : 0);
    hasher.AddInt(edge.keeps_rows ? 1 : 0);
  }
  for (const ExternalRead& read : external_reads) {
    hasher.AddInt(read.op);
    hasher.AddInt(read.value);
    hasher.AddInt(read.bytes);
  }
  digest_ = hasher.Finish();
}

bool OpGraph::HasDataEdge(int32_t producer, int32_t consumer) const {
  for (const DataEnd& end : producers(consumer)) {
    if (end.op == producer) return true;
  }
  return false;
}

int32_t OpGraph::ProductionRank(int32_t allreduce_op) const {
  Span<DataEnd> ends = producers(allreduce_op);
  return ends.empty() ? -1 : ends[ends.size() - 1].op;
}

std::string OpGraph::Describe(int32_t id) const { return DescribeOp(ops_, id); }

}  // namespace disco_fuse
