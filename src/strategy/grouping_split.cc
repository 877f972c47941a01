#include <algorithm>
#include <utility>

#include "strategy/grouping.h"

namespace disco_fuse {

// How a group loses members (R is what is left):
//
//     order   ... [a b c d] ...     take out {a b}     ... [a b] [c d] ...
//                                   before R     =>
//
// A copy that both parts need is held by both; one that only the new part needs leaves R.

int32_t Grouping::PriorityOf(int32_t group) const {
  auto before = [](const Priority& given, int32_t value) { return given.op < value; };
  auto it = std::lower_bound(priorities_.begin(), priorities_.end(), group, before);
  return it != priorities_.end() && it->op == group ? it->rank : kNoPriority;
}

void Grouping::SetPriority(int32_t op, int32_t rank) {
  int32_t group = home_[op];
  auto before = [](const Priority& given, int32_t value) { return given.op < value; };
  auto it = std::lower_bound(priorities_.begin(), priorities_.end(), group, before);
  bool known = it != priorities_.end() && it->op == group;
  if (rank == kNoPriority) {
    if (known) priorities_.erase(it);
  } else if (known) {
    it->rank = rank;
  } else {
    priorities_.insert(it, {group, rank});
  }
}

void Grouping::RenamePriority(int32_t from, int32_t to) {
  int32_t rank = PriorityOf(from);
  if (rank == kNoPriority) return;
  // Two groups that become one are wanted when the more urgent one was.
  int32_t known = PriorityOf(to);
  if (known != kNoPriority) rank = std::min(rank, known);
  auto is_either = [&](const Priority& given) { return given.op == from || given.op == to; };
  priorities_.erase(std::remove_if(priorities_.begin(), priorities_.end(), is_either),
                    priorities_.end());
  auto before = [](const Priority& given, int32_t value) { return given.op < value; };
  auto it = std::lower_bound(priorities_.begin(), priorities_.end(), to, before);
  priorities_.insert(it, {to, rank});
}

/*! \brief Members of `group` that are computed elsewhere, too. */
std::vector<int32_t> Grouping::Copied(int32_t group) const {
  std::vector<int32_t> ops;
  for (int32_t member : MembersUnordered(group)) {
    if (num_copies_of_[member] > 0) ops.push_back(member);
  }
  return ops;
}

void Grouping::Link(const std::vector<int32_t>& ops) {
  for (size_t i = 0; i < ops.size(); ++i) next_.Set(ops[i], ops[(i + 1) % ops.size()]);
}

void Grouping::TakeOut(const std::vector<int32_t>& ops, const std::vector<int32_t>& copies,
                       bool before) {
  int32_t group = home_[ops[0]];
  std::vector<int32_t> affected = Copied(group);
  std::vector<int32_t> rest;
  int32_t op = group;
  do {
    if (!std::binary_search(ops.begin(), ops.end(), op)) rest.push_back(op);
    op = next_[op];
  } while (op != group);
  Link(rest);
  Link(ops);
  int32_t rest_name = *std::min_element(rest.begin(), rest.end());
  if (rest_name != group) {
    Rename(group, rest_name);
    for (int32_t left : rest) SetHome(left, rest_name);
  }
  for (int32_t taken : ops) SetHome(taken, ops[0]);
  InsertAt(position_[rest_name] + (before ? 0 : 1), ops[0]);
  for (int32_t copied : copies) AddCopy({copied, ops[0]});
  Prune(std::move(affected));
}

void Grouping::RemoveCopy(int32_t op, int32_t group) {
  std::vector<int32_t> affected = Copied(group);
  DropCopy({op, group});
  // What the copy read may have had no other reader outside the groups that compute it themselves.
  for (const DataEnd& end : graph_->producers(op)) affected.push_back(end.op);
  Prune(std::move(affected));
}

}  // namespace disco_fuse
