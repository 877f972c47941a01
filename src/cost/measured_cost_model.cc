#include "cost/measured_cost_model.h"

#include <algorithm>
#include <cstdint>

namespace disco_fuse {
namespace {

/*! \brief Numbers values from outside by their first use: ops as they are, values below zero. */
class Outside {
 public:
  int64_t NumberOf(int64_t value) {
    auto it = std::find(values_.begin(), values_.end(), value);
    if (it == values_.end()) it = values_.insert(it, value);
    return it - values_.begin();
  }

 private:
  std::vector<int64_t> values_;
};

}  // namespace

Hash128 GroupSignature(const OpGraph& graph, const Group& group) {
  Hasher hasher;
  Outside outside;
  for (int32_t op : group.ops) {
    hasher.AddString(graph.op(op).signature);
    bool leaves = std::binary_search(group.outputs.begin(), group.outputs.end(), op);
    hasher.AddInt(leaves ? 1 : 0);
    for (const DataEnd& end : graph.producers(op)) {
      auto member = std::lower_bound(group.ops.begin(), group.ops.end(), end.op);
      bool inside = member != group.ops.end() && *member == end.op;
      hasher.AddInt(inside ? 1 : 0);
      hasher.AddInt(inside ? member - group.ops.begin() : outside.NumberOf(end.op));
      hasher.AddInt(end.bytes);
      hasher.AddInt(end.keeps_rows ? 1 : 0);
    }
    for (const ValueRead& read : graph.external_reads(op)) {
      hasher.AddInt(2);
      hasher.AddInt(outside.NumberOf(-1 - static_cast<int64_t>(read.value)));
      hasher.AddInt(read.bytes);
    }
  }
  return hasher.Finish();
}

std::vector<Nanoseconds> MeasuredCostModel::Predict(const OpGraph& graph,
                                                    const std::vector<Group>& groups) const {
  std::vector<Nanoseconds> result(groups.size());
  std::vector<Group> others;
  std::vector<size_t> places;
  for (size_t i = 0; i < groups.size(); ++i) {
    auto it = times_.find(GroupSignature(graph, groups[i]));
    if (it != times_.end()) {
      result[i] = it->second;
    } else {
      others.push_back(groups[i]);
      places.push_back(i);
    }
  }
  if (others.empty()) return result;
  std::vector<Nanoseconds> predicted = base_->Predict(graph, others);
  CheckCount(predicted.size(), others, base_->name(), graph);
  for (size_t i = 0; i < places.size(); ++i) result[places[i]] = predicted[i];
  return result;
}

}  // namespace disco_fuse
