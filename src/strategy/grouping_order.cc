#include <algorithm>
#include <functional>
#include <vector>

#include "strategy/grouping.h"

namespace disco_fuse {

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

/*! \brief Puts `group` in front of what is at `place`, shifting what lies up to the next gap. */
void Grouping::InsertAt(int32_t place, int32_t group) {
  int32_t size = static_cast<int32_t>(order_.size());
  int32_t left = place - 1;
  int32_t right = place;
  while (right < size && order_[right] >= 0 && (left < 0 || order_[left] >= 0)) {
    ++right;
    if (left >= 0) --left;
  }
  if (right < size && order_[right] >= 0) {
    for (int32_t i = left; i + 1 < place; ++i) position_[order_[i] = order_[i + 1]] = i;
    --place;
  } else {
    if (right == size) order_.push_back(-1);
    for (int32_t i = right; i > place; --i) position_[order_[i] = order_[i - 1]] = i;
  }
  order_[place] = group;
  position_[group] = place;
}

}  // namespace disco_fuse
