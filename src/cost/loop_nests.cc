#include "cost/loop_nests.h"

#include <algorithm>

namespace disco_fuse {

int32_t LoopNests::IndexOf(int32_t op) const {
  const std::vector<int32_t>& ops = group_->ops;
  auto it = std::lower_bound(ops.begin(), ops.end(), op);
  return it != ops.end() && *it == op ? static_cast<int32_t>(it - ops.begin()) : -1;
}

bool LoopNests::IsInlined(int32_t member) const {
  int32_t id = group_->ops[member];
  const Op& op = graph_->op(id);
  if (op.pattern > OpPattern::kInjective || is_output(member)) return false;
  int32_t num_consumers = 0;
  for (const DataEnd& end : graph_->consumers(id)) {
    if (IndexOf(end.op) < 0) continue;
    ++num_consumers;
    OpPattern pattern = graph_->op(end.op).pattern;
    if (pattern == OpPattern::kOutElemwiseFusable || pattern == OpPattern::kOpaque) return false;
  }
  // Up to 4 simple operations an element: recomputing is cheaper than a round trip to memory.
  return num_consumers == 1 || op.flops <= 4.0 * static_cast<double>(op.num_elements);
}

void LoopNests::Plan(const OpGraph& graph, const Group& group) {
  graph_ = &graph;
  group_ = &group;
  num_nests_ = 0;
  int32_t size = static_cast<int32_t>(group.ops.size());
  nest_.assign(size, -1);
  is_output_.assign(size, 0);
  stays_.assign(size, 1);
  for (int32_t op : group.outputs) is_output_[IndexOf(op)] = 1;
  cones_.begin.assign(1, 0);
  cones_.values.clear();
  for (int32_t member = 0; member < size; ++member) {
    if (!IsInlined(member)) {
      CollectCone(member);
      nest_[member] = ChooseNest(member);
      num_nests_ = std::max(num_nests_, nest_[member] + 1);
    }
    cones_.begin.push_back(static_cast<int32_t>(cones_.values.size()));
    if (nest_[member] < 0) continue;
    for (int32_t inner : cones_[member]) NoteReads(inner, nest_[member]);
    NoteReads(member, nest_[member]);
  }
}

/*! \brief Appends the inlined members that lead to `root` through inlined members only. */
void LoopNests::CollectCone(int32_t root) {
  flag_.assign(group_->ops.size(), 0);
  stack_.assign(1, root);
  size_t first = cones_.values.size();
  while (!stack_.empty()) {
    int32_t member = stack_.back();
    stack_.pop_back();
    for (const DataEnd& end : graph_->producers(group_->ops[member])) {
      int32_t before = IndexOf(end.op);
      // Producers have smaller ids, so that it is already known which of them are roots.
      if (before < 0 || nest_[before] >= 0 || flag_[before] != 0) continue;
      flag_[before] = 1;
      cones_.values.push_back(before);
      stack_.push_back(before);
    }
  }
  std::sort(cones_.values.begin() + static_cast<std::ptrdiff_t>(first), cones_.values.end());
}

int32_t LoopNests::ChooseNest(int32_t root) {
  Span<int32_t> cone(cones_.values.data() + cones_.begin.back(),
                     cones_.values.size() - static_cast<size_t>(cones_.begin.back()));
  int32_t nest = -1;
  auto visit_producers = [&](int32_t member, auto visit) {
    for (const DataEnd& end : graph_->producers(group_->ops[member])) {
      int32_t before = IndexOf(end.op);
      if (before >= 0) visit(before, end.keeps_rows);
    }
  };
  auto raise = [&](int32_t before, bool) { nest = std::max(nest, nest_[before]); };
  for (int32_t member : cone) visit_producers(member, raise);
  visit_producers(root, raise);
  int64_t rows = graph_->op(group_->ops[root]).rows;
  if (nest < 0 || rows == 0) return num_nests_;
  // flag_: lies on a path from a root of that nest.
  std::fill(flag_.begin(), flag_.end(), 0);
  bool fits = true;
  auto check = [&](int32_t member) {
    visit_producers(member, [&](int32_t before, bool keeps_rows) {
      bool on_path = nest_[before] == nest || (nest_[before] < 0 && flag_[before] != 0);
      if (!on_path) return;
      flag_[member] = 1;
      if (!keeps_rows || graph_->op(group_->ops[before]).rows != rows) fits = false;
    });
  };
  for (int32_t member : cone) check(member);
  check(root);
  return fits ? nest : num_nests_;
}

void LoopNests::NoteReads(int32_t reader, int32_t nest) {
  for (const DataEnd& end : graph_->producers(group_->ops[reader])) {
    int32_t before = IndexOf(end.op);
    if (before >= 0 && nest_[before] >= 0 && nest_[before] != nest) stays_[before] = 0;
  }
}

int32_t CountNests(const OpGraph& graph, const Group& group) {
  LoopNests nests;
  nests.Plan(graph, group);
  return nests.num_nests();
}

}  // namespace disco_fuse
