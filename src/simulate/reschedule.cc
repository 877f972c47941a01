#include "simulate/reschedule.h"

#include <algorithm>
#include <functional>
#include <stdexcept>

namespace disco_fuse {

Rescheduler::Rescheduler(const OpGraph& graph, int32_t contention_permille)
    : contention_permille_(contention_permille),
      place_(graph.num_ops(), kNever),
      level_(graph.num_ops(), kNotUrgent),
      level_size_(graph.num_ops(), 0),
      level_min_(graph.num_ops(), kNever),
      state_(graph.num_ops(), 0),
      changed_(graph.num_ops(), 0),
      counted_(graph.num_ops(), 0),
      num_missing_(graph.num_ops(), 0) {
  for (const Edge& edge : graph.edges()) {
    bool nested = graph.IsAllReduce(edge.producer) && graph.IsAllReduce(edge.consumer);
    has_nested_buckets_ = has_nested_buckets_ || nested;
  }
}

Nanoseconds Rescheduler::Run(const LiveUnits& units, const std::vector<int64_t>& durations_ns) {
  Begin(units, durations_ns);
  FindAttention();
  Walk();
  EnterRest();
  ScheduleRest();
  return Nanoseconds(std::max(now_, communication_free_));
}

void Rescheduler::SetBase(const LiveUnits& units, const std::vector<int64_t>& durations_ns) {
  for (const std::vector<int32_t>* list : {&prefix_, &rest_}) {
    for (int32_t unit : *list) {
      if (level_[unit] != kNotUrgent) {
        level_size_[level_[unit]] = 0;
        level_min_[level_[unit]] = kNever;
      }
      level_[unit] = kNotUrgent;
      place_[unit] = kNever;
    }
  }
  prefix_.clear();
  time_before_.assign(1, 0);
  triggers_.clear();
  rest_.clear();
  bool in_prefix = true;
  for (int32_t unit : order_) {
    if (units.IsBucket(unit)) continue;
    in_prefix = in_prefix && !units.IsLate(unit) && units.Key(unit) < limit_;
    if (in_prefix) {
      place_[unit] = static_cast<int32_t>(prefix_.size());
      time_before_.push_back(time_before_.back() + durations_ns[unit]);
      if (units.HasLateSuccessor(unit)) triggers_.push_back(place_[unit]);
    }
    (in_prefix ? prefix_ : rest_).push_back(unit);
    if (units.IsLate(unit)) continue;
    int32_t level = units.urgency(unit);
    level_[unit] = level;
    ++level_size_[level];
    level_min_[level] = std::min(level_min_[level], unit);
  }
}

void Rescheduler::Begin(const LiveUnits& units, const std::vector<int64_t>& durations_ns) {
  units_ = &units;
  durations_ = durations_ns.data();
  ++epoch_;
  changed_units_.clear();
  attention_.clear();
  next_attention_ = next_trigger_ = 0;
  cursor_ = num_deviations_ = 0;
  limit_ = units.SmallestLateKey();
  extras_.clear();
  deferred_.clear();
  order_.clear();
  now_ = communication_free_ = 0;
  in_flight_.clear();
  next_end_ = 0;
  ready_buckets_.clear();
  ready_.clear();
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

/*! \brief The places of the base where its order may not be the order any more. */
void Rescheduler::FindAttention() {
  for (int32_t unit : units_->gone()) MarkChanged(unit);
  for (int32_t unit : units_->reordered()) {
    if (!units_->IsBucket(unit)) changed_units_.push_back(unit);
  }
  if (!units_->postponed().empty()) FindPostponed();
  for (int32_t unit : changed_units_) MarkChanged(unit);
  for (int32_t unit : changed_units_) {
    if (units_->IsLate(unit)) continue;
    // Producers that changed or are not in the prefix release the unit when they are issued.
    int32_t place = 0;
    for (int32_t before : units_->predecessors(unit)) {
      bool glides = !IsChanged(before) && place_[before] != kNever;
      if (glides) place = std::max(place, place_[before] + 1);
    }
    attention_.push_back({place, unit});
  }
  // What takes another time, or may have become a trigger, is no part of a jump.
  auto stop_at = [&](int32_t unit) {
    if (place_[unit] != kNever && !IsChanged(unit)) attention_.push_back({place_[unit], -1});
  };
  for (int32_t unit : units_->repriced()) stop_at(unit);
  units_->ForEachRecounted(stop_at);
  std::sort(attention_.begin(), attention_.end());
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
  while (cursor_ < until) {
    while (next_trigger_ < triggers_.size() && triggers_[next_trigger_] < cursor_) ++next_trigger_;
    int32_t stop = until;
    if (next_trigger_ < triggers_.size()) stop = std::min(stop, triggers_[next_trigger_]);
    if (stop > cursor_ && MayJump()) {
      order_.insert(order_.end(), prefix_.begin() + cursor_, prefix_.begin() + stop);
      now_ += time_before_[stop] - time_before_[cursor_];
      cursor_ = stop;
      continue;
    }
    if (units_->Key(prefix_[cursor_]) >= limit_) return false;
    IssueCompute(prefix_[cursor_++]);
  }
  return true;
}

/*!
 * \brief Whether units that release nothing but one another can be issued all at once.
 *
 * Buckets that end meanwhile are noticed at the next trigger: that is early enough, unless another
 * bucket waits for them. Units without urgency are not in the prefix, whatever the limit.
 */
bool Rescheduler::MayJump() const {
  bool full_speed = contention_permille_ == 1000 || communication_free_ <= now_;
  return full_speed && !has_nested_buckets_ && limit_ >> 32 == kNotUrgent;
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
  if (key >= limit_) return false;
  ++cursor_;
  IssueCompute(unit);
  ReleaseEarly(unit);
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
  if (extras_.front() >= limit_) return false;
  std::pop_heap(extras_.begin(), extras_.end(), std::greater<uint64_t>());
  int32_t unit = static_cast<int32_t>(extras_.back() & 0xffffffffU);
  extras_.pop_back();
  if (place_[unit] != kNever) num_deviations_ += place_[unit] < cursor_ ? -1 : 1;
  SetState(unit, kIssued);
  IssueCompute(unit);
  ReleaseEarly(unit);
  return true;
}

/*! \brief What `unit` releases is an extra, unless the base will choose it in its turn. */
void Rescheduler::ReleaseEarly(int32_t unit) {
  for (int32_t after : units_->successors(unit)) {
    if (units_->IsLate(after) || state(after) >= kExtra || !IsReady(after)) continue;
    bool in_turn = !IsChanged(after) && state(after) == kAsInBase && IsReadyInBase(after);
    if (!in_turn) PushExtra(after);
  }
}

void Rescheduler::PushExtra(int32_t unit) {
  SetState(unit, kExtra);
  extras_.push_back(units_->Key(unit));
  std::push_heap(extras_.begin(), extras_.end(), std::greater<uint64_t>());
}

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
    } else if (order_.size() < num_units) {
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
