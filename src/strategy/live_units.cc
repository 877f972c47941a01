#include "strategy/live_units.h"

#include <algorithm>
#include <functional>

namespace disco_fuse {

LiveUnits::LiveUnits(const OpGraph& graph)
    : graph_(&graph),
      home_(graph.num_ops(), -1),
      is_bucket_(graph.num_ops()),
      predecessors_(graph.num_ops()),
      successors_(graph.num_ops()),
      keys_(MemberKeys(graph.num_ops())),
      content_(graph.num_ops()),
      bucket_bytes_(graph.num_ops(), 0),
      production_rank_(graph.num_ops(), -1),
      urgency_(graph.num_ops(), kNotUrgent),
      dependent_(graph.num_ops(), 0),
      late_(graph.num_ops(), 0),
      num_late_successors_(graph.num_ops(), 0),
      look_(graph.num_ops(), 0),
      seen_(graph.num_ops(), 0) {
  for (int32_t op = 0; op < graph.num_ops(); ++op) is_bucket_[op] = graph.IsAllReduce(op) ? 1 : 0;
}

void LiveUnits::MoveTo(const Grouping& grouping) {
  grouping_ = &grouping;
  for (int32_t unit : noted_) look_[unit] = 0;
  noted_.clear();
  gone_.clear();
  reordered_.clear();
  repriced_.clear();
  seeds_.clear();
  FindDifferences();
  for (int32_t unit : gone_) Remove(unit);
  for (size_t i = 0; i < noted_.size(); ++i) {
    int32_t unit = noted_[i];
    if (!exists(unit)) continue;
    if ((look_[unit] & kContent) != 0) LookAtContent(unit);
    if ((look_[unit] & kPredecessors) != 0) LookAtPredecessors(unit);
  }
  SettleDependence();
  SettleUrgency();
  SettleLate();
  for (int32_t unit : noted_) {
    if (!exists(unit)) continue;
    if ((look_[unit] & (kNew | kOtherOrder)) != 0) reordered_.push_back(unit);
    if ((look_[unit] & (kNew | kOtherPrice)) != 0) repriced_.push_back(unit);
  }
}

/*! \brief Remembers to look at a unit again. */
void LiveUnits::Note(int32_t unit, uint8_t look) {
  if (look_[unit] == 0) {
    noted_.push_back(unit);
    // Its key may change; what remains of it enters again at the end.
    if (!urgent_dependents_.empty() && IsUrgentDependent(unit)) {
      urgent_dependents_.erase(Key(unit));
    }
  }
  look_[unit] |= look | kNoted;
}

void LiveUnits::FindDifferences() {
  constexpr int32_t kBlock = 64; /*!< ops that are compared at once */
  const std::vector<int32_t>& homes = grouping_->homes();
  int32_t num_ops = graph_->num_ops();
  found_.clear();
  for (int32_t begin = 0; begin < num_ops; begin += kBlock) {
    int32_t end = std::min(begin + kBlock, num_ops);
    if (std::equal(homes.begin() + begin, homes.begin() + end, home_.begin() + begin)) continue;
    for (int32_t op = begin; op < end; ++op) {
      if (homes[op] != home_[op]) found_.push_back(op);
    }
  }
  for (int32_t op : found_) NoteHome(op, home_[op]);
  NoteCopies();
  for (int32_t op : found_) {
    if (home_[op] == op) gone_.push_back(op);
    if (homes[op] == op) Note(op, kNew | kAll);
    num_units_ += (homes[op] == op ? 1 : 0) - (home_[op] == op ? 1 : 0);
  }
  for (int32_t op : found_) home_[op] = homes[op];
}

void LiveUnits::NoteHome(int32_t op, int32_t before) {
  if (before >= 0) Note(before, kAll);
  Note(grouping_->home(op), kAll);
  for (const DataEnd& end : graph_->consumers(op)) {
    grouping_->ForEachHolder(end.op, [&](int32_t holder) { Note(holder, kPredecessors); });
  }
  NoteNeighbours(op);
}

void LiveUnits::NoteCopies() {
  const std::vector<Copy>& copies = grouping_->copies();
  if (copies == copies_) return;
  size_t i = 0, j = 0;
  while (i < copies_.size() || j < copies.size()) {
    if (j == copies.size() || (i < copies_.size() && copies_[i] < copies[j])) {
      NoteCopy(copies_[i++]);
    } else if (i == copies_.size() || copies[j] < copies_[i]) {
      NoteCopy(copies[j++]);
    } else {
      ++i;
      ++j;
    }
  }
  copies_ = copies;
}

void LiveUnits::NoteCopy(const Copy& copy) {
  Note(copy.group, kAll);
  Note(grouping_->home(copy.op), kContent);
  NoteNeighbours(copy.op);
}

/*! \brief Who computes `op` decides what its producers write and what overwriters wait for. */
void LiveUnits::NoteNeighbours(int32_t op) {
  for (const DataEnd& end : graph_->producers(op)) Note(grouping_->home(end.op), kContent);
  for (int32_t writer : graph_->order_after(op)) Note(grouping_->home(writer), kPredecessors);
}

void LiveUnits::Remove(int32_t unit) {
  // Units that come after it have been noted, and will unlink themselves.
  for (int32_t before : predecessors_[unit]) Unlink(before, unit);
  predecessors_[unit].clear();
  urgency_[unit] = kNotUrgent;
  dependent_[unit] = late_[unit] = 0;
  content_[unit] = Hash128{};
}

bool LiveUnits::IsOutput(const Grouping& grouping, int32_t unit, int32_t op) {
  if (grouping.home(op) != unit) return false;
  if (grouping.graph().MustWrite(op)) return true;
  bool leaves = false;
  for (const DataEnd& end : grouping.graph().consumers(op)) {
    grouping.ForEachHolder(end.op,
                           [&](int32_t group) { leaves = leaves || !grouping.Holds(group, op); });
    if (leaves) return true;
  }
  return false;
}

void LiveUnits::Describe(const Grouping& grouping, int32_t unit, std::vector<int32_t>* members,
                         std::vector<int32_t>* outputs) const {
  grouping.Members(unit, members);
  outputs->clear();
  for (int32_t op : *members) {
    if (IsOutput(grouping, unit, op)) outputs->push_back(op);
  }
}

void LiveUnits::LookAtContent(int32_t unit) {
  Hash128 content;
  int64_t bytes = 0;
  int32_t rank = -1;
  for (int32_t op : grouping_->MembersUnordered(unit)) {
    bool is_output = IsOutput(*grouping_, unit, op);
    const Hash128& key = keys_[2 * op + (is_output ? 1 : 0)];
    content.hi += key.hi;
    content.lo += key.lo;
    if (is_bucket_[unit] == 0) continue;
    bytes += graph_->op(op).bytes_written;
    rank = std::max(rank, graph_->ProductionRank(op));
  }
  if (content != content_[unit]) look_[unit] |= kOtherPrice;
  content_[unit] = content;
  bucket_bytes_[unit] = bytes;
  if (rank != production_rank_[unit]) seeds_.push_back(unit);
  production_rank_[unit] = rank;
}

void LiveUnits::CollectPredecessors(int32_t unit) {
  found_.clear();
  ++epoch_;
  auto add = [&](int32_t before) {
    if (before == unit || seen_[before] == epoch_) return;
    seen_[before] = epoch_;
    found_.push_back(before);
  };
  for (int32_t op : grouping_->MembersUnordered(unit)) {
    for (const DataEnd& end : graph_->producers(op)) {
      if (!grouping_->Holds(unit, end.op)) add(grouping_->home(end.op));
    }
    if (grouping_->home(op) != unit) continue;
    for (int32_t reader : graph_->order_before(op)) grouping_->ForEachHolder(reader, add);
  }
}

void LiveUnits::LookAtPredecessors(int32_t unit) {
  CollectPredecessors(unit);
  std::vector<int32_t>& old = predecessors_[unit];
  bool same = old.size() == found_.size();
  for (int32_t before : old) same = same && seen_[before] == epoch_;
  if (same) return;
  look_[unit] |= kOtherOrder;
  for (int32_t before : old) {
    if (seen_[before] != epoch_) Unlink(before, unit);
    seen_[before] = epoch_ - 1;
  }
  // What is in `old` as well has lost its mark and is linked already.
  for (int32_t before : found_) {
    if (seen_[before] == epoch_) Link(before, unit);
  }
  old.swap(found_);
}

void LiveUnits::Link(int32_t before, int32_t unit) {
  successors_[before].push_back(unit);
  num_late_successors_[before] += late_[unit];
  if (urgency_[unit] < urgency_[before]) seeds_.push_back(before);
}

void LiveUnits::Unlink(int32_t before, int32_t unit) {
  std::vector<int32_t>& after = successors_[before];
  *std::find(after.begin(), after.end(), unit) = after.back();
  after.pop_back();
  num_late_successors_[before] -= late_[unit];
  if (urgency_[unit] == urgency_[before]) seeds_.push_back(before);
}

void LiveUnits::Push(int32_t unit, bool last_first) {
  if (!exists(unit) || (look_[unit] & kQueued) != 0) return;
  Note(unit, kQueued);
  int32_t place = grouping_->position(unit);
  queue_.emplace_back(last_first ? -place : place, unit);
  std::push_heap(queue_.begin(), queue_.end(), std::greater<std::pair<int32_t, int32_t>>());
}

int32_t LiveUnits::Pop() {
  std::pop_heap(queue_.begin(), queue_.end(), std::greater<std::pair<int32_t, int32_t>>());
  int32_t unit = queue_.back().second;
  queue_.pop_back();
  look_[unit] &= static_cast<uint8_t>(~kQueued);
  return unit;
}

/*! \brief Downstream of what changed, each unit once: predecessors come first. */
void LiveUnits::SettleDependence() {
  for (size_t i = 0; i < noted_.size(); ++i) {
    if ((look_[noted_[i]] & (kNew | kOtherOrder)) != 0) Push(noted_[i], /*last_first=*/false);
  }
  while (!queue_.empty()) {
    int32_t unit = Pop();
    uint8_t dependent = 0;
    for (int32_t before : predecessors_[unit]) dependent |= is_bucket_[before] | dependent_[before];
    if (dependent == dependent_[unit]) continue;
    dependent_[unit] = dependent;
    for (int32_t after : successors_[unit]) Push(after, /*last_first=*/false);
  }
}

/*! \brief Of a unit as such: buckets are ranked in the order in which they are produced. */
int32_t LiveUnits::OwnUrgency(int32_t unit) const {
  return is_bucket_[unit] != 0 ? production_rank_[unit] : kNotUrgent;
}

/*! \brief Upstream of what changed, each unit once: successors come first. */
void LiveUnits::SettleUrgency() {
  for (int32_t unit : seeds_) Push(unit, /*last_first=*/true);
  for (size_t i = 0; i < noted_.size(); ++i) {
    if ((look_[noted_[i]] & kNew) != 0) Push(noted_[i], /*last_first=*/true);
  }
  while (!queue_.empty()) {
    int32_t unit = Pop();
    int32_t urgency = OwnUrgency(unit);
    for (int32_t after : successors_[unit]) urgency = std::min(urgency, urgency_[after]);
    if (urgency == urgency_[unit]) continue;
    urgency_[unit] = urgency;
    look_[unit] |= kOtherOrder;
    for (int32_t before : predecessors_[unit]) Push(before, /*last_first=*/true);
  }
}

bool LiveUnits::IsUrgentDependent(int32_t unit) const {
  return exists(unit) && is_bucket_[unit] == 0 && dependent_[unit] != 0 &&
         urgency_[unit] != kNotUrgent;
}

void LiveUnits::SettleLate() {
  for (int32_t unit : noted_) {
    if (!exists(unit)) continue;
    uint8_t late = is_bucket_[unit] | dependent_[unit] | (urgency_[unit] == kNotUrgent ? 1 : 0);
    if (late != late_[unit]) {
      look_[unit] |= kOtherOrder;
      for (int32_t before : predecessors_[unit]) num_late_successors_[before] += late - late_[unit];
      late_[unit] = late;
    }
    if (IsUrgentDependent(unit)) urgent_dependents_.insert(Key(unit));
  }
}

}  // namespace disco_fuse
