#include "strategy/edit.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "strategy/bucket_edits.h"
#include "strategy/take_out.h"

namespace disco_fuse {
namespace {

/*! \brief How many home ops of `first` or `last` are read by a group that is neither. */
int32_t CountOutputs(const Grouping& grouping, Span<int32_t> ops, int32_t first, int32_t last) {
  const OpGraph& graph = grouping.graph();
  int32_t num_outputs = 0;
  for (int32_t op : ops) {
    if (grouping.home(op) != first && grouping.home(op) != last) continue;
    bool leaves = graph.MustWrite(op);
    for (const DataEnd& end : graph.consumers(op)) {
      if (leaves) break;
      grouping.ForEachHolder(end.op, [&](int32_t group) {
        if (group != first && group != last && !grouping.Holds(group, op)) leaves = true;
      });
    }
    if (leaves) ++num_outputs;
  }
  return num_outputs;
}

FusionDecision CheckRelation(const OpGraph& graph, const Edit& edit) {
  for (int32_t op : {edit.producer, edit.consumer}) {
    if (edit.kind == EditKind::kReorder && op == -1 && op == edit.consumer) continue;
    if (op < 0 || op >= graph.num_ops()) {
      return FusionDecision::Deny("relation: op " + std::to_string(op) + " must be in [0, " +
                                  std::to_string(graph.num_ops()) + ")");
    }
  }
  if (!IsFusion(edit.kind) || graph.HasDataEdge(edit.producer, edit.consumer)) return {};
  return FusionDecision::Deny("relation: " + graph.Describe(edit.consumer) + " does not read " +
                              graph.Describe(edit.producer));
}

FusionDecision DenyCycle(const OpGraph& graph, int32_t first, int32_t last) {
  return FusionDecision::Deny("cycle: the group of " + graph.Describe(last) +
                              " needs the group of " + graph.Describe(first) +
                              " through a third one");
}

FusionDecision Fuse(const FusionLimits& limits, const Edit& edit, Grouping* grouping) {
  const OpGraph& graph = grouping->graph();
  int32_t first = grouping->home(edit.producer);
  int32_t last = grouping->home(edit.consumer);
  if (first == last) {
    return FusionDecision::Deny("relation: " + graph.Describe(edit.producer) + " and " +
                                graph.Describe(edit.consumer) + " share a group already");
  }
  std::vector<int32_t> ops, more;
  grouping->Members(first, &ops);
  grouping->Members(last, &more);
  std::vector<int32_t> all;
  std::set_union(ops.begin(), ops.end(), more.begin(), more.end(), std::back_inserter(all));
  FusionDecision decision =
      CheckGroup(graph, limits, all, CountOutputs(*grouping, all, first, last));
  if (!decision.allowed()) return decision;
  if (!grouping->Precedes(first, last)) std::swap(first, last);
  if (grouping->Reaches(first, last, /*allow_direct=*/true)) return DenyCycle(graph, first, last);
  grouping->Merge(first, last);
  return {};
}

/*! \brief `op` and everything it is computed from inside `group`, as far as `into` lacks it. */
std::vector<int32_t> Closure(const Grouping& grouping, int32_t group, int32_t into, int32_t op) {
  std::vector<int32_t> ops{op};
  for (size_t i = 0; i < ops.size(); ++i) {
    for (const DataEnd& end : grouping.graph().producers(ops[i])) {
      if (!grouping.Holds(group, end.op) || grouping.Holds(into, end.op)) continue;
      if (std::find(ops.begin(), ops.end(), end.op) == ops.end()) ops.push_back(end.op);
    }
  }
  std::sort(ops.begin(), ops.end());
  return ops;
}

/*! \brief Every new copy must run before what overwrites its inputs. */
FusionDecision OrderBeforeWriters(const std::vector<int32_t>& ops, int32_t into,
                                  Grouping* grouping) {
  const OpGraph& graph = grouping->graph();
  for (int32_t op : ops) {
    for (int32_t writer : graph.order_after(op)) {
      int32_t group = grouping->home(writer);
      if (group == into || grouping->Precedes(into, group)) continue;
      if (grouping->Reaches(group, into, /*allow_direct=*/false)) {
        return FusionDecision::Deny("cycle: a copy of " + graph.Describe(op) + " would run after " +
                                    graph.Describe(writer) + ", which overwrites what it reads");
      }
      grouping->MoveBefore(group, into);
    }
  }
  return {};
}

FusionDecision FuseDuplicate(const FusionLimits& limits, const Edit& edit, Grouping* grouping) {
  const OpGraph& graph = grouping->graph();
  int32_t from = grouping->home(edit.producer);
  int32_t into = grouping->home(edit.consumer);
  if (grouping->Holds(into, edit.producer)) {
    return FusionDecision::Deny("relation: the group of " + graph.Describe(edit.consumer) +
                                " computes " + graph.Describe(edit.producer) + " already");
  }
  std::vector<int32_t> ops = Closure(*grouping, from, into, edit.producer);
  for (int32_t op : ops) {
    FusionDecision decision = CheckDuplicable(graph, op);
    if (!decision.allowed()) return decision;
  }
  FusionDecision decision =
      CheckDuplication(graph, static_cast<int32_t>(grouping->copies().size() + ops.size()));
  if (!decision.allowed()) return decision;
  std::vector<int32_t> members, all;
  grouping->Members(into, &members);
  std::set_union(members.begin(), members.end(), ops.begin(), ops.end(), std::back_inserter(all));
  decision = CheckGroup(graph, limits, all, CountOutputs(*grouping, all, into, into));
  if (decision.allowed()) decision = OrderBeforeWriters(ops, into, grouping);
  if (!decision.allowed()) return decision;
  grouping->AddCopies(ops, into);
  return {};
}

/*!
 * \brief "as urgent as": the unit of producer takes the urgency of consumer, or loses a given one.
 *
 * What leads to no gradient has none to give, and puts the unit behind all that do: at the last op
 * id, which is none of a gradient's producer, and still ahead of what leads to no gradient.
 */
FusionDecision ChangeUrgency(const Edit& edit, Grouping* grouping) {
  const OpGraph& graph = grouping->graph();
  int32_t group = grouping->home(edit.producer);
  int32_t rank = kNoPriority;
  if (edit.consumer >= 0) {
    int32_t other = grouping->home(edit.consumer);
    if (other == group) {
      return FusionDecision::Deny("relation: " + graph.Describe(edit.producer) + " and " +
                                  graph.Describe(edit.consumer) + " share a unit");
    }
    rank = grouping->PriorityOf(other);
    if (rank == kNoPriority) rank = graph.Urgency(edit.consumer);
    if (rank == kNotUrgent) rank = graph.num_ops() - 1;
  }
  if (rank == grouping->PriorityOf(group)) {
    return FusionDecision::Deny("urgency: the unit of " + graph.Describe(edit.producer) +
                                " has that urgency already");
  }
  grouping->SetPriority(edit.producer, rank);
  return {};
}

}  // namespace

const char* EditKindName(EditKind kind) {
  switch (kind) {
    case EditKind::kFuse:
      return "fuse";
    case EditKind::kFuseDuplicate:
      return "fuse-duplicate";
    case EditKind::kMergeBuckets:
      return "merge-buckets";
    case EditKind::kSplitBucket:
      return "split-bucket";
    case EditKind::kMoveGradient:
      return "move-gradient";
    case EditKind::kTakeOut:
      return "take-out";
    case EditKind::kReorder:
      return "reorder";
  }
  throw std::logic_error("unknown edit kind " + std::to_string(static_cast<int32_t>(kind)));
}

FusionDecision ApplyEdit(const FusionLimits& limits, const Edit& edit, Grouping* grouping) {
  FusionDecision decision = CheckRelation(grouping->graph(), edit);
  if (!decision.allowed()) return decision;
  switch (edit.kind) {
    case EditKind::kFuse:
      return Fuse(limits, edit, grouping);
    case EditKind::kFuseDuplicate:
      return FuseDuplicate(limits, edit, grouping);
    case EditKind::kMergeBuckets:
      return MergeBuckets(limits, edit.producer, edit.consumer, grouping);
    case EditKind::kSplitBucket:
      return SplitBucket(edit.producer, edit.consumer, grouping);
    case EditKind::kMoveGradient:
      return MoveGradient(limits, edit.producer, edit.consumer, grouping);
    case EditKind::kTakeOut:
      return TakeOut(limits, edit.producer, edit.consumer, grouping);
    case EditKind::kReorder:
      return ChangeUrgency(edit, grouping);
  }
  throw std::logic_error("unknown edit kind");
}

Strategy Replay(const OpGraph& graph, const FusionLimits& limits, const Strategy& start,
                const std::vector<Edit>& edits) {
  Grouping grouping(graph);
  grouping.Load(start);
  for (size_t i = 0; i < edits.size(); ++i) {
    FusionDecision decision = ApplyEdit(limits, edits[i], &grouping);
    if (decision.allowed()) continue;
    throw std::invalid_argument("edit " + std::to_string(i) + " (" + EditKindName(edits[i].kind) +
                                " " + std::to_string(edits[i].producer) + " -> " +
                                std::to_string(edits[i].consumer) +
                                ") is illegal: " + decision.reason());
  }
  return grouping.ToStrategy(grouping.CanonicalOrder());
}

}  // namespace disco_fuse
