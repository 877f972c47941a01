#include "search/forced_nests.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "strategy/legality.h"

namespace disco_fuse {
namespace {

int32_t Find(std::vector<int32_t>* parent, int32_t op) {
  while ((*parent)[op] != op) op = (*parent)[op] = (*parent)[(*parent)[op]];
  return op;
}

}  // namespace

NestRegions::NestRegions(const OpGraph& graph, const std::vector<bool>& barrier)
    : anchor_(graph.num_ops(), false), copied_(graph.num_ops(), false), region_(graph.num_ops()) {
  std::iota(region_.begin(), region_.end(), 0);
  for (int32_t op = 0; op < graph.num_ops(); ++op) {
    if (barrier[op]) continue;
    anchor_[op] = graph.op(op).pattern > OpPattern::kInjective || graph.MustWrite(op);
    // Copies that nobody reads do not exist.
    copied_[op] = CheckDuplicable(graph, op).allowed() && !graph.consumers(op).empty();
    for (const DataEnd& end : graph.consumers(op)) {
      if (barrier[end.op]) anchor_[op] = true;
      int64_t rows = graph.op(op).rows;
      if (barrier[end.op] || !end.keeps_rows || rows == 0 || graph.op(end.op).rows != rows) {
        continue;
      }
      int32_t a = Find(&region_, op);
      int32_t b = Find(&region_, end.op);
      region_[std::max(a, b)] = std::min(a, b);
    }
  }
  for (int32_t op = 0; op < graph.num_ops(); ++op) region_[op] = Find(&region_, op);
}

std::vector<Charge> ForcedNests(const OpGraph& graph, const NestRegions& regions,
                                Nanoseconds each) {
  std::vector<Charge> charges;
  if (each <= Nanoseconds(0)) return charges;
  std::map<int32_t, ChainSet> anchors;
  for (int32_t op = 0; op < graph.num_ops(); ++op) {
    if (regions.is_anchor(op)) anchors[regions.region(op)].ops.push_back(regions.anchor(op));
  }
  for (auto& [region, chain] : anchors) {
    Charge charge{each, Nanoseconds(0), std::vector<ChainSum>(1)};
    charge.sums[0].parts.push_back({std::move(chain), 0});
    charges.push_back(std::move(charge));
  }
  return charges;
}

}  // namespace disco_fuse
