#include "search/lower_bound.h"

#include <algorithm>

#include "search/compute_floor.h"
#include "search/message_floor.h"

namespace disco_fuse {

Nanoseconds LowerBound(const OpGraph& graph, const CostModel& model, const Cluster& cluster) {
  ComputeFloor compute = FindComputeFloor(graph, model);
  if (compute.gradients.empty()) return compute.total;
  int64_t bytes = 0;
  for (const GradientFloor& gradient : compute.gradients) bytes += gradient.bytes;
  int64_t busy = cluster.allreduce.PartitionFloor(bytes).count();
  int64_t slowed = busy - busy * 1000 / cluster.contention_permille - graph.num_ops();
  return std::max(compute.total + Nanoseconds(std::max<int64_t>(slowed, 0)),
                  MessageFloor(compute.gradients, cluster.allreduce));
}

}  // namespace disco_fuse
