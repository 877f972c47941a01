#include "search/memory_limit.h"

#include <stdexcept>
#include <string>

namespace disco_fuse {

Nanoseconds MemoryLimit::Cost(const Grouping& grouping, const std::vector<int32_t>& order,
                              Nanoseconds makespan) {
  if (limit_bytes_ < 0) return makespan;
  units_.Build(grouping);
  order_.clear();
  for (int32_t representative : order) order_.push_back(units_.unit_of(representative));
  int64_t peak = memory_.Measure(units_, order_).peak;
  return peak <= limit_bytes_ ? makespan : kOver + Nanoseconds(peak - limit_bytes_);
}

void MemoryLimit::CheckMet(Nanoseconds cost, int64_t limit_bytes) {
  if (!IsOver(cost)) return;
  int64_t least = limit_bytes + (cost - kOver).count();
  throw std::invalid_argument("no strategy fits a memory limit of " + std::to_string(limit_bytes) +
                              " bytes: the smallest that was found needs " + std::to_string(least) +
                              " bytes");
}

}  // namespace disco_fuse
