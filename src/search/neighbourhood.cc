#include "search/neighbourhood.h"

#include <algorithm>

namespace disco_fuse {

Neighbourhood::Neighbourhood(const OpGraph& graph, const CostModel& model, const Cluster& cluster)
    : graph_(&graph),
      costs_(graph, model, cluster.allreduce),
      units_(graph),
      rescheduler_(graph, cluster.contention_permille),
      durations_(graph.num_ops(), 0),
      slots_(1) {}

Nanoseconds Neighbourhood::Settle(const Grouping& base) {
  units_.MoveTo(base);
  PriceUnits(base, &slots_[0]);
  PriceMissing(1);
  Apply(&slots_[0]);
  Nanoseconds makespan = rescheduler_.Run(units_, durations_, /*in_full=*/false);
  rescheduler_.SetBase(units_, durations_);
  return makespan;
}

void Neighbourhood::Price(const std::vector<const Grouping*>& groupings) {
  if (slots_.size() < groupings.size()) slots_.resize(groupings.size());
  for (size_t i = 0; i < groupings.size(); ++i) {
    units_.MoveTo(*groupings[i]);
    PriceUnits(*groupings[i], &slots_[i]);
    slots_[i].is_scheduled = slots_[i].missing.empty();
    if (slots_[i].is_scheduled) Run(i, /*in_full=*/false);
    units_.Undo();
  }
  PriceMissing(groupings.size());
}

/*! \brief Looks up what the last move changed, and lists what has never been priced. */
void Neighbourhood::PriceUnits(const Grouping& grouping, Slot* slot) {
  slot->grouping = &grouping;
  slot->durations.clear();
  slot->missing.clear();
  for (int32_t unit : units_.repriced()) {
    Nanoseconds duration(0);
    num_looked_up_ += units_.IsBucket(unit) ? 0 : 1;
    if (units_.IsBucket(unit)) {
      duration = costs_.BucketTime(units_.bucket_bytes(unit));
    } else if (!costs_.Find(units_.content(unit), &duration)) {
      slot->missing.emplace_back(unit, units_.content(unit));
      groups_.emplace_back();
      contents_.push_back(units_.content(unit));
      units_.Describe(grouping, unit, &groups_.back().ops, &groups_.back().outputs);
      continue;
    }
    slot->durations.emplace_back(unit, duration.count());
  }
}

void Neighbourhood::PriceMissing(size_t num_slots) {
  if (groups_.empty()) return;
  costs_.Predict(groups_, contents_);
  groups_.clear();
  contents_.clear();
  for (size_t i = 0; i < num_slots; ++i) {
    for (const auto& [unit, content] : slots_[i].missing) {
      Nanoseconds duration(0);
      costs_.Find(content, &duration);
      slots_[i].durations.emplace_back(unit, duration.count());
    }
  }
}

/*! \brief Exchanges the durations of a slot with those of the base. */
void Neighbourhood::Apply(Slot* slot) {
  for (auto& [unit, duration] : slot->durations) std::swap(durations_[unit], duration);
}

Nanoseconds Neighbourhood::Schedule(size_t i) {
  if (!slots_[i].is_scheduled) MoveAndRun(i, /*in_full=*/false);
  return slots_[i].makespan;
}

const std::vector<int32_t>& Neighbourhood::Order(size_t i) {
  MoveAndRun(i, /*in_full=*/true);
  return rescheduler_.order();
}

void Neighbourhood::MoveAndRun(size_t i, bool in_full) {
  units_.MoveTo(*slots_[i].grouping);
  Run(i, in_full);
  units_.Undo();
}

/*! \brief Schedules the i-th grouping, to which the units have been moved. */
void Neighbourhood::Run(size_t i, bool in_full) {
  Slot& slot = slots_[i];
  Apply(&slot);
  slot.makespan = rescheduler_.Run(units_, durations_, in_full);
  Apply(&slot);
  slot.is_scheduled = true;
}

}  // namespace disco_fuse
