#include "strategy/unit_graph.h"

#include <algorithm>

namespace disco_fuse {

std::vector<Hash128> MemberKeys(int32_t num_ops) {
  std::vector<Hash128> keys;
  for (uint64_t i = 1; i <= 2 * static_cast<uint64_t>(num_ops); ++i) {
    keys.push_back({Mix64(i * 0x9e3779b97f4a7c15ULL),
                    Mix64(i * 0xd1342543de82ef95ULL + 0x632be59bd9b4e019ULL)});
  }
  return keys;
}

void UnitGraph::Build(const Grouping& grouping) {
  NumberUnits(grouping);
  CollectMembers(grouping);
  Connect(grouping);
  CollectOutputs(grouping);
  Transpose();
}

void UnitGraph::NumberUnits(const Grouping& grouping) {
  const OpGraph& graph = grouping.graph();
  representative_.clear();
  kind_.clear();
  unit_of_.resize(graph.num_ops());
  for (int32_t group : grouping.order()) {
    if (group < 0) continue;
    unit_of_[group] = num_units();
    representative_.push_back(group);
    // UnitKind has the numbers of OpKind: a unit is what its members are.
    kind_.push_back(static_cast<UnitKind>(graph.op(group).kind));
  }
  priority_.assign(num_units(), kNoPriority);
  for (const Priority& given : grouping.priorities()) priority_[unit_of_[given.op]] = given.rank;
}

void UnitGraph::CollectMembers(const Grouping& grouping) {
  int32_t num_ops = grouping.graph().num_ops();
  members_.begin.assign(num_units() + 1, 0);
  for (int32_t op = 0; op < num_ops; ++op) ++members_.begin[unit_of_[grouping.home(op)] + 1];
  for (const Copy& copy : grouping.copies()) ++members_.begin[unit_of_[copy.group] + 1];
  for (int32_t i = 0; i < num_units(); ++i) members_.begin[i + 1] += members_.begin[i];
  members_.values.resize(members_.begin.back());
  next_.assign(members_.begin.begin(), members_.begin.end() - 1);
  size_t next_copy = 0;
  const std::vector<Copy>& copies = grouping.copies();
  for (int32_t op = 0; op < num_ops; ++op) {
    members_.values[next_[unit_of_[grouping.home(op)]]++] = op;
    for (; next_copy < copies.size() && copies[next_copy].op == op; ++next_copy) {
      members_.values[next_[unit_of_[copies[next_copy].group]]++] = op;
    }
  }
}

void UnitGraph::Connect(const Grouping& grouping) {
  const OpGraph& graph = grouping.graph();
  leaves_.assign(graph.num_ops(), 0);
  seen_.assign(num_units(), -1);
  predecessors_.begin.assign(1, 0);
  predecessors_.values.clear();
  for (int32_t unit = 0; unit < num_units(); ++unit) {
    int32_t group = representative_[unit];
    auto add = [&](int32_t holder) {
      int32_t before = unit_of_[holder];
      if (before == unit || seen_[before] == unit) return;
      seen_[before] = unit;
      predecessors_.values.push_back(before);
    };
    for (int32_t op : members_[unit]) {
      for (const DataEnd& end : graph.producers(op)) {
        if (grouping.Holds(group, end.op)) continue;
        leaves_[end.op] = 1;
        add(grouping.home(end.op));
      }
      if (grouping.home(op) != group) continue;
      for (int32_t reader : graph.order_before(op)) grouping.ForEachHolder(reader, add);
    }
    predecessors_.begin.push_back(static_cast<int32_t>(predecessors_.values.size()));
  }
}

void UnitGraph::CollectOutputs(const Grouping& grouping) {
  const OpGraph& graph = grouping.graph();
  if (keys_.size() != 2 * static_cast<size_t>(graph.num_ops())) keys_ = MemberKeys(graph.num_ops());
  content_.assign(num_units(), Hash128{});
  bucket_bytes_.assign(num_units(), 0);
  production_rank_.assign(num_units(), -1);
  outputs_.begin.assign(1, 0);
  outputs_.values.clear();
  for (int32_t unit = 0; unit < num_units(); ++unit) {
    for (int32_t op : members_[unit]) {
      bool is_home = grouping.home(op) == representative_[unit];
      bool is_output = is_home && (leaves_[op] != 0 || graph.MustWrite(op));
      if (is_output) outputs_.values.push_back(op);
      const Hash128& key = keys_[2 * op + (is_output ? 1 : 0)];
      content_[unit].hi += key.hi;
      content_[unit].lo += key.lo;
      if (kind_[unit] != UnitKind::kBucket) continue;
      bucket_bytes_[unit] += graph.op(op).bytes_written;
      production_rank_[unit] = std::max(production_rank_[unit], graph.ProductionRank(op));
    }
    outputs_.begin.push_back(static_cast<int32_t>(outputs_.values.size()));
  }
}

void UnitGraph::Transpose() {
  successors_.begin.assign(num_units() + 1, 0);
  for (int32_t before : predecessors_.values) ++successors_.begin[before + 1];
  for (int32_t i = 0; i < num_units(); ++i) successors_.begin[i + 1] += successors_.begin[i];
  successors_.values.resize(predecessors_.values.size());
  next_.assign(successors_.begin.begin(), successors_.begin.end() - 1);
  for (int32_t unit = 0; unit < num_units(); ++unit) {
    for (int32_t before : predecessors_[unit]) successors_.values[next_[before]++] = unit;
  }
}

}  // namespace disco_fuse
