#include "search/lower_bound.h"

#include <algorithm>
#include <vector>

namespace disco_fuse {
namespace {

std::vector<Nanoseconds> Floors(const OpGraph& graph, const CostModel& model) {
  std::vector<Nanoseconds> floors(graph.num_ops(), Nanoseconds(0));
  std::vector<Group> library;
  for (int32_t op = 0; op < graph.num_ops(); ++op) {
    if (graph.op(op).kind == OpKind::kLibrary) {
      library.push_back({{op}, {op}});
    } else if (graph.op(op).kind == OpKind::kCompute) {
      floors[op] = model.Floor(graph, op);
    }
  }
  if (library.empty()) return floors;
  std::vector<Nanoseconds> times = model.Predict(graph, library);
  CheckCount(times.size(), library, model.name(), graph);
  for (size_t i = 0; i < library.size(); ++i) floors[library[i].ops[0]] = times[i];
  return floors;
}

Nanoseconds TimeBefore(const OpGraph& graph, const std::vector<Nanoseconds>& floors, int32_t op) {
  std::vector<bool> seen(graph.num_ops(), false);
  std::vector<int32_t> stack{op};
  Nanoseconds sum(0);
  while (!stack.empty()) {
    int32_t next = stack.back();
    stack.pop_back();
    for (const DataEnd& end : graph.producers(next)) {
      if (seen[end.op]) continue;
      seen[end.op] = true;
      sum += floors[end.op];
      stack.push_back(end.op);
    }
  }
  return sum;
}

}  // namespace

Nanoseconds LowerBound(const OpGraph& graph, const CostModel& model, const Cluster& cluster) {
  std::vector<Nanoseconds> floors = Floors(graph, model);
  Nanoseconds compute(0);
  for (Nanoseconds floor : floors) compute += floor;
  if (graph.allreduce_ops().empty()) return compute;
  Nanoseconds head = Nanoseconds::max();
  int64_t bytes = 0;
  for (int32_t op : graph.allreduce_ops()) {
    head = std::min(head, TimeBefore(graph, floors, op));
    bytes += graph.op(op).bytes_written;
  }
  return std::max(compute, head + cluster.allreduce.PartitionFloor(bytes));
}

}  // namespace disco_fuse
