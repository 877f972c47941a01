#include "cost/unit_costs.h"

namespace disco_fuse {

UnitCosts::UnitCosts(const OpGraph& graph, const CostModel& model, const AllReduceModel& allreduce)
    : graph_(&graph), model_(&model), allreduce_(allreduce), recent_(graph.num_ops()) {
  allreduce_.Check();
}

bool UnitCosts::Lookup(const UnitGraph& units, int32_t unit, Nanoseconds* duration) {
  if (units.kind(unit) == UnitKind::kBucket) {
    *duration = allreduce_.Time(units.bucket_bytes(unit));
    return true;
  }
  const Hash128& content = units.content(unit);
  Recent& recent = recent_[units.representative(unit)];
  if (recent.content != content) {
    auto it = memo_.find(content);
    if (it == memo_.end()) return false;
    recent = {content, it->second};
  }
  *duration = recent.duration;
  return true;
}

void UnitCosts::Predict(const std::vector<Group>& groups, const std::vector<Hash128>& contents) {
  std::vector<Nanoseconds> times = model_->Predict(*graph_, groups);
  CheckCount(times.size(), groups, model_->name(), *graph_);
  for (size_t i = 0; i < groups.size(); ++i) {
    if (times[i] < Nanoseconds(0)) {
      // Reports the negative time in the words of every other bad prediction.
      ToNanoseconds(static_cast<double>(times[i].count()) / 1000.0, model_->name(), *graph_,
                    groups[i]);
    }
    memo_.emplace(contents[i], times[i]);
  }
}

void UnitCosts::Price(const std::vector<Request>& requests) {
  struct Missing {
    size_t request;
    int32_t unit;
  };
  std::vector<Missing> missing;
  std::vector<Group> groups;
  std::vector<Hash128> contents;
  std::unordered_map<Hash128, size_t, Hash128Key> index;
  for (size_t r = 0; r < requests.size(); ++r) {
    const UnitGraph& units = *requests[r].units;
    requests[r].durations->resize(units.num_units());
    for (int32_t unit = 0; unit < units.num_units(); ++unit) {
      if (Lookup(units, unit, &(*requests[r].durations)[unit])) continue;
      missing.push_back({r, unit});
      if (!index.emplace(units.content(unit), groups.size()).second) continue;
      Span<int32_t> ops = units.members(unit);
      Span<int32_t> outputs = units.outputs(unit);
      groups.push_back({{ops.begin(), ops.end()}, {outputs.begin(), outputs.end()}});
      contents.push_back(units.content(unit));
    }
  }
  if (groups.empty()) return;
  Predict(groups, contents);
  for (const Missing& miss : missing) {
    const Request& request = requests[miss.request];
    Lookup(*request.units, miss.unit, &(*request.durations)[miss.unit]);
  }
}

}  // namespace disco_fuse
