#include "search/evaluator.h"

namespace disco_fuse {

void Evaluator::Price(const std::vector<const Grouping*>& groupings) {
  if (slots_.size() < groupings.size()) slots_.resize(groupings.size());
  std::vector<UnitCosts::Request> requests;
  for (size_t i = 0; i < groupings.size(); ++i) {
    slots_[i].units.Build(*groupings[i]);
    requests.push_back({&slots_[i].units, &slots_[i].durations});
  }
  costs_.Price(requests);
}

}  // namespace disco_fuse
