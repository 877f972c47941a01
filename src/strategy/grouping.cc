#include "strategy/grouping.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <unordered_map>
#include <utility>

namespace disco_fuse {

// How copies live and die (P, C, D are groups; x' is a copy of x):
//
//   P: x ---> C: y          duplicate x       P: x ---> D: z      z goes to     C: x y    (x is at
//       \---> D: z          into C      =>                        C as well =>     D       home in
//       C)
//                                             C: x' y             nobody reads P's x, P disappears

Grouping::Grouping(const OpGraph& graph)
    : graph_(&graph),
      home_(graph.num_ops()),
      next_(graph.num_ops()),
      num_copies_of_(graph.num_ops(), 0),
      group_copies_(graph.num_ops(), 0),
      position_(graph.num_ops(), 0),
      mark_(graph.num_ops(), 0) {
  std::iota(home_.begin(), home_.end(), 0);
  LinkHomes();
  order_ = home_;
  position_ = home_;
}

void Grouping::Load(const Strategy& strategy) {
  home_ = strategy.group_of();
  copies_ = strategy.duplicated();
  order_ = strategy.order();
  priorities_ = strategy.priorities();
  LinkHomes();
  IndexCopies();
  for (size_t i = 0; i < order_.size(); ++i) position_[order_[i]] = static_cast<int32_t>(i);
}

bool Grouping::Assign(const std::vector<int32_t>& labels, const std::vector<Copy>& copies) {
  std::unordered_map<int32_t, int32_t> representative;
  for (int32_t op = 0; op < graph_->num_ops(); ++op) {
    home_[op] = representative.emplace(labels[op], op).first->second;
  }
  priorities_.clear();
  copies_.clear();
  for (const Copy& copy : copies) {
    int32_t group = representative.at(copy.group);
    if (home_[copy.op] != group) copies_.push_back({copy.op, group});
  }
  std::sort(copies_.begin(), copies_.end());
  copies_.erase(std::unique(copies_.begin(), copies_.end()), copies_.end());
  LinkHomes();
  IndexCopies();
  order_.assign(graph_->num_ops(), -1);
  for (int32_t op = 0; op < graph_->num_ops(); ++op) {
    if (home_[op] == op) order_[op] = op;
    position_[op] = op;
  }
  std::vector<int32_t> copied;
  for (const Copy& copy : copies_) copied.push_back(copy.op);
  Prune(std::move(copied));
  size_t num_groups = order_.size() - std::count(order_.begin(), order_.end(), -1);
  std::vector<int32_t> sorted = CanonicalOrder();
  if (sorted.size() != num_groups) return false;
  order_ = std::move(sorted);
  for (size_t i = 0; i < order_.size(); ++i) position_[order_[i]] = static_cast<int32_t>(i);
  return true;
}

void Grouping::LinkHomes() {
  // Each op goes right behind its representative, which is the smallest and thus comes first.
  for (int32_t op = 0; op < graph_->num_ops(); ++op) {
    int32_t group = home_[op];
    if (group == op) {
      next_[op] = op;
    } else {
      next_[op] = next_[group];
      next_[group] = op;
    }
  }
}

void Grouping::IndexCopies() {
  std::fill(num_copies_of_.begin(), num_copies_of_.end(), 0);
  std::fill(group_copies_.begin(), group_copies_.end(), 0);
  for (const Copy& copy : copies_) {
    ++num_copies_of_[copy.op];
    ++group_copies_[copy.group];
  }
}

size_t Grouping::FirstCopy(int32_t op) const {
  auto before = [](const Copy& copy, int32_t value) { return copy.op < value; };
  return std::lower_bound(copies_.begin(), copies_.end(), op, before) - copies_.begin();
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
    for (const Copy& copy : copies_) {
      if (copy.group == group) members_.push_back(copy.op);
    }
  }
  return members_;
}

void Grouping::Members(int32_t group, std::vector<int32_t>* members) const {
  *members = MembersUnordered(group);
  std::sort(members->begin(), members->end());
}

bool Grouping::Reaches(int32_t first, int32_t last, bool allow_direct) {
  ++epoch_;
  mark_[last] = epoch_;
  stack_.assign(1, last);
  bool found = false;
  while (!stack_.empty() && !found) {
    int32_t group = stack_.back();
    stack_.pop_back();
    ForEachPredecessor(group, [&](int32_t before) {
      if (before == first) {
        found = found || group != last || !allow_direct;
      } else if (mark_[before] != epoch_ && position_[before] > position_[first]) {
        mark_[before] = epoch_;
        stack_.push_back(before);
      }
    });
  }
  return found;
}

/*!
 * Between `first` and `last`, what leads to `last` (marked by Reaches) moves to the front, then
 * comes `last` (and `first`, unless they merge), then the rest. Nothing marked needs `first` or
 * anything unmarked, so the order stays topological.
 */
void Grouping::Reorder(int32_t first, int32_t last, bool merge) {
  int32_t out = position_[first];
  int32_t end = position_[last];
  auto place = [&](int32_t group) {
    order_[out] = group;
    position_[group] = out++;
  };
  tail_.clear();
  for (int32_t i = position_[first] + 1; i < end; ++i) {
    int32_t group = order_[i];
    if (group < 0) continue;
    if (mark_[group] == epoch_) {
      place(group);
    } else {
      tail_.push_back(group);
    }
  }
  place(last);
  if (!merge) place(first);
  for (int32_t group : tail_) place(group);
  while (out <= end) order_[out++] = -1;
}

void Grouping::MoveBefore(int32_t first, int32_t last) { Reorder(first, last, /*merge=*/false); }

/*! \brief Gives the name `to` to group `from`; the home ops are found from their member `from`. */
void Grouping::Rename(int32_t from, int32_t to) {
  order_[position_[from]] = to;
  position_[to] = position_[from];
  RenamePriority(from, to);
  if (group_copies_[from] == 0) return;
  for (Copy& copy : copies_) {
    if (copy.group == from) copy.group = to;
  }
  group_copies_[to] += group_copies_[from];
  group_copies_[from] = 0;
}

void Grouping::Merge(int32_t first, int32_t last) {
  Reorder(first, last, /*merge=*/true);
  int32_t keep = std::min(first, last);
  int32_t gone = std::max(first, last);
  int32_t op = gone;
  do {
    home_[op] = keep;
    op = next_[op];
  } while (op != gone);
  std::swap(next_[keep], next_[gone]);
  int32_t slot = position_[last];
  position_[gone] = slot;
  Rename(gone, keep);
  if (copies_.empty()) return;
  // What one half computed again, the other half no longer reads from elsewhere.
  std::vector<int32_t> affected;
  for (int32_t member : MembersUnordered(keep)) {
    if (num_copies_of_[member] > 0) affected.push_back(member);
  }
  std::sort(copies_.begin(), copies_.end());
  copies_.erase(std::unique(copies_.begin(), copies_.end()), copies_.end());
  copies_.erase(std::remove_if(copies_.begin(), copies_.end(),
                               [&](const Copy& copy) { return home_[copy.op] == copy.group; }),
                copies_.end());
  IndexCopies();
  Prune(std::move(affected));
}

void Grouping::AddCopies(const std::vector<int32_t>& ops, int32_t group) {
  for (int32_t op : ops) copies_.push_back({op, group});
  std::sort(copies_.begin(), copies_.end());
  IndexCopies();
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
    if (!PruneOp(op)) continue;
    for (const DataEnd& end : graph_->producers(op)) {
      ops.push_back(end.op);
      std::push_heap(ops.begin(), ops.end());
    }
  }
  std::sort(copies_.begin(), copies_.end());
}

/*! \brief Puts one op with copies into canonical form; returns whether anything changed. */
bool Grouping::PruneOp(int32_t op) {
  bool read_outside = graph_->MustWrite(op);
  users_.clear();
  for (const DataEnd& end : graph_->consumers(op)) {
    ForEachHolder(end.op, [&](int32_t group) {
      if (Holds(group, op)) {
        users_.push_back(group);
      } else {
        read_outside = true;
      }
    });
  }
  auto is_user = [&](int32_t group) {
    return std::find(users_.begin(), users_.end(), group) != users_.end();
  };
  size_t before = copies_.size();
  copies_.erase(
      std::remove_if(copies_.begin(), copies_.end(),
                     [&](const Copy& copy) { return copy.op == op && !is_user(copy.group); }),
      copies_.end());
  bool changed = copies_.size() != before;
  if (changed) IndexCopies();
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
  Copy& old = *std::find(copies_.begin(), copies_.end(), Copy{op, to});
  int32_t rest = next_[op];
  if (rest == op) {
    // Only copies are left, and they were there for `op`.
    copies_.erase(std::remove_if(copies_.begin(), copies_.end(),
                                 [&](const Copy& copy) {
                                   return copy.group == from || (copy == Copy{op, to});
                                 }),
                  copies_.end());
    order_[position_[from]] = -1;
    if (PriorityOf(from) != kNoPriority) SetPriority(op, kNoPriority);
  } else {
    int32_t previous = op;
    while (next_[previous] != op) previous = next_[previous];
    next_[previous] = rest;
    old.group = from;
    if (!leave_copy) copies_.erase(copies_.begin() + (&old - copies_.data()));
    IndexCopies();
    if (from == op) Relabel(rest);
  }
  IndexCopies();
  next_[op] = next_[to];
  next_[to] = op;
  home_[op] = to;
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
    home_[op] = to;
    op = next_[op];
  } while (op != member);
}

std::vector<int32_t> Grouping::CanonicalOrder() const {
  int32_t num_ops = graph_->num_ops();
  std::vector<std::vector<int32_t>> successors(num_ops);
  std::vector<int32_t> num_missing(num_ops, 0);
  std::vector<int32_t> heap;
  for (int32_t group : order_) {
    if (group < 0) continue;
    ForEachPredecessor(group, [&](int32_t before) {
      successors[before].push_back(group);
      ++num_missing[group];
    });
    if (num_missing[group] == 0) heap.push_back(group);
  }
  std::greater<int32_t> smallest_first;
  std::make_heap(heap.begin(), heap.end(), smallest_first);
  std::vector<int32_t> sorted;
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), smallest_first);
    int32_t group = heap.back();
    heap.pop_back();
    sorted.push_back(group);
    for (int32_t after : successors[group]) {
      if (--num_missing[after] > 0) continue;
      heap.push_back(after);
      std::push_heap(heap.begin(), heap.end(), smallest_first);
    }
  }
  return sorted;
}

std::vector<int32_t> Grouping::Order() const {
  std::vector<int32_t> groups;
  for (int32_t group : order_) {
    if (group >= 0) groups.push_back(group);
  }
  return groups;
}

Strategy Grouping::ToStrategy(std::vector<int32_t> order) const {
  return Strategy(home_, copies_, std::move(order), priorities_);
}

}  // namespace disco_fuse
