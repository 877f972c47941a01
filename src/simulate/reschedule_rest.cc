// What Rescheduler does as ListScheduler does it: time, buckets, and all units behind the prefix.
#include <algorithm>
#include <functional>
#include <stdexcept>

#include "simulate/reschedule.h"

namespace disco_fuse {

/*!
 * \brief Finds what is ready behind the prefix, and what the others still wait for.
 *
 * Late units that were released during the walk are in ready_ already.
 */
void Rescheduler::EnterRest() {
  ready_.insert(ready_.end(), extras_.begin(), extras_.end());
  auto enter = [&](int32_t unit) {
    if (!units_->IsLate(unit)) {
      if (state(unit) < kExtra) CountMissing(unit);
    } else if (units_->predecessors(unit).empty()) {
      ready_.push_back(units_->Key(unit));
    }
  };
  for (size_t i = cursor_; i < prefix_.size(); ++i) {
    if (!IsChanged(prefix_[i])) enter(prefix_[i]);
  }
  for (int32_t unit : rest_) {
    if (!IsChanged(unit)) enter(unit);
  }
  for (int32_t unit : deferred_) enter(unit);
  for (int32_t unit : changed_units_) enter(unit);
  std::make_heap(ready_.begin(), ready_.end(), std::greater<uint64_t>());
}

void Rescheduler::CountMissing(int32_t unit) {
  counted_[unit] = epoch_;
  num_missing_[unit] = 0;
  for (int32_t before : units_->predecessors(unit)) num_missing_[unit] += IsIssued(before) ? 0 : 1;
  if (num_missing_[unit] == 0) ready_.push_back(units_->Key(unit));
}

void Rescheduler::ScheduleRest() {
  size_t num_units = static_cast<size_t>(units_->num_units());
  while (order_.size() < num_units) {
    SettleBuckets();
    if (!ready_.empty()) {
      std::pop_heap(ready_.begin(), ready_.end(), std::greater<uint64_t>());
      int32_t unit = static_cast<int32_t>(ready_.back() & 0xffffffffU);
      ready_.pop_back();
      IssueCompute(unit);
      for (int32_t after : units_->successors(unit)) {
        if (!units_->IsLate(after)) Decrement(after, now_);
      }
    } else if (next_end_ < in_flight_.size()) {
      now_ = std::max(now_, in_flight_[next_end_].first);
    } else {
      throw std::logic_error("the units of a strategy depend on each other in a cycle");
    }
  }
}

int64_t Rescheduler::FinishOfCompute(int64_t start, int64_t work) const {
  int64_t busy = communication_free_ - start;
  if (busy <= 0 || contention_permille_ == 1000) return start + work;
  // As Streams has it: work > busy * 1000 / contention, rounded down, without dividing.
  if (work * contention_permille_ <= busy * 1000) {
    return start + work * contention_permille_ / 1000;
  }
  return communication_free_ + (work - busy * 1000 / contention_permille_);
}

void Rescheduler::IssueCompute(int32_t unit) {
  order_.push_back(unit);
  now_ = FinishOfCompute(now_, durations_[unit]);
  FinishBuckets();
  if (units_->HasLateSuccessor(unit)) {
    for (int32_t after : units_->successors(unit)) {
      if (units_->IsLate(after)) Decrement(after, now_);
    }
  }
  if (!ready_buckets_.empty()) SettleBuckets();
}

void Rescheduler::Decrement(int32_t unit, int64_t time) {
  if (counted_[unit] != epoch_) {
    counted_[unit] = epoch_;
    num_missing_[unit] = static_cast<int32_t>(units_->predecessors(unit).size());
  }
  if (--num_missing_[unit] > 0) return;
  if (units_->IsBucket(unit)) {
    ready_buckets_.emplace_back(time, unit);
  } else {
    ready_.push_back(units_->Key(unit));
    std::push_heap(ready_.begin(), ready_.end(), std::greater<uint64_t>());
  }
}

void Rescheduler::FinishBuckets() {
  while (next_end_ < in_flight_.size() && in_flight_[next_end_].first <= now_) {
    auto [time, bucket] = in_flight_[next_end_++];
    for (int32_t after : units_->successors(bucket)) Decrement(after, time);
  }
}

void Rescheduler::SettleBuckets() {
  do {
    FinishBuckets();
    IssueBuckets();
    // A bucket of length 0 is over as soon as it is issued.
  } while (next_end_ < in_flight_.size() && in_flight_[next_end_].first <= now_);
}

void Rescheduler::IssueBuckets() {
  if (ready_buckets_.empty()) return;
  std::sort(ready_buckets_.begin(), ready_buckets_.end());
  for (const auto& [time, bucket] : ready_buckets_) {
    // Whatever it waited for is done by now: see Streams::Issue.
    communication_free_ = std::max(communication_free_, now_) + durations_[bucket];
    in_flight_.emplace_back(communication_free_, bucket);
    order_.push_back(bucket);
  }
  ready_buckets_.clear();
}

}  // namespace disco_fuse
