// How a Grouping keeps its groups in a topological order.
#include <algorithm>
#include <functional>

#include "strategy/grouping.h"

namespace disco_fuse {

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
    order_.Set(out, group);
    position_.Set(group, out++);
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
  while (out <= end) order_.Set(out++, -1);
}

void Grouping::MoveBefore(int32_t first, int32_t last) { Reorder(first, last, /*merge=*/false); }

std::vector<int32_t> Grouping::CanonicalOrder() const {
  int32_t num_ops = graph_->num_ops();
  std::vector<std::vector<int32_t>> successors(num_ops);
  std::vector<int32_t> num_missing(num_ops, 0);
  std::vector<int32_t> heap;
  for (int32_t group : order_.values()) {
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
  for (int32_t group : order_.values()) {
    if (group >= 0) groups.push_back(group);
  }
  return groups;
}

void Grouping::SetOrder(const std::vector<int32_t>& groups) {
  int32_t num_groups = static_cast<int32_t>(groups.size());
  for (int32_t i = 0; i < order_.size(); ++i) order_.Set(i, i < num_groups ? groups[i] : -1);
  for (int32_t i = 0; i < num_groups; ++i) position_.Set(groups[i], i);
}

/*!
 * \brief Puts `group` in front of what is at `place`, shifting what lies up to the next gap.
 *
 * There is one: `group` was part of another, so that there were fewer groups than places.
 */
void Grouping::InsertAt(int32_t place, int32_t group) {
  int32_t size = order_.size();
  auto is_gap = [&](int32_t i) { return i >= 0 && i < size && order_[i] < 0; };
  auto put = [&](int32_t moved, int32_t i) {
    order_.Set(i, moved);
    position_.Set(moved, i);
  };
  int32_t left = place - 1;
  int32_t right = place;
  while (!is_gap(right) && !is_gap(left)) {
    ++right;
    --left;
  }
  if (is_gap(right)) {
    for (int32_t i = right; i > place; --i) put(order_[i - 1], i);
  } else {
    for (int32_t i = left; i + 1 < place; ++i) put(order_[i + 1], i);
    --place;
  }
  put(group, place);
}

}  // namespace disco_fuse
