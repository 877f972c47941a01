#include "simulate/reschedule.h"

#include <algorithm>
#include <functional>

namespace disco_fuse {

Rescheduler::Rescheduler(const OpGraph& graph, int32_t contention_permille)
    : contention_permille_(contention_permille),
      place_(graph.num_ops(), kNever),
      base_work_(graph.num_ops(), 0),
      level_(graph.num_ops(), kNotUrgent),
      level_size_(graph.num_ops(), 0),
      level_min_(graph.num_ops(), kNever),
      state_(graph.num_ops(), 0),
      changed_(graph.num_ops(), 0),
      num_missing_(graph.num_ops(), 0),
      watches_(graph.num_ops()) {
  for (const Edge& edge : graph.edges()) {
    bool nested = graph.IsAllReduce(edge.producer) && graph.IsAllReduce(edge.consumer);
    has_nested_buckets_ = has_nested_buckets_ || nested;
  }
}

Nanoseconds Rescheduler::Run(const LiveUnits& units, const std::vector<int64_t>& durations_ns,
                             bool in_full) {
  Begin(units, durations_ns, in_full);
  SumUpWork();
  FindAttention();
  Walk();
  if (!EndIsKnown()) {
    EnterRest();
    ScheduleRest();
  }
  return Nanoseconds(std::max(FindEnd(), communication_free_));
}

void Rescheduler::ForgetBase() {
  for (const std::vector<int32_t>* list : {&prefix_, &rest_}) {
    for (int32_t unit : *list) {
      if (level_[unit] != kNotUrgent) {
        level_size_[level_[unit]] = 0;
        level_min_[level_[unit]] = kNever;
      }
      level_[unit] = kNotUrgent;
      place_[unit] = kNever;
      base_work_[unit] = 0;
    }
  }
  prefix_.clear();
  time_before_.assign(1, 0);
  releases_.clear();
  rest_.clear();
  total_base_work_ = 0;
}

void Rescheduler::SetBase(const LiveUnits& units, const std::vector<int64_t>& durations_ns) {
  ForgetBase();
  for (size_t i = 0; i < std::min(num_walked_, order_.size()); ++i) {
    int32_t unit = order_[i];
    if (units.IsBucket(unit)) continue;
    place_[unit] = static_cast<int32_t>(prefix_.size());
    time_before_.push_back(time_before_.back() + durations_ns[unit]);
    prefix_.push_back(unit);
  }
  for (int32_t unit = 0; unit < static_cast<int32_t>(place_.size()); ++unit) {
    if (!units.exists(unit) || units.IsBucket(unit)) continue;
    if (place_[unit] == kNever) rest_.push_back(unit);
    base_work_[unit] = durations_ns[unit];
    total_base_work_ += durations_ns[unit];
    if (units.IsLate(unit)) continue;
    int32_t level = units.urgency(unit);
    level_[unit] = level;
    ++level_size_[level];
    level_min_[level] = std::min(level_min_[level], unit);
  }
  SetReleases(units);
}

void Rescheduler::SetReleases(const LiveUnits& units) {
  for (const auto& entry : in_flight_) {
    int32_t place = -1;
    for (int32_t before : units.predecessors(entry.second)) {
      place = std::max(place, place_[before]);
    }
    if (place != kNever) releases_.push_back({place, entry.second});
  }
  std::sort(releases_.begin(), releases_.end());
}

void Rescheduler::Begin(const LiveUnits& units, const std::vector<int64_t>& durations_ns,
                        bool in_full) {
  units_ = &units;
  durations_ = durations_ns.data();
  in_full_ = in_full;
  ++epoch_;
  changed_units_.clear();
  changed_buckets_.clear();
  attention_.clear();
  next_attention_ = next_release_ = 0;
  cursor_ = num_deviations_ = 0;
  // A collective of a collective is ready in the middle of a unit: then nothing is skipped.
  limit_ = has_nested_buckets_ ? 0 : units.SmallestLateKey();
  alarm_ = has_nested_buckets_ ? 0 : kNoAlarm;
  num_walked_ = std::numeric_limits<size_t>::max();
  extras_.clear();
  deferred_.clear();
  order_.clear();
  num_left_ = units.num_units();
  now_ = communication_free_ = 0;
  in_flight_.clear();
  next_end_ = 0;
  ready_buckets_.clear();
  ready_.clear();
}

void Rescheduler::SumUpWork() {
  work_left_ = total_base_work_;
  for (int32_t unit : units_->gone()) work_left_ -= base_work_[unit];
  for (int32_t unit : units_->repriced()) {
    if (!units_->IsBucket(unit)) work_left_ += durations_[unit] - base_work_[unit];
  }
}

Rescheduler::State Rescheduler::state(int32_t unit) const {
  return state_[unit] >> 2 == epoch_ ? static_cast<State>(state_[unit] & 3U) : kAsInBase;
}

void Rescheduler::SetState(int32_t unit, State state) { state_[unit] = epoch_ << 2 | state; }

bool Rescheduler::IsIssued(int32_t unit) const {
  State known = state(unit);
  return known == kAsInBase ? place_[unit] < cursor_ : known == kIssued;
}

bool Rescheduler::IsReady(int32_t unit) const {
  for (int32_t before : units_->predecessors(unit)) {
    if (!IsIssued(before)) return false;
  }
  return true;
}

bool Rescheduler::IsReadyInBase(int32_t unit) const {
  for (int32_t before : units_->predecessors(unit)) {
    if (place_[before] >= cursor_) return false;
  }
  return true;
}

bool Rescheduler::IsBucketReady(int32_t bucket) {
  const std::vector<int32_t>& before = units_->predecessors(bucket);
  Watch& watch = watches_[bucket];
  if (watch.epoch != epoch_) watch = {epoch_, 0};
  while (watch.num_done < before.size() && IsIssued(before[watch.num_done])) ++watch.num_done;
  return watch.num_done == before.size();
}

/*! \brief The places of the base where its order may not be the order any more. */
void Rescheduler::FindAttention() {
  FindChanged();
  for (int32_t unit : changed_units_) AttendUnit(unit);
  for (int32_t bucket : changed_buckets_) AttendBucket(bucket);
  // What takes another time is no part of a glide.
  for (int32_t unit : units_->repriced()) {
    if (place_[unit] != kNever && !IsChanged(unit)) attention_.push_back({place_[unit], -1});
  }
  std::sort(attention_.begin(), attention_.end());
}

void Rescheduler::FindChanged() {
  for (int32_t unit : units_->gone()) MarkChanged(unit);
  for (int32_t unit : units_->reordered()) {
    (units_->IsBucket(unit) ? changed_buckets_ : changed_units_).push_back(unit);
  }
  if (!units_->postponed().empty()) FindPostponed();
  for (int32_t unit : changed_units_) MarkChanged(unit);
  for (int32_t bucket : changed_buckets_) MarkChanged(bucket);
  // What became late is passed in the prefix without a trace: its buckets must not rely on it.
  for (int32_t unit : changed_units_) {
    if (!units_->IsLate(unit)) continue;
    for (int32_t after : units_->successors(unit)) {
      if (!units_->IsBucket(after) || IsChanged(after)) continue;
      MarkChanged(after);
      changed_buckets_.push_back(after);
    }
  }
}

void Rescheduler::AttendUnit(int32_t unit) {
  if (units_->IsLate(unit)) return;
  // Producers that changed or are not in the prefix release the unit when they are issued.
  int32_t place = 0;
  for (int32_t before : units_->predecessors(unit)) {
    bool glides = !IsChanged(before) && place_[before] != kNever;
    if (glides) place = std::max(place, place_[before] + 1);
  }
  attention_.push_back({place, unit});
}

/*! \brief The last producer that glides may release the bucket; so do those that do not glide. */
void Rescheduler::AttendBucket(int32_t bucket) {
  int32_t place = -1;
  for (int32_t before : units_->predecessors(bucket)) {
    if (!IsChanged(before) && place_[before] != kNever) place = std::max(place, place_[before]);
  }
  if (place >= 0) attention_.push_back({place, -1});
}

/*! \brief Which of the less urgent units have to be looked at. */
void Rescheduler::FindPostponed() {
  // For a moment level_size_ counts units that are as they were, and those that became less urgent.
  auto leave = [&](int32_t unit, int32_t change) {
    if (level_[unit] != kNotUrgent) level_size_[level_[unit]] += change;
  };
  auto count = [&](int32_t change) {
    for (int32_t unit : units_->gone()) leave(unit, -change);
    for (int32_t unit : units_->reordered()) leave(unit, -change);
    for (int32_t unit : units_->postponed()) {
      if (units_->IsLate(unit)) continue;
      leave(unit, -change);
      level_size_[units_->urgency(unit)] += change;
    }
  };
  count(1);
  last_from_ = last_to_ = -1;
  for (int32_t unit : units_->postponed()) {
    // Late units are not in the prefix, and chosen by their new key behind it.
    if (!units_->IsLate(unit) && !KeepsPlace(unit)) changed_units_.push_back(unit);
  }
  count(-1);
}

/*!
 * \brief Whether no unit of the base that came after this one, at the same time, now comes before.
 *
 * None has an urgency between the old one and the new one, and those that had, or that have the
 * new one, have larger names.
 */
bool Rescheduler::KeepsPlace(int32_t unit) {
  int32_t from = level_[unit], to = units_->urgency(unit);
  if (from != last_from_ || to != last_to_) {
    last_from_ = from;
    last_to_ = to;
    smallest_between_ = level_size_[from] > 0 ? -1 : level_min_[to];
    for (int32_t level = from + 1; level < to; ++level) {
      smallest_between_ =
          std::min(smallest_between_, level_size_[level] > 0 ? -1 : level_min_[level]);
    }
  }
  return unit < smallest_between_;
}

void Rescheduler::MarkChanged(int32_t unit) {
  changed_[unit] = epoch_;
  if (place_[unit] != kNever) attention_.push_back({place_[unit], -1});
}

void Rescheduler::Walk() {
  int32_t end = static_cast<int32_t>(prefix_.size());
  int32_t attended = -1;
  while (cursor_ < end) {
    if (num_deviations_ == 0 && extras_.empty() && cursor_ != attended) {
      bool more = next_attention_ < attention_.size();
      if (!Glide(more ? std::min(attention_[next_attention_].place, end) : end)) return;
      if (cursor_ == end) return;
    }
    for (; next_attention_ < attention_.size() && attention_[next_attention_].place == cursor_;
         ++next_attention_) {
      attended = cursor_;
      int32_t unit = attention_[next_attention_].unit;
      if (unit >= 0 && state(unit) < kExtra && IsReady(unit)) PushExtra(unit);
    }
    if (!Merge()) return;
  }
}

/*! \brief Issues what the base issues; false where the prefix ends. */
bool Rescheduler::Glide(int32_t until) {
  auto release_is_before = [&](int32_t place) {
    return next_release_ < releases_.size() && releases_[next_release_].place < place;
  };
  // Those were released, or not, by the units that have been issued one by one.
  while (release_is_before(cursor_)) ++next_release_;
  while (cursor_ < until) {
    int32_t stop = release_is_before(until) ? releases_[next_release_].place + 1 : until;
    if (alarm_ != kNoAlarm) {
      if (Ends(units_->Key(prefix_[cursor_]))) return false;
      stop = cursor_ + 1;
    }
    Advance(stop);
    for (; release_is_before(cursor_); ++next_release_) {
      int32_t bucket = releases_[next_release_].bucket;
      if (!IsChanged(bucket)) IssueBucket(bucket);
    }
  }
  return true;
}

/*! \brief Issues units that release nothing but one another, and at the end maybe a bucket. */
void Rescheduler::Advance(int32_t stop) {
  order_.insert(order_.end(), prefix_.begin() + cursor_, prefix_.begin() + stop);
  num_left_ -= stop - cursor_;
  work_left_ -= time_before_[stop] - time_before_[cursor_];
  if (contention_permille_ != 1000) {
    for (; cursor_ < stop && communication_free_ > now_; ++cursor_) {
      now_ = FinishOfCompute(now_, time_before_[cursor_ + 1] - time_before_[cursor_]);
    }
  }
  now_ += time_before_[stop] - time_before_[cursor_];
  cursor_ = stop;
}

/*! \brief One step where both strategies differ: passes a unit of the base or issues one unit. */
bool Rescheduler::Merge() {
  int32_t unit = prefix_[cursor_];
  if (IsChanged(unit) || state(unit) != kAsInBase) {
    Pass(unit);
    return true;
  }
  uint64_t key = units_->Key(unit);
  if (!extras_.empty() && extras_.front() < key) return IssueExtra();
  if (!IsReady(unit)) {
    Pass(unit);
    deferred_.push_back(unit);
    return true;
  }
  if (Ends(key)) return false;
  ++cursor_;
  IssueCompute(unit);
  ReleaseFrom(unit);
  return true;
}

/*! \brief The base has issued the unit at the cursor; whether we have is noted. */
void Rescheduler::Pass(int32_t unit) {
  ++cursor_;
  if (!units_->exists(unit)) return;
  State known = state(unit);
  if (known == kAsInBase) SetState(unit, kDeferred);
  if (!units_->IsLate(unit)) num_deviations_ += known == kIssued ? -1 : 1;
}

bool Rescheduler::IssueExtra() {
  if (Ends(extras_.front())) return false;
  std::pop_heap(extras_.begin(), extras_.end(), std::greater<uint64_t>());
  int32_t unit = static_cast<int32_t>(extras_.back() & 0xffffffffU);
  extras_.pop_back();
  if (place_[unit] != kNever) num_deviations_ += place_[unit] < cursor_ ? -1 : 1;
  SetState(unit, kIssued);
  IssueCompute(unit);
  ReleaseFrom(unit);
  // The base does not know when a bucket is released whose producers it has in part behind its
  // prefix: from here on it is found out unit by unit.
  if (place_[unit] == kNever && HasWaitingBucket(unit)) ++num_deviations_;
  return true;
}

bool Rescheduler::HasWaitingBucket(int32_t unit) {
  for (int32_t after : units_->successors(unit)) {
    if (units_->IsBucket(after) && !IsBucketReady(after)) return true;
  }
  return false;
}

/*!
 * \brief Starts the buckets that `unit` releases; another unit that it releases is an extra, unless
 * the base will choose it in its turn.
 */
void Rescheduler::ReleaseFrom(int32_t unit) {
  for (int32_t after : units_->successors(unit)) {
    if (units_->IsBucket(after)) {
      if (IsBucketReady(after)) ready_buckets_.emplace_back(now_, after);
      continue;
    }
    if (units_->IsLate(after) || state(after) >= kExtra || !IsReady(after)) continue;
    bool in_turn = !IsChanged(after) && state(after) == kAsInBase && IsReadyInBase(after);
    if (!in_turn) PushExtra(after);
  }
  IssueBuckets();
}

void Rescheduler::PushExtra(int32_t unit) {
  SetState(unit, kExtra);
  extras_.push_back(units_->Key(unit));
  std::push_heap(extras_.begin(), extras_.end(), std::greater<uint64_t>());
}

}  // namespace disco_fuse
