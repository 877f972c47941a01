#include "strategy/grouping.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace disco_fuse {

// How copies live and die (P, C, D are groups; x' is a copy of x):
//
//   P: x ---> C: y          duplicate x       P: x ---> D: z      z goes to     C: x y    (x is at
//       \---> D: z          into C      =>                        C as well =>     D       home in
//       C)
//                                             C: x' y             nobody reads P's x, P disappears

namespace {

bool ByGroup(const Copy& a, const Copy& b) {
  return a.group != b.group ? a.group < b.group : a.op < b.op;
}

}  // namespace

Grouping::Grouping(const OpGraph& graph)
    : graph_(&graph),
      home_(graph.num_ops()),
      next_(graph.num_ops()),
      num_copies_of_(graph.num_ops()),
      group_copies_(graph.num_ops()),
      order_(graph.num_ops()),
      position_(graph.num_ops()),
      mark_(graph.num_ops(), 0) {
  for (int32_t op = 0; op < graph.num_ops(); ++op) home_.Set(op, op);
  LinkHomes();
  SetOrder(home_.values());
}

void Grouping::Load(const Strategy& strategy) {
  for (int32_t op = 0; op < graph_->num_ops(); ++op) SetHome(op, strategy.group_of()[op]);
  for (const Copy& copy : copies_) Count(copy, -1);
  copies_ = strategy.duplicated();
  IndexCopies();
  priorities_ = strategy.priorities();
  SetOrder(strategy.order());
  LinkHomes();
}

bool Grouping::Assign(const std::vector<int32_t>& labels, const std::vector<Copy>& copies) {
  std::unordered_map<int32_t, int32_t> representative;
  for (int32_t op = 0; op < graph_->num_ops(); ++op) {
    SetHome(op, representative.emplace(labels[op], op).first->second);
  }
  priorities_.clear();
  for (const Copy& copy : copies_) Count(copy, -1);
  copies_.clear();
  for (const Copy& copy : copies) {
    int32_t group = representative.at(copy.group);
    if (home_[copy.op] != group) copies_.push_back({copy.op, group});
  }
  std::sort(copies_.begin(), copies_.end());
  copies_.erase(std::unique(copies_.begin(), copies_.end()), copies_.end());
  LinkHomes();
  IndexCopies();
  for (int32_t op = 0; op < graph_->num_ops(); ++op) {
    order_.Set(op, home_[op] == op ? op : -1);
    position_.Set(op, op);
  }
  std::vector<int32_t> copied;
  for (const Copy& copy : copies_) copied.push_back(copy.op);
  Prune(std::move(copied));
  std::vector<int32_t> sorted = CanonicalOrder();
  if (sorted.size() != Order().size()) return false;
  SetOrder(sorted);
  return true;
}

void Grouping::LinkHomes() {
  // Each op goes right behind its representative, which is the smallest and thus comes first.
  for (int32_t op = 0; op < graph_->num_ops(); ++op) {
    int32_t group = home_[op];
    if (group == op) {
      next_.Set(op, op);
    } else {
      next_.Set(op, next_[group]);
      next_.Set(group, op);
    }
  }
}

/*! \brief Enters or takes back what a copy means for counts and hash. */
void Grouping::Count(const Copy& copy, int32_t change) {
  num_copies_of_.Set(copy.op, num_copies_of_[copy.op] + change);
  group_copies_.Set(copy.group, group_copies_[copy.group] + change);
  if (change > 0) {
    hash_.AddCopy(copy.op, copy.group);
  } else {
    hash_.DropCopy(copy.op, copy.group);
  }
}

/*! \brief Counts, hashes and sorts copies that were set as a whole. */
void Grouping::IndexCopies() {
  for (const Copy& copy : copies_) Count(copy, 1);
  copies_by_group_ = copies_;
  std::sort(copies_by_group_.begin(), copies_by_group_.end(), ByGroup);
}

void Grouping::SetHome(int32_t op, int32_t group) {
  hash_.DropHome(op, home_[op]);
  hash_.AddHome(op, group);
  home_.Set(op, group);
}

/*! \brief Does nothing if the group holds that copy already. */
void Grouping::AddCopy(Copy copy) {
  auto it = std::lower_bound(copies_.begin(), copies_.end(), copy);
  if (it != copies_.end() && *it == copy) return;
  copies_.insert(it, copy);
  copies_by_group_.insert(
      std::lower_bound(copies_by_group_.begin(), copies_by_group_.end(), copy, ByGroup), copy);
  Count(copy, 1);
}

void Grouping::DropCopy(Copy copy) {
  copies_.erase(std::lower_bound(copies_.begin(), copies_.end(), copy));
  copies_by_group_.erase(
      std::lower_bound(copies_by_group_.begin(), copies_by_group_.end(), copy, ByGroup));
  Count(copy, -1);
}

std::vector<int32_t> Grouping::CopiesIn(int32_t group) const {
  std::vector<int32_t> ops;
  if (group_copies_[group] == 0) return ops;
  size_t first = FirstCopyIn(group);
  for (int32_t i = 0; i < group_copies_[group]; ++i) {
    ops.push_back(copies_by_group_[first + i].op);
  }
  return ops;
}

size_t Grouping::FirstCopy(int32_t op) const {
  auto before = [](const Copy& copy, int32_t value) { return copy.op < value; };
  return std::lower_bound(copies_.begin(), copies_.end(), op, before) - copies_.begin();
}

/*! \brief Index in copies_by_group_. */
size_t Grouping::FirstCopyIn(int32_t group) const {
  Copy first{-1, group};
  return std::lower_bound(copies_by_group_.begin(), copies_by_group_.end(), first, ByGroup) -
         copies_by_group_.begin();
}

bool Grouping::HoldsCopy(int32_t group, int32_t op) const {
  for (size_t i = FirstCopy(op); i < copies_.size() && copies_[i].op == op; ++i) {
    if (copies_[i].group == group) return true;
  }
  return false;
}

const std::vector<int32_t>& Grouping::MembersUnordered(int32_t group) const {
  members_.clear();
  int32_t op = group;
  do {
    members_.push_back(op);
    op = next_[op];
  } while (op != group);
  if (group_copies_[group] > 0) {
    size_t first = FirstCopyIn(group);
    for (int32_t i = 0; i < group_copies_[group]; ++i) {
      members_.push_back(copies_by_group_[first + i].op);
    }
  }
  return members_;
}

void Grouping::Members(int32_t group, std::vector<int32_t>* members) const {
  *members = MembersUnordered(group);
  std::sort(members->begin(), members->end());
}

/*! \brief Gives the name `to` to group `from`, whose home ops are renamed by the caller. */
void Grouping::Rename(int32_t from, int32_t to) {
  order_.Set(position_[from], to);
  position_.Set(to, position_[from]);
  RenamePriority(from, to);
  for (int32_t op : CopiesIn(from)) {
    DropCopy({op, from});
    AddCopy({op, to});
  }
}

void Grouping::Merge(int32_t first, int32_t last) {
  Reorder(first, last, /*merge=*/true);
  int32_t keep = std::min(first, last);
  int32_t gone = std::max(first, last);
  int32_t op = gone;
  do {
    SetHome(op, keep);
    op = next_[op];
  } while (op != gone);
  int32_t behind = next_[keep];
  next_.Set(keep, next_[gone]);
  next_.Set(gone, behind);
  position_.Set(gone, position_[last]);
  Rename(gone, keep);
  if (copies_.empty()) return;
  // What one half computed again, the other half no longer reads from elsewhere.
  std::vector<int32_t> affected;
  for (int32_t member : MembersUnordered(keep)) {
    if (num_copies_of_[member] > 0) affected.push_back(member);
  }
  for (int32_t copied : CopiesIn(keep)) {
    if (home_[copied] == keep) DropCopy({copied, keep});
  }
  Prune(std::move(affected));
}

void Grouping::AddCopies(const std::vector<int32_t>& ops, int32_t group) {
  for (int32_t op : ops) AddCopy({op, group});
  Prune(ops);
}

/*! \brief Drops what nobody reads any more, beginning with copies of `ops`. */
void Grouping::Prune(std::vector<int32_t> ops) {
  std::make_heap(ops.begin(), ops.end());
  int32_t last = -1;
  // Consumers first: a copy that goes may have been the only reader of another one.
  while (!ops.empty()) {
    std::pop_heap(ops.begin(), ops.end());
    int32_t op = ops.back();
    ops.pop_back();
    if (op == last || num_copies_of_[op] == 0) continue;
    last = op;
    dropped_.clear();
    if (PruneOp(op)) dropped_.push_back(op);
    for (int32_t gone : dropped_) {
      for (const DataEnd& end : graph_->producers(gone)) {
        ops.push_back(end.op);
        std::push_heap(ops.begin(), ops.end());
      }
    }
  }
}

/*! \brief Puts one op with copies into canonical form; returns whether anything changed. */
bool Grouping::PruneOp(int32_t op) {
  bool read_outside = graph_->MustWrite(op);
  users_.clear();
  size_t first = FirstCopy(op);
  size_t last = first + num_copies_of_[op];
  auto holds = [&](int32_t group) {
    size_t i = first;
    while (i < last && copies_[i].group != group) ++i;
    return i < last || home_[op] == group;
  };
  for (const DataEnd& end : graph_->consumers(op)) {
    ForEachHolder(end.op, [&](int32_t group) {
      if (holds(group)) {
        users_.push_back(group);
      } else {
        read_outside = true;
      }
    });
  }
  auto is_user = [&](int32_t group) {
    return std::find(users_.begin(), users_.end(), group) != users_.end();
  };
  bool changed = false;
  for (size_t i = first; i < copies_.size() && copies_[i].op == op;) {
    if (is_user(copies_[i].group)) {
      ++i;
    } else {
      DropCopy(copies_[i]);
      changed = true;
    }
  }
  if (read_outside) return changed;
  // Nobody needs the value of the home as such. Of the groups that compute the op for themselves,
  // the one of its first consumer is the home, whichever edits have led here.
  int32_t to = home_[graph_->consumers(op)[0].op];
  if (to == home_[op]) return changed;
  MoveHome(op, to, /*leave_copy=*/is_user(home_[op]));
  return true;
}

void Grouping::MoveHome(int32_t op, int32_t to, bool leave_copy) {
  int32_t from = home_[op];
  DropCopy({op, to});
  int32_t rest = next_[op];
  if (rest == op) {
    // Only copies are left, and they were there for `op`.
    dropped_ = CopiesIn(from);
    for (int32_t copied : dropped_) DropCopy({copied, from});
    order_.Set(position_[from], -1);
    if (PriorityOf(from) != kNoPriority) SetPriority(op, kNoPriority);
  } else {
    int32_t previous = op;
    while (next_[previous] != op) previous = next_[previous];
    next_.Set(previous, rest);
    if (leave_copy) AddCopy({op, from});
    if (from == op) Relabel(rest);
  }
  next_.Set(op, next_[to]);
  next_.Set(to, op);
  SetHome(op, to);
  if (op < to) Relabel(op);
}

/*! \brief Names the group of home op `member` by its smallest home op. */
void Grouping::Relabel(int32_t member) {
  int32_t from = home_[member];
  int32_t to = member;
  for (int32_t op = next_[member]; op != member; op = next_[op]) to = std::min(to, op);
  Rename(from, to);
  int32_t op = member;
  do {
    SetHome(op, to);
    op = next_[op];
  } while (op != member);
}

Strategy Grouping::ToStrategy(std::vector<int32_t> order) const {
  return Strategy(home_.values(), copies_, std::move(order), priorities_, Hash());
}

}  // namespace disco_fuse
