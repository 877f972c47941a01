#include "strategy/bucket_edits.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace disco_fuse {
namespace {

/*! \brief Adds the groups that produce the gradient of `op`. */
void AddGradientGroups(const Grouping& grouping, int32_t op, std::vector<int32_t>* groups) {
  for (const DataEnd& end : grouping.graph().producers(op)) {
    groups->push_back(grouping.home(end.op));
  }
}

void SortUnique(std::vector<int32_t>* values) {
  std::sort(values->begin(), values->end());
  values->erase(std::unique(values->begin(), values->end()), values->end());
}

/*! \brief The groups that produce the gradients of the bucket of `op`, ascending. */
std::vector<int32_t> GradientGroups(const Grouping& grouping, int32_t op) {
  std::vector<int32_t> groups;
  int32_t member = op;
  do {
    AddGradientGroups(grouping, member, &groups);
    member = grouping.next(member);
  } while (member != op);
  SortUnique(&groups);
  return groups;
}

/*! \brief Whether a group of `groups` is one of `others` or needs one directly. */
bool Touches(const Grouping& grouping, const std::vector<int32_t>& groups,
             const std::vector<int32_t>& others) {
  auto is_other = [&](int32_t group) {
    return std::binary_search(others.begin(), others.end(), group);
  };
  for (int32_t group : groups) {
    bool touches = is_other(group);
    grouping.ForEachPredecessor(group,
                                [&](int32_t before) { touches = touches || is_other(before); });
    if (touches) return true;
  }
  return false;
}

bool GradientsTouch(const Grouping& grouping, int32_t a, int32_t b) {
  std::vector<int32_t> groups_a, groups_b;
  AddGradientGroups(grouping, a, &groups_a);
  AddGradientGroups(grouping, b, &groups_b);
  SortUnique(&groups_a);
  SortUnique(&groups_b);
  // The two that are named are mostly the ones that touch, and buckets may be large.
  if (Touches(grouping, groups_a, groups_b) || Touches(grouping, groups_b, groups_a)) return true;
  groups_a = GradientGroups(grouping, a);
  groups_b = GradientGroups(grouping, b);
  return Touches(grouping, groups_a, groups_b) || Touches(grouping, groups_b, groups_a);
}

/*! \brief Whether the gradient produced next to `op`, on either side, is in `bucket`. */
bool StandsBeside(const Grouping& grouping, int32_t op, int32_t bucket) {
  const std::vector<int32_t>& ops = grouping.graph().allreduce_ops();
  int32_t place = grouping.graph().ProductionPlace(op);
  if (place > 0 && grouping.home(ops[place - 1]) == bucket) return true;
  return place + 1 < static_cast<int32_t>(ops.size()) && grouping.home(ops[place + 1]) == bucket;
}

/*! \brief Whether a member of one bucket and a member of the other follow each other, in the
 * program or, since both buckets were given the same urgency, in the list schedule. */
bool FollowInProduction(const Grouping& grouping, int32_t a, int32_t b) {
  int32_t bucket_a = grouping.home(a);
  int32_t bucket_b = grouping.home(b);
  int32_t rank = grouping.PriorityOf(bucket_a);
  if (rank != kNoPriority && rank == grouping.PriorityOf(bucket_b)) return true;
  int32_t in_a = a;
  int32_t in_b = b;
  // In step, so that it takes as long as the smaller bucket is.
  do {
    if (StandsBeside(grouping, in_a, bucket_b) || StandsBeside(grouping, in_b, bucket_a)) {
      return true;
    }
    in_a = grouping.next(in_a);
    in_b = grouping.next(in_b);
  } while (in_a != a && in_b != b);
  return false;
}

FusionDecision CheckCollective(const OpGraph& graph, int32_t a, int32_t b) {
  FusionDecision decision = CheckMergeClass(graph, a, a);
  return decision.allowed() ? CheckMergeClass(graph, b, b) : decision;
}

std::string Both(const OpGraph& graph, int32_t a, int32_t b) {
  return graph.Describe(a) + " and " + graph.Describe(b);
}

}  // namespace

FusionDecision CheckNeighbours(const FusionLimits& limits, const Grouping& grouping, int32_t a,
                               int32_t b) {
  if (limits.bucket_neighbours == BucketNeighbours::kProductionOrder &&
      FollowInProduction(grouping, a, b)) {
    return {};
  }
  if (GradientsTouch(grouping, a, b)) return {};
  return FusionDecision::Deny("neighbours: the buckets of " + Both(grouping.graph(), a, b) +
                              " are no neighbours");
}

FusionDecision MergeBuckets(const FusionLimits& limits, int32_t a, int32_t b, Grouping* grouping) {
  const OpGraph& graph = grouping->graph();
  FusionDecision decision = CheckMergeClass(graph, a, b);
  if (!decision.allowed()) return decision;
  int32_t first = grouping->home(a);
  int32_t last = grouping->home(b);
  if (first == last) {
    return FusionDecision::Deny("relation: " + Both(graph, a, b) + " share a bucket already");
  }
  decision = CheckNeighbours(limits, *grouping, a, b);
  if (!decision.allowed()) return decision;
  if (!grouping->Precedes(first, last)) std::swap(first, last);
  if (grouping->Reaches(first, last, /*allow_direct=*/false)) {
    return FusionDecision::Deny("cycle: the bucket of " + graph.Describe(last) +
                                " depends on the bucket of " + graph.Describe(first));
  }
  grouping->Merge(first, last);
  return {};
}

FusionDecision SplitBucket(int32_t first, int32_t second, Grouping* grouping) {
  const OpGraph& graph = grouping->graph();
  FusionDecision decision = CheckCollective(graph, first, second);
  if (!decision.allowed()) return decision;
  if (grouping->home(first) != grouping->home(second)) {
    return FusionDecision::Deny("relation: " + Both(graph, first, second) + " share no bucket");
  }
  int32_t place = graph.ProductionPlace(second);
  if (graph.ProductionPlace(first) >= place) {
    return FusionDecision::Deny("relation: " + graph.Describe(first) + " is not produced before " +
                                graph.Describe(second));
  }
  std::vector<int32_t> later;
  int32_t op = second;
  do {
    if (graph.ProductionPlace(op) >= place) later.push_back(op);
    op = grouping->next(op);
  } while (op != second);
  std::sort(later.begin(), later.end());
  // Members of a bucket never depend on each other, so that nothing can go wrong.
  grouping->TakeOut(later, {}, /*before=*/false);
  return {};
}

FusionDecision MoveGradient(const FusionLimits& limits, int32_t op, int32_t target,
                            Grouping* grouping) {
  const OpGraph& graph = grouping->graph();
  FusionDecision decision = CheckMergeClass(graph, op, target);
  if (!decision.allowed()) return decision;
  int32_t first = grouping->home(op);
  int32_t last = grouping->home(target);
  if (first == last) {
    return FusionDecision::Deny("relation: " + Both(graph, op, target) + " share a bucket already");
  }
  if (grouping->next(op) == op) {
    return FusionDecision::Deny("relation: " + graph.Describe(op) +
                                " is alone in its bucket, which could only be merged");
  }
  decision = CheckNeighbours(limits, *grouping, op, target);
  if (!decision.allowed()) return decision;
  if (!grouping->Precedes(first, last)) std::swap(first, last);
  // Stricter than needed where another member of the bucket is the one that leads there.
  if (grouping->Reaches(first, last, /*allow_direct=*/false)) {
    return FusionDecision::Deny("cycle: the bucket of " + graph.Describe(last) +
                                " depends on the bucket of " + graph.Describe(first));
  }
  grouping->TakeOut({op}, {}, /*before=*/false);
  first = grouping->home(op);
  last = grouping->home(target);
  if (!grouping->Precedes(first, last)) std::swap(first, last);
  grouping->Reaches(first, last, /*allow_direct=*/false);
  grouping->Merge(first, last);
  return {};
}

}  // namespace disco_fuse
