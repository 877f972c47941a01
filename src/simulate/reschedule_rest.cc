// What Rescheduler does as ListScheduler does it: time, buckets, and all units behind the prefix.
#include <algorithm>
#include <functional>
#include <stdexcept>

#include "simulate/reschedule.h"

namespace disco_fuse {

/*! \brief Finds what is ready behind the prefix, and what the others still wait for. */
void Rescheduler::EnterRest() {
  ready_.insert(ready_.end(), extras_.begin(), extras_.end());
  auto enter = [&](int32_t unit) {
    if (state(unit) < kExtra) CountMissing(unit);
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

/*! \brief All buckets count as missing; those that are over are noticed in the next step. */
void Rescheduler::CountMissing(int32_t unit) {
  num_missing_[unit] = 0;
  for (int32_t before : units_->predecessors(unit)) num_missing_[unit] += IsIssued(before) ? 0 : 1;
  if (num_missing_[unit] == 0) ready_.push_back(units_->Key(unit));
}

/*! \brief Whether the order of what is left does not matter, neither to time nor to the caller. */
bool Rescheduler::EndIsKnown() const {
  if (num_left_ == 0) return true;
  bool full_speed = contention_permille_ == 1000 || communication_free_ <= now_;
  return !in_full_ && full_speed &&
         static_cast<int32_t>(in_flight_.size()) == units_->num_buckets();
}

/*! \brief When the compute stream is done. */
int64_t Rescheduler::FindEnd() {
  int64_t end = now_ + work_left_;
  int64_t released = 0;
  // Those that end last come first: what several of them release is ready when the last one ends.
  for (size_t i = in_flight_.size(); i-- > 0;) {
    auto [time, bucket] = in_flight_[i];
    if (time + work_left_ <= end) break;
    released += WorkBehind(bucket);
    end = std::max(end, time + released);
  }
  return end;
}

/*! \brief Work that is left and depends on the bucket, without what was counted before. */
int64_t Rescheduler::WorkBehind(int32_t bucket) {
  int64_t work = 0;
  stack_.assign(1, bucket);
  while (!stack_.empty()) {
    int32_t unit = stack_.back();
    stack_.pop_back();
    for (int32_t after : units_->successors(unit)) {
      if (units_->IsBucket(after) || state(after) == kIssued) continue;
      SetState(after, kIssued);
      work += durations_[after];
      stack_.push_back(after);
    }
  }
  return work;
}

void Rescheduler::ScheduleRest() {
  while (true) {
    SettleBuckets();
    if (EndIsKnown()) return;
    if (!ready_.empty()) {
      std::pop_heap(ready_.begin(), ready_.end(), std::greater<uint64_t>());
      uint64_t key = ready_.back();
      int32_t unit = static_cast<int32_t>(key & 0xffffffffU);
      ready_.pop_back();
      if (Ends(key) || units_->IsLate(unit)) num_walked_ = std::min(num_walked_, order_.size());
      IssueCompute(unit);
      // Buckets that end meanwhile come first: what they release is ready at the same time.
      FinishBuckets();
      SetState(unit, kIssued);
      for (int32_t after : units_->successors(unit)) Decrement(after, now_);
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
  --num_left_;
  work_left_ -= durations_[unit];
  now_ = FinishOfCompute(now_, durations_[unit]);
}

/*! \brief One of the predecessors of `unit` is done, at `time`. */
void Rescheduler::Decrement(int32_t unit, int64_t time) {
  if (units_->IsBucket(unit)) {
    if (IsBucketReady(unit)) ready_buckets_.emplace_back(time, unit);
  } else if (--num_missing_[unit] == 0) {
    ready_.push_back(units_->Key(unit));
    std::push_heap(ready_.begin(), ready_.end(), std::greater<uint64_t>());
  }
}

void Rescheduler::FinishBuckets() {
  while (next_end_ < in_flight_.size() && in_flight_[next_end_].first <= now_) {
    auto [time, bucket] = in_flight_[next_end_++];
    SetState(bucket, kIssued);
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
  for (const auto& entry : ready_buckets_) IssueBucket(entry.second);
  ready_buckets_.clear();
}

/*! \brief Whatever the bucket waited for is done by now: see Streams::Issue. */
void Rescheduler::IssueBucket(int32_t bucket) {
  communication_free_ = std::max(communication_free_, now_) + durations_[bucket];
  in_flight_.emplace_back(communication_free_, bucket);
  order_.push_back(bucket);
  --num_left_;
  if (alarm_ == kNoAlarm && HasUrgentDependent(bucket)) alarm_ = communication_free_;
}

bool Rescheduler::HasUrgentDependent(int32_t bucket) const {
  if (limit_ >> 32 == kNotUrgent) return false;
  for (int32_t after : units_->successors(bucket)) {
    if (units_->IsUrgentDependent(after)) return true;
  }
  return false;
}

}  // namespace disco_fuse
