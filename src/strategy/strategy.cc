#include "strategy/strategy.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>

#include "strategy/grouping.h"
#include "strategy/grouping_hash.h"
#include "strategy/unit_graph.h"

namespace disco_fuse {
namespace {

[[noreturn]] void Fail(const std::string& message) { throw std::invalid_argument(message); }

void CheckShape(const OpGraph& graph, const std::vector<int32_t>& labels,
                const std::vector<Copy>& copies) {
  if (static_cast<int32_t>(labels.size()) != graph.num_ops()) {
    Fail("group_of must have one entry for each of the " + std::to_string(graph.num_ops()) +
         " ops, got " + std::to_string(labels.size()));
  }
  std::unordered_set<int32_t> known(labels.begin(), labels.end());
  for (const Copy& copy : copies) {
    if (copy.op < 0 || copy.op >= graph.num_ops()) {
      Fail("duplicated op must be in [0, " + std::to_string(graph.num_ops()) + "), got " +
           std::to_string(copy.op));
    }
    if (known.count(copy.group) == 0) {
      Fail("duplicated " + graph.Describe(copy.op) + ": group " + std::to_string(copy.group) +
           " does not occur in group_of");
    }
  }
}

void CheckPriorities(const OpGraph& graph, const std::vector<Priority>& priorities) {
  for (const Priority& given : priorities) {
    if (given.op < 0 || given.op >= graph.num_ops()) {
      Fail("priority: op must be in [0, " + std::to_string(graph.num_ops()) + "), got " +
           std::to_string(given.op));
    }
    if (given.rank < 0 || given.rank >= graph.num_ops()) {
      Fail("priority of " + graph.Describe(given.op) + " must be in [0, " +
           std::to_string(graph.num_ops()) + "), got " + std::to_string(given.rank));
    }
  }
}

/*! \brief Walks backwards inside the groups that could not be ordered: that ends on a cycle. */
std::string DescribeCycle(const Grouping& grouping) {
  std::vector<int32_t> sorted = grouping.CanonicalOrder();
  std::unordered_set<int32_t> done(sorted.begin(), sorted.end());
  int32_t group = -1;
  for (int32_t candidate : grouping.order()) {
    if (candidate >= 0 && done.count(candidate) == 0) group = candidate;
  }
  int32_t before = group;
  for (int32_t step = 0; step < grouping.graph().num_ops(); ++step) {
    int32_t found = -1;
    grouping.ForEachPredecessor(group, [&](int32_t candidate) {
      if (done.count(candidate) == 0) found = candidate;
    });
    before = std::exchange(group, found);
  }
  const OpGraph& graph = grouping.graph();
  return "cycle: the group of " + graph.Describe(before) + " needs the group of " +
         graph.Describe(group) + " and the other way round";
}

void CheckBucket(const OpGraph& graph, Span<int32_t> ops) {
  for (int32_t op : ops) {
    FusionDecision decision = CheckMergeClass(graph, ops[0], op);
    if (!decision.allowed()) Fail(decision.reason());
  }
}

void CheckUnits(const Grouping& grouping, const FusionLimits& limits) {
  const OpGraph& graph = grouping.graph();
  UnitGraph units;
  units.Build(grouping);
  for (int32_t unit = 0; unit < units.num_units(); ++unit) {
    Span<int32_t> ops = units.members(unit);
    if (ops.size() < 2) continue;
    if (units.kind(unit) == UnitKind::kBucket) {
      CheckBucket(graph, ops);
      continue;
    }
    FusionDecision decision =
        CheckGroup(graph, limits, ops, static_cast<int32_t>(units.outputs(unit).size()));
    if (!decision.allowed()) Fail(decision.reason());
  }
  for (const Copy& copy : grouping.copies()) {
    FusionDecision decision = CheckDuplicable(graph, copy.op);
    if (!decision.allowed()) Fail(decision.reason());
  }
  FusionDecision decision = CheckDuplication(graph, static_cast<int32_t>(grouping.copies().size()));
  if (!decision.allowed()) Fail(decision.reason());
}

/*! \brief Every unit once, and after all units it depends on. */
void CheckOrder(const Grouping& grouping, const std::vector<int32_t>& order) {
  const OpGraph& graph = grouping.graph();
  std::vector<int32_t> place(graph.num_ops(), -1);
  for (size_t i = 0; i < order.size(); ++i) {
    int32_t group = order[i];
    if (group < 0 || group >= graph.num_ops() || grouping.home(group) != group) {
      Fail("order: " + std::to_string(group) + " at position " + std::to_string(i) +
           " is not the representative of a group");
    }
    if (place[group] >= 0) Fail("order: group " + std::to_string(group) + " is given twice");
    place[group] = static_cast<int32_t>(i);
  }
  for (int32_t group : grouping.Order()) {
    if (place[group] < 0) Fail("order: group " + std::to_string(group) + " is missing");
    grouping.ForEachPredecessor(group, [&](int32_t before) {
      if (place[before] >= place[group]) {
        Fail("order: group " + std::to_string(group) + " comes before group " +
             std::to_string(before) + ", which it depends on");
      }
    });
  }
}

}  // namespace

Hash128 HashGrouping(const std::vector<int32_t>& group_of, const std::vector<Copy>& duplicated) {
  GroupingHash hash;
  int32_t num_ops = static_cast<int32_t>(group_of.size());
  for (int32_t op = 0; op < num_ops; ++op) hash.AddHome(op, group_of[op]);
  for (const Copy& copy : duplicated) hash.AddCopy(copy.op, copy.group);
  return hash.Finish(num_ops);
}

Hash128 WithPriorities(const Hash128& grouping, const std::vector<Priority>& priorities) {
  if (priorities.empty()) return grouping;
  Hasher hasher;
  hasher.Add(grouping.hi);
  hasher.Add(grouping.lo);
  for (const Priority& given : priorities) {
    hasher.AddInt(given.op);
    hasher.AddInt(given.rank);
  }
  return hasher.Finish();
}

Strategy::Strategy(std::vector<int32_t> group_of, std::vector<Copy> duplicated,
                   std::vector<int32_t> order, std::vector<Priority> priorities)
    : group_of_(std::move(group_of)),
      duplicated_(std::move(duplicated)),
      order_(std::move(order)),
      priorities_(std::move(priorities)),
      hash_(WithPriorities(HashGrouping(group_of_, duplicated_), priorities_)) {}

Strategy::Strategy(std::vector<int32_t> group_of, std::vector<Copy> duplicated,
                   std::vector<int32_t> order, std::vector<Priority> priorities,
                   const Hash128& hash)
    : group_of_(std::move(group_of)),
      duplicated_(std::move(duplicated)),
      order_(std::move(order)),
      priorities_(std::move(priorities)),
      hash_(hash) {}

Strategy Strategy::Unfused(const OpGraph& graph) {
  Grouping grouping(graph);
  return grouping.ToStrategy(grouping.order());
}

Strategy Strategy::Create(const OpGraph& graph, const FusionLimits& limits,
                          const std::vector<int32_t>& labels, const std::vector<Copy>& copies,
                          const std::vector<int32_t>& order,
                          const std::vector<Priority>& priorities) {
  CheckShape(graph, labels, copies);
  CheckPriorities(graph, priorities);
  Grouping grouping(graph);
  for (const Copy& copy : copies) {
    FusionDecision decision = CheckKind(graph, Span<int32_t>(&copy.op, 1));
    if (!decision.allowed()) Fail(decision.reason());
  }
  if (!grouping.Assign(labels, copies)) Fail(DescribeCycle(grouping));
  CheckUnits(grouping, limits);
  for (const Priority& given : priorities) {
    int32_t known = grouping.PriorityOf(grouping.home(given.op));
    if (known == kNoPriority || given.rank < known) grouping.SetPriority(given.op, given.rank);
  }
  if (order.empty()) return grouping.ToStrategy(grouping.Order());
  CheckOrder(grouping, order);
  return grouping.ToStrategy(order);
}

}  // namespace disco_fuse
