#include "simulate/memory.h"

#include <algorithm>

namespace disco_fuse {
namespace {

/*! \brief Every external value is as big as the most that one op reads of it. */
int64_t ExternalBytes(const OpGraph& graph) {
  std::vector<int64_t> size;
  for (int32_t op = 0; op < graph.num_ops(); ++op) {
    for (const ValueRead& read : graph.external_reads(op)) {
      if (static_cast<size_t>(read.value) >= size.size()) size.resize(read.value + 1, 0);
      size[read.value] = std::max(size[read.value], read.bytes);
    }
  }
  int64_t sum = 0;
  for (int64_t bytes : size) sum += bytes;
  return sum;
}

bool Contains(Span<int32_t> ascending, int32_t op) {
  return std::binary_search(ascending.begin(), ascending.end(), op);
}

/*! \brief What the value of `op` takes beside buffers that are there anyway. */
int64_t OwnBytes(const Op& op) {
  return op.kind == OpKind::kAllReduce || op.is_donated ? 0 : op.bytes_written;
}

}  // namespace

MemoryModel::MemoryModel(const OpGraph& graph) : graph_(&graph), external_(ExternalBytes(graph)) {}

void MemoryModel::FindLastReads(const UnitGraph& units, const std::vector<int32_t>& order) {
  last_read_.assign(graph_->num_ops(), -1);
  int32_t end = static_cast<int32_t>(order.size()) - 1;
  for (int32_t place = 0; place <= end; ++place) {
    Span<int32_t> members = units.members(order[place]);
    for (int32_t op : members) {
      for (const DataEnd& read : graph_->producers(op)) {
        if (!Contains(members, read.op)) last_read_[read.op] = place;
      }
    }
    for (int32_t op : units.outputs(order[place])) last_read_[op] = place;
  }
  // What is returned stays; the average is read in the buffer of the gradient.
  for (int32_t op = 0; op < graph_->num_ops(); ++op) {
    if (graph_->op(op).is_output) last_read_[op] = end;
  }
  for (int32_t op : graph_->allreduce_ops()) {
    for (const DataEnd& gradient : graph_->producers(op)) {
      last_read_[gradient.op] = std::max(last_read_[gradient.op], last_read_[op]);
    }
  }
}

/*! \brief Values that a kernel keeps in memory for a later loop nest of its own. */
int64_t MemoryModel::Workspace(const UnitGraph& units, int32_t unit) {
  Span<int32_t> members = units.members(unit);
  if (units.kind(unit) != UnitKind::kKernel || members.size() < 2) return 0;
  Span<int32_t> outputs = units.outputs(unit);
  group_.ops.assign(members.begin(), members.end());
  group_.outputs.assign(outputs.begin(), outputs.end());
  nests_.Plan(*graph_, group_);
  int64_t bytes = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    int32_t member = static_cast<int32_t>(i);
    bool kept = !nests_.inlined(member) && !nests_.StaysInNest(member);
    if (kept && !nests_.is_output(member)) bytes += graph_->op(members[i]).bytes_written;
  }
  return bytes;
}

int64_t MemoryModel::BucketBuffers(const UnitGraph& units) const {
  int64_t bytes = 0;
  for (int32_t unit = 0; unit < units.num_units(); ++unit) {
    bool packed = units.kind(unit) == UnitKind::kBucket && units.members(unit).size() > 1;
    if (packed) bytes += units.bucket_bytes(unit);
  }
  return bytes;
}

StepMemory MemoryModel::Measure(const UnitGraph& units, const std::vector<int32_t>& order) {
  FindLastReads(units, order);
  released_.assign(order.size(), 0);
  StepMemory memory;
  memory.external = external_;
  memory.buckets = BucketBuffers(units);
  int64_t alive = 0, most = 0;
  for (size_t place = 0; place < order.size(); ++place) {
    for (int32_t op : units.outputs(order[place])) {
      int64_t bytes = OwnBytes(graph_->op(op));
      alive += bytes;
      released_[last_read_[op]] += bytes;
    }
    most = std::max(most, alive + Workspace(units, order[place]));
    alive -= released_[place];
  }
  memory.peak = memory.external + memory.buckets + most;
  return memory;
}

}  // namespace disco_fuse
