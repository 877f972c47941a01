#include "strategy/take_out.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace disco_fuse {
namespace {

using Ops = std::vector<int32_t>;

bool Contains(const Ops& sorted, int32_t op) {
  return std::binary_search(sorted.begin(), sorted.end(), op);
}

/*! \brief The home ops of `group`, ascending. */
Ops HomeOps(const Grouping& grouping, int32_t group) {
  Ops ops;
  int32_t op = group;
  do {
    ops.push_back(op);
    op = grouping.next(op);
  } while (op != group);
  std::sort(ops.begin(), ops.end());
  return ops;
}

/*! \brief `op` and those of `homes` whose every reader is one of them; ascending. */
Ops WithServants(const OpGraph& graph, const Ops& homes, int32_t op) {
  Ops descending{op};
  for (size_t i = homes.size(); i-- > 0;) {
    if (homes[i] >= op || graph.MustWrite(homes[i])) continue;
    bool serves = true;
    for (const DataEnd& end : graph.consumers(homes[i])) {
      serves =
          serves && std::find(descending.begin(), descending.end(), end.op) != descending.end();
    }
    if (serves) descending.push_back(homes[i]);
  }
  std::reverse(descending.begin(), descending.end());
  return descending;
}

/*! \brief `homes` and those copies in `group`, but for `without`, that they need; ascending. */
Ops WithCopies(const Grouping& grouping, int32_t group, const Ops& homes, int32_t without) {
  Ops ops = homes;
  for (size_t i = 0; i < ops.size(); ++i) {
    for (const DataEnd& end : grouping.graph().producers(ops[i])) {
      if (end.op == without || grouping.home(end.op) == group) continue;
      if (!grouping.Holds(group, end.op)) continue;
      if (std::find(ops.begin(), ops.end(), end.op) == ops.end()) ops.push_back(end.op);
    }
  }
  std::sort(ops.begin(), ops.end());
  return ops;
}

/*! \brief How many of `homes`, home ops of `group`, are read by `rest` or by other groups. */
int32_t CountOutputs(const Grouping& grouping, int32_t group, const Ops& homes, const Ops& rest) {
  const OpGraph& graph = grouping.graph();
  int32_t num_outputs = 0;
  for (int32_t op : homes) {
    bool leaves = graph.MustWrite(op);
    for (const DataEnd& end : graph.consumers(op)) {
      leaves = leaves || Contains(rest, end.op);
      grouping.ForEachHolder(end.op, [&](int32_t holder) {
        if (holder != group && !grouping.Holds(holder, op)) leaves = true;
      });
    }
    if (leaves) ++num_outputs;
  }
  return num_outputs;
}

/*! \brief Whether something in `after` must come after something in `before`. */
bool Needs(const Grouping& grouping, const Ops& after, const Ops& before, const Ops& before_homes) {
  const OpGraph& graph = grouping.graph();
  for (int32_t op : after) {
    for (const DataEnd& end : graph.producers(op)) {
      if (Contains(before_homes, end.op)) return true;
    }
  }
  // A copy overwrites nothing (rule `duplicate`), so that every writer in `after` is at home.
  for (int32_t op : after) {
    for (int32_t reader : graph.order_before(op)) {
      if (Contains(before, reader)) return true;
    }
  }
  return false;
}

/*! \brief Whether data edges join all of `ops`, ascending. */
bool HangTogether(const OpGraph& graph, const Ops& ops) {
  std::vector<bool> seen(ops.size(), false);
  Ops reached{ops[0]};
  auto visit = [&](int32_t op) {
    auto it = std::lower_bound(ops.begin(), ops.end(), op);
    if (it == ops.end() || *it != op || seen[it - ops.begin()]) return;
    seen[it - ops.begin()] = true;
    reached.push_back(op);
  };
  seen[0] = true;
  for (size_t i = 0; i < reached.size(); ++i) {
    int32_t op = reached[i];
    for (const DataEnd& end : graph.producers(op)) visit(end.op);
    for (const DataEnd& end : graph.consumers(op)) visit(end.op);
  }
  return reached.size() == ops.size();
}

FusionDecision CheckPart(const OpGraph& graph, const FusionLimits& limits, const Ops& ops,
                         int32_t num_outputs) {
  if (ops.size() < 2) return {};
  return CheckGroup(graph, limits, ops, num_outputs);
}

FusionDecision DenyApart(const OpGraph& graph, int32_t op) {
  return FusionDecision::Deny("connection: without " + graph.Describe(op) +
                              " its group would fall apart");
}

FusionDecision TakeHomeOut(const FusionLimits& limits, int32_t op, Grouping* grouping) {
  const OpGraph& graph = grouping->graph();
  int32_t group = grouping->home(op);
  Ops homes = HomeOps(*grouping, group);
  Ops taken = WithServants(graph, homes, op);
  if (taken.size() == homes.size()) {
    return FusionDecision::Deny("relation: " + graph.Describe(op) +
                                " and what only serves it are all of their group");
  }
  Ops left;
  std::set_difference(homes.begin(), homes.end(), taken.begin(), taken.end(),
                      std::back_inserter(left));
  Ops all_taken = WithCopies(*grouping, group, taken, -1);
  Ops all_left = WithCopies(*grouping, group, left, -1);
  bool before = Needs(*grouping, all_left, all_taken, taken);
  if (before && Needs(*grouping, all_taken, all_left, left)) {
    return FusionDecision::Deny("cycle: " + graph.Describe(op) +
                                " stands between what would be left of its group");
  }
  if (!HangTogether(graph, all_left)) return DenyApart(graph, op);
  FusionDecision decision =
      CheckPart(graph, limits, all_taken, CountOutputs(*grouping, group, taken, all_left));
  if (!decision.allowed()) return decision;
  decision = CheckPart(graph, limits, all_left, CountOutputs(*grouping, group, left, all_taken));
  if (!decision.allowed()) return decision;
  Ops copies;
  std::set_difference(all_taken.begin(), all_taken.end(), taken.begin(), taken.end(),
                      std::back_inserter(copies));
  grouping->TakeOut(taken, copies, before);
  return {};
}

FusionDecision TakeCopyOut(const FusionLimits& limits, int32_t op, int32_t group,
                           Grouping* grouping) {
  const OpGraph& graph = grouping->graph();
  int32_t home = grouping->home(op);
  Ops left = HomeOps(*grouping, group);
  Ops all_left = WithCopies(*grouping, group, left, op);
  if (!HangTogether(graph, all_left)) return DenyApart(graph, op);
  FusionDecision decision =
      CheckPart(graph, limits, all_left, CountOutputs(*grouping, group, left, {}));
  if (!decision.allowed()) return decision;
  Ops homes = HomeOps(*grouping, home);
  Ops all_homes;
  grouping->Members(home, &all_homes);
  // The op becomes an output of its home, if it is none yet.
  int32_t num_outputs = CountOutputs(*grouping, home, homes, {});
  if (CountOutputs(*grouping, home, {op}, {}) == 0) ++num_outputs;
  decision = CheckPart(graph, limits, all_homes, num_outputs);
  if (!decision.allowed()) return decision;
  // Stricter than needed where nothing but the copy itself makes the group come first.
  if (!grouping->Precedes(home, group)) {
    if (grouping->Reaches(group, home, /*allow_direct=*/false)) {
      return FusionDecision::Deny("cycle: the home of " + graph.Describe(op) +
                                  " needs the group of " + graph.Describe(group));
    }
    grouping->MoveBefore(group, home);
  }
  grouping->RemoveCopy(op, group);
  return {};
}

}  // namespace

FusionDecision TakeOut(const FusionLimits& limits, int32_t op, int32_t member, Grouping* grouping) {
  const OpGraph& graph = grouping->graph();
  for (int32_t id : {op, member}) {
    FusionDecision decision = CheckKind(graph, Span<int32_t>(&id, 1));
    if (!decision.allowed()) return decision;
  }
  int32_t group = grouping->home(member);
  if (grouping->home(op) == group) return TakeHomeOut(limits, op, grouping);
  if (grouping->Holds(group, op)) return TakeCopyOut(limits, op, group, grouping);
  return FusionDecision::Deny("relation: the group of " + graph.Describe(member) +
                              " does not compute " + graph.Describe(op));
}

}  // namespace disco_fuse
