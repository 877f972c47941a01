#include "strategy/live_units.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace disco_fuse {

LiveUnits::LiveUnits(const OpGraph& graph)
    : graph_(&graph),
      home_(graph.num_ops(), -1),
      keys_(MemberKeys(graph.num_ops())),
      is_bucket_(graph.num_ops()),
      facts_(graph.num_ops()),
      late_(graph.num_ops(), 0),
      predecessors_(graph.num_ops()),
      successors_(graph.num_ops()),
      look_(graph.num_ops(), 0),
      seen_(graph.num_ops(), 0) {
  for (int32_t op = 0; op < graph.num_ops(); ++op) is_bucket_[op] = graph.IsAllReduce(op) ? 1 : 0;
}

void LiveUnits::MoveTo(const Grouping& grouping) {
  grouping_ = &grouping;
  Begin();
  FindDifferences();
  for (int32_t unit : gone_) Remove(unit);
  NotePriorities();
  for (int32_t unit : noted_) {
    if (!exists(unit)) continue;
    if ((look_[unit] & kContent) != 0) LookAtContent(unit);
    if ((look_[unit] & kPredecessors) != 0) LookAtPredecessors(unit);
  }
  SettleDependence();
  SettleUrgency();
  SettleLate();
  for (int32_t unit : noted_) {
    if (!exists(unit)) continue;
    if ((look_[unit] & (kNew | kOtherOrder)) != 0) {
      reordered_.push_back(unit);
    } else if ((look_[unit] & kPostponed) != 0) {
      postponed_.push_back(unit);
    }
    if ((look_[unit] & (kNew | kOtherPrice)) != 0) repriced_.push_back(unit);
  }
}

void LiveUnits::Undo() {
  for (int32_t unit : noted_) {
    if (IsUrgentDependent(unit)) urgent_dependents_.erase(Key(unit));
  }
  for (const auto& [op, group] : log_.homes) home_[op] = group;
  if (log_.has_copies) copies_.swap(log_.copies);
  priorities_ = log_.priorities;
  num_units_ = log_.num_units;
  num_buckets_ = log_.num_buckets;
  for (const auto& [unit, facts] : log_.facts) {
    facts_[unit] = facts;
    late_[unit] = facts.late ? 1 : 0;
  }
  for (size_t i = 0; i < log_.num_predecessors; ++i) {
    predecessors_[log_.predecessors[i].first].swap(log_.predecessors[i].second);
  }
  for (const auto& [before, unit] : log_.links) EraseSuccessor(before, unit);
  for (const auto& [before, unit] : log_.unlinks) successors_[before].push_back(unit);
  for (int32_t unit : noted_) {
    if (IsUrgentDependent(unit)) urgent_dependents_.insert(Key(unit));
  }
}

void LiveUnits::Begin() {
  for (int32_t unit : noted_) look_[unit] = 0;
  noted_.clear();
  gone_.clear();
  reordered_.clear();
  postponed_.clear();
  repriced_.clear();
  seeds_.clear();
  log_.num_units = num_units_;
  log_.num_buckets = num_buckets_;
  log_.homes.clear();
  log_.has_copies = false;
  log_.priorities = priorities_;
  log_.facts.clear();
  log_.num_predecessors = 0;
  log_.links.clear();
  log_.unlinks.clear();
}

/*! \brief Remembers to look at a unit again. */
void LiveUnits::Note(int32_t unit, int32_t look) {
  if (look_[unit] == 0) {
    noted_.push_back(unit);
    log_.facts.emplace_back(unit, facts_[unit]);
    // Its key may change; what remains of it enters again at the end.
    if (IsUrgentDependent(unit)) urgent_dependents_.erase(Key(unit));
  }
  look_[unit] |= static_cast<uint8_t>(look | kNoted);
}

void LiveUnits::FindDifferences() {
  constexpr int32_t kBlock = 64; /*!< ops that are compared at once */
  const std::vector<int32_t>& homes = grouping_->homes();
  int32_t num_ops = graph_->num_ops();
  for (int32_t begin = 0; begin < num_ops; begin += kBlock) {
    int32_t end = std::min(begin + kBlock, num_ops);
    if (std::equal(homes.begin() + begin, homes.begin() + end, home_.begin() + begin)) continue;
    for (int32_t op = begin; op < end; ++op) {
      if (homes[op] != home_[op]) log_.homes.emplace_back(op, home_[op]);
    }
  }
  for (const auto& [op, before] : log_.homes) NoteHome(op, before);
  NoteCopies();
  for (const auto& [op, before] : log_.homes) {
    if (before == op) {
      gone_.push_back(op);
      CountUnit(op, -1);
    }
    if (homes[op] == op) {
      Note(op, kNew);
      CountUnit(op, 1);
    }
  }
  for (const auto& entry : log_.homes) home_[entry.first] = homes[entry.first];
}

void LiveUnits::CountUnit(int32_t unit, int32_t change) {
  num_units_ += change;
  if (IsBucket(unit)) num_buckets_ += change;
}

void LiveUnits::NoteHome(int32_t op, int32_t before) {
  if (before >= 0) Note(before, kContent | kPredecessors);
  Note(grouping_->home(op), kContent | kPredecessors);
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
  log_.has_copies = true;
  log_.copies.swap(copies_);
  copies_ = copies;
}

void LiveUnits::NoteCopy(const Copy& copy) {
  Note(copy.group, kContent | kPredecessors);
  Note(grouping_->home(copy.op), kContent);
  NoteNeighbours(copy.op);
}

/*! \brief Who computes `op` decides what its producers write and what overwriters wait for. */
void LiveUnits::NoteNeighbours(int32_t op) {
  for (const DataEnd& end : graph_->producers(op)) Note(grouping_->home(end.op), kContent);
  for (int32_t writer : graph_->order_after(op)) Note(grouping_->home(writer), kPredecessors);
}

/*! \brief Priorities that are new, gone or other ones change the urgency of their units. */
void LiveUnits::NotePriorities() {
  const std::vector<Priority>& priorities = grouping_->priorities();
  if (priorities == priorities_) return;
  for (const auto* list : {&std::as_const(priorities_), &priorities}) {
    for (const Priority& given : *list) {
      if (!exists(given.op)) continue;
      int32_t rank = grouping_->PriorityOf(given.op);
      if (rank == facts_[given.op].priority) continue;
      Note(given.op, kNoted);
      facts_[given.op].priority = rank;
      seeds_.push_back(given.op);
    }
  }
  priorities_ = priorities;
}

void LiveUnits::Remove(int32_t unit) {
  // Units that come after it have been noted, and will unlink themselves.
  SavePredecessors(unit);
  for (int32_t before : predecessors_[unit]) Unlink(before, unit);
  predecessors_[unit].clear();
  facts_[unit] = Facts{};
  late_[unit] = 0;
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
                         std::vector<int32_t>* outputs) {
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
    const Hash128& key = keys_[2 * op + (IsOutput(*grouping_, unit, op) ? 1 : 0)];
    content.hi += key.hi;
    content.lo += key.lo;
    if (is_bucket_[unit] == 0) continue;
    bytes += graph_->op(op).bytes_written;
    rank = std::max(rank, graph_->ProductionRank(op));
  }
  Facts& facts = facts_[unit];
  if (content != facts.content) look_[unit] |= kOtherPrice;
  if (rank != facts.production_rank) seeds_.push_back(unit);
  facts.content = content;
  facts.bucket_bytes = bytes;
  facts.production_rank = rank;
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
  SavePredecessors(unit);
  for (int32_t before : old) {
    if (seen_[before] != epoch_) Unlink(before, unit);
    // What stays loses its mark and is not linked twice.
    seen_[before] = epoch_ - 1;
  }
  for (int32_t before : found_) {
    if (seen_[before] == epoch_) Link(before, unit);
  }
  old.swap(found_);
}

void LiveUnits::SavePredecessors(int32_t unit) {
  if (log_.num_predecessors == log_.predecessors.size()) log_.predecessors.emplace_back();
  auto& entry = log_.predecessors[log_.num_predecessors++];
  entry.first = unit;
  entry.second = predecessors_[unit];
}

void LiveUnits::Link(int32_t before, int32_t unit) {
  successors_[before].push_back(unit);
  log_.links.emplace_back(before, unit);
  if (facts_[unit].urgency < facts_[before].urgency) seeds_.push_back(before);
}

void LiveUnits::Unlink(int32_t before, int32_t unit) {
  EraseSuccessor(before, unit);
  log_.unlinks.emplace_back(before, unit);
  if (facts_[unit].urgency == facts_[before].urgency) seeds_.push_back(before);
}

void LiveUnits::EraseSuccessor(int32_t before, int32_t unit) {
  std::vector<int32_t>& after = successors_[before];
  *std::find(after.begin(), after.end(), unit) = after.back();
  after.pop_back();
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

bool LiveUnits::FindDependence(int32_t unit) const {
  for (int32_t before : predecessors_[unit]) {
    if (is_bucket_[before] != 0 || facts_[before].dependent) return true;
  }
  return false;
}

/*! \brief Downstream of what changed, in topological order. */
void LiveUnits::SettleDependence() {
  for (size_t i = 0; i < noted_.size(); ++i) {
    int32_t unit = noted_[i];
    if ((look_[unit] & (kNew | kOtherOrder)) == 0 || !exists(unit)) continue;
    if (FindDependence(unit) != facts_[unit].dependent) Push(unit, /*last_first=*/false);
  }
  while (!queue_.empty()) {
    int32_t unit = Pop();
    bool dependent = FindDependence(unit);
    if (dependent == facts_[unit].dependent) continue;
    facts_[unit].dependent = dependent;
    for (int32_t after : successors_[unit]) {
      if (facts_[after].dependent != dependent) Push(after, /*last_first=*/false);
    }
  }
}

/*! \brief Of a unit as such: buckets are ranked in the order in which they are produced. */
int32_t LiveUnits::OwnUrgency(int32_t unit) const {
  return is_bucket_[unit] != 0 ? facts_[unit].production_rank : kNotUrgent;
}

int32_t LiveUnits::FindUrgency(int32_t unit) const {
  if (facts_[unit].priority != kNoPriority) return facts_[unit].priority;
  int32_t urgency = OwnUrgency(unit);
  for (int32_t after : successors_[unit]) urgency = std::min(urgency, facts_[after].urgency);
  return urgency;
}

/*! \brief Upstream of what changed, in reverse topological order. */
void LiveUnits::SettleUrgency() {
  for (size_t i = 0; i < noted_.size(); ++i) {
    if ((look_[noted_[i]] & kNew) != 0) seeds_.push_back(noted_[i]);
  }
  for (int32_t unit : seeds_) {
    if (exists(unit) && FindUrgency(unit) != facts_[unit].urgency) Push(unit, /*last_first=*/true);
  }
  while (!queue_.empty()) {
    int32_t unit = Pop();
    int32_t before = facts_[unit].urgency;
    int32_t after = FindUrgency(unit);
    if (after == before) continue;
    facts_[unit].urgency = after;
    look_[unit] |= after < before ? kOtherOrder : kPostponed;
    for (int32_t producer : predecessors_[unit]) {
      // Others have a more urgent reason to be urgent.
      int32_t theirs = facts_[producer].urgency;
      if (theirs == before || theirs > after) Push(producer, /*last_first=*/true);
    }
  }
}

bool LiveUnits::IsUrgentDependent(int32_t unit) const {
  return facts_[unit].dependent && facts_[unit].urgency != kNotUrgent && is_bucket_[unit] == 0 &&
         exists(unit);
}

void LiveUnits::SettleLate() {
  for (int32_t unit : noted_) {
    if (!exists(unit)) continue;
    Facts& facts = facts_[unit];
    bool late = is_bucket_[unit] != 0 || facts.dependent || facts.urgency == kNotUrgent;
    if (late != facts.late) {
      look_[unit] |= kOtherOrder;
      facts.late = late;
      late_[unit] = late ? 1 : 0;
    }
    if (IsUrgentDependent(unit)) urgent_dependents_.insert(Key(unit));
  }
}

}  // namespace disco_fuse
