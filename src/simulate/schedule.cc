#include "simulate/schedule.h"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <tuple>

namespace disco_fuse {

void ListScheduler::RankUnits(const UnitGraph& units) {
  urgency_.assign(units.num_units(), kNotUrgent);
  // Units are numbered topologically, so that successors are ranked first.
  for (int32_t unit = units.num_units() - 1; unit >= 0; --unit) {
    if (units.kind(unit) == UnitKind::kBucket) urgency_[unit] = units.production_rank(unit);
    for (int32_t after : units.successors(unit)) {
      urgency_[unit] = std::min(urgency_[unit], urgency_[after]);
    }
    if (units.priority(unit) >= 0) urgency_[unit] = units.priority(unit);
  }
}

void ListScheduler::MakeReady(const UnitGraph& units, int32_t unit) {
  if (units.kind(unit) == UnitKind::kBucket) {
    Nanoseconds time(0);
    for (int32_t before : units.predecessors(unit)) time = std::max(time, streams_.finish(before));
    ready_buckets_.emplace_back(time, unit);
    return;
  }
  ready_.push_back((static_cast<uint64_t>(static_cast<uint32_t>(urgency_[unit])) << 32) |
                   static_cast<uint32_t>(units.representative(unit)));
  std::push_heap(ready_.begin(), ready_.end(), std::greater<uint64_t>());
}

void ListScheduler::Finish(const UnitGraph& units, int32_t unit) {
  for (int32_t after : units.successors(unit)) {
    if (--num_missing_[after] == 0) MakeReady(units, after);
  }
}

void ListScheduler::FinishBucketsUntil(const UnitGraph& units, Nanoseconds now) {
  while (next_end_ < in_flight_.size() && streams_.finish(in_flight_[next_end_]) <= now) {
    Finish(units, in_flight_[next_end_++]);
  }
}

void ListScheduler::Issue(const UnitGraph& units, const std::vector<Nanoseconds>& durations,
                          int32_t unit) {
  streams_.Issue(units, unit, durations[unit]);
  order_.push_back(unit);
}

void ListScheduler::IssueBuckets(const UnitGraph& units,
                                 const std::vector<Nanoseconds>& durations) {
  if (ready_buckets_.empty()) return;
  std::sort(ready_buckets_.begin(), ready_buckets_.end(), [&](const auto& a, const auto& b) {
    return std::make_tuple(a.first, units.representative(a.second)) <
           std::make_tuple(b.first, units.representative(b.second));
  });
  for (const auto& entry : ready_buckets_) {
    Issue(units, durations, entry.second);
    in_flight_.push_back(entry.second);
  }
  ready_buckets_.clear();
}

Nanoseconds ListScheduler::Run(const UnitGraph& units, const std::vector<Nanoseconds>& durations) {
  streams_.Reset(units);
  order_.clear();
  ready_.clear();
  ready_buckets_.clear();
  in_flight_.clear();
  next_end_ = 0;
  RankUnits(units);
  num_missing_.resize(units.num_units());
  for (int32_t unit = 0; unit < units.num_units(); ++unit) {
    num_missing_[unit] = static_cast<int32_t>(units.predecessors(unit).size());
    if (num_missing_[unit] == 0) MakeReady(units, unit);
  }
  Nanoseconds now(0);
  while (static_cast<int32_t>(order_.size()) < units.num_units()) {
    do {
      FinishBucketsUntil(units, now);
      IssueBuckets(units, durations);
      // A bucket of length 0 is over as soon as it is issued.
    } while (next_end_ < in_flight_.size() && streams_.finish(in_flight_[next_end_]) <= now);
    if (!ready_.empty()) {
      std::pop_heap(ready_.begin(), ready_.end(), std::greater<uint64_t>());
      int32_t unit = units.unit_of(static_cast<int32_t>(ready_.back() & 0xffffffffU));
      ready_.pop_back();
      Issue(units, durations, unit);
      now = streams_.finish(unit);
      // Buckets that end meanwhile come first: what they release is ready at the same time.
      FinishBucketsUntil(units, now);
      Finish(units, unit);
    } else if (next_end_ < in_flight_.size()) {
      now = std::max(now, streams_.finish(in_flight_[next_end_]));
    } else if (static_cast<int32_t>(order_.size()) < units.num_units()) {
      throw std::logic_error("the units of a strategy depend on each other in a cycle");
    }
  }
  return std::max(streams_.free(Stream::kCompute), streams_.free(Stream::kCommunication));
}

std::vector<int32_t> ListScheduler::RepresentativeOrder(const UnitGraph& units) const {
  std::vector<int32_t> order;
  order.reserve(order_.size());
  for (int32_t unit : order_) order.push_back(units.representative(unit));
  return order;
}

}  // namespace disco_fuse
