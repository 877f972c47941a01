#include "search/edit_sampler.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace disco_fuse {
namespace {

bool IsFusible(const OpGraph& graph, int32_t op) {
  Span<int32_t> self(&op, 1);
  return CheckKind(graph, self).allowed() && CheckPattern(graph, self).allowed();
}

}  // namespace

EditSampler::EditSampler(const OpGraph& graph, const FusionLimits& limits, int32_t num_tries)
    : graph_(&graph), limits_(limits), num_tries_(num_tries), is_gradient_(graph.num_ops(), 0) {
  for (int32_t op : graph.allreduce_ops()) {
    for (const DataEnd& end : graph.producers(op)) is_gradient_[end.op] = 1;
  }
  for (int32_t op = 0; op < graph.num_ops(); ++op) {
    if (graph.Urgency(op) == kNotUrgent) not_urgent_.push_back(op);
    if (!IsFusible(graph, op)) continue;
    for (const DataEnd& end : graph.producers(op)) {
      if (!IsFusible(graph, end.op)) continue;
      consumers_.push_back(op);
      break;
    }
  }
}

bool EditSampler::CanDraw(EditKind kind) const {
  switch (kind) {
    case EditKind::kFuse:
    case EditKind::kFuseDuplicate:
    case EditKind::kTakeOut:
      return !consumers_.empty();
    case EditKind::kMergeBuckets:
    case EditKind::kSplitBucket:
    case EditKind::kMoveGradient:
      return graph_->allreduce_ops().size() >= 2;
    case EditKind::kReorder:
      return !graph_->allreduce_ops().empty();
  }
  throw std::logic_error("unknown edit kind");
}

bool EditSampler::ApplyRandom(EditKind kind, Rng* rng, Grouping* grouping, Edit* applied) {
  if (!CanDraw(kind)) return false;
  for (int32_t i = 0; i < num_tries_; ++i) {
    if (Draw(kind, rng, *grouping, applied) && ApplyEdit(limits_, *applied, grouping).allowed())
      return true;
  }
  return false;
}

void EditSampler::ApplyChain(EditKind kind, int32_t length, Rng* rng, Grouping* grouping,
                             std::vector<Edit>* applied) {
  if (!CanDraw(kind)) return;
  int32_t into = consumers_[rng->Below(static_cast<int32_t>(consumers_.size()))];
  for (int32_t i = 0; i < length; ++i) {
    Edit edit;
    bool done = false;
    for (int32_t j = 0; j < num_tries_ && !done; ++j) {
      done = DrawInto(kind, into, rng, *grouping, &edit) &&
             ApplyEdit(limits_, edit, grouping).allowed();
    }
    if (!done) return;
    applied->push_back(edit);
  }
}

/*! \brief A producer of any member of the group that is home of `into`. */
bool EditSampler::DrawInto(EditKind kind, int32_t into, Rng* rng, const Grouping& grouping,
                           Edit* edit) {
  int32_t group = grouping.home(into);
  grouping.Members(group, &members_);
  places_.clear();
  for (int32_t member : members_) {
    // The edit names the group by an op that is at home there.
    if (grouping.home(member) != group) continue;
    for (const DataEnd& end : graph_->producers(member)) {
      if (!grouping.Holds(group, end.op) && IsFusible(*graph_, end.op)) {
        places_.push_back({kind, end.op, member});
      }
    }
  }
  if (places_.empty()) return false;
  *edit = places_[rng->Below(static_cast<int32_t>(places_.size()))];
  return true;
}

bool EditSampler::Draw(EditKind kind, Rng* rng, const Grouping& grouping, Edit* edit) {
  switch (kind) {
    case EditKind::kFuse:
    case EditKind::kFuseDuplicate:
      return DrawFusion(kind, rng, grouping, edit);
    case EditKind::kMergeBuckets:
      return DrawMerge(rng, grouping, edit);
    case EditKind::kSplitBucket:
      return DrawSplit(rng, grouping, edit);
    case EditKind::kMoveGradient:
      return DrawMove(rng, grouping, edit);
    case EditKind::kTakeOut:
      return DrawTakeOut(rng, grouping, edit);
    case EditKind::kReorder:
      return DrawReorder(rng, grouping, edit);
  }
  throw std::logic_error("unknown edit kind");
}

bool EditSampler::DrawFusion(EditKind kind, Rng* rng, const Grouping& grouping, Edit* edit) {
  int32_t consumer = consumers_[rng->Below(static_cast<int32_t>(consumers_.size()))];
  choices_.clear();
  int32_t group = grouping.home(consumer);
  for (const DataEnd& end : graph_->producers(consumer)) {
    bool inside =
        kind == EditKind::kFuse ? grouping.home(end.op) == group : grouping.Holds(group, end.op);
    if (!inside && IsFusible(*graph_, end.op)) choices_.push_back(end.op);
  }
  if (choices_.empty()) return false;
  *edit = {kind, choices_[rng->Below(static_cast<int32_t>(choices_.size()))], consumer};
  return true;
}

/*! \brief Where the run of the bucket around `place` ends in one direction: the place behind it. */
int32_t EditSampler::RunEnd(const Grouping& grouping, int32_t place, int32_t step) const {
  const std::vector<int32_t>& ops = graph_->allreduce_ops();
  int32_t bucket = grouping.home(ops[place]);
  int32_t end = place + step;
  while (end >= 0 && end < static_cast<int32_t>(ops.size()) && grouping.home(ops[end]) == bucket) {
    end += step;
  }
  return end;
}

void EditSampler::AddProductionNeighbours(const Grouping& grouping, int32_t place) {
  const std::vector<int32_t>& ops = graph_->allreduce_ops();
  for (int32_t step : {-1, 1}) {
    int32_t end = RunEnd(grouping, place, step);
    if (end >= 0 && end < static_cast<int32_t>(ops.size())) choices_.push_back(ops[end]);
  }
}

/*! \brief Buckets that were given the same urgency follow each other as well. */
void EditSampler::AddEquallyUrgent(const Grouping& grouping, int32_t bucket) {
  int32_t rank = grouping.PriorityOf(bucket);
  if (rank == kNoPriority) return;
  for (const Priority& given : grouping.priorities()) {
    bool other = given.op != bucket && graph_->IsAllReduce(given.op);
    if (other && given.rank == rank) choices_.push_back(given.op);
  }
}

/*! \brief Collectives whose gradients come from the groups around the one that makes op's. */
void EditSampler::AddGradientNeighbours(const Grouping& grouping, int32_t op) {
  around_.clear();
  for (const DataEnd& end : graph_->producers(op)) {
    int32_t group = grouping.home(end.op);
    around_.push_back(group);
    grouping.ForEachPredecessor(group, [&](int32_t before) { around_.push_back(before); });
    // Others read a value from its home, so that copies in the group lead nowhere.
    int32_t member = group;
    do {
      for (const DataEnd& reader : graph_->consumers(member)) {
        grouping.ForEachHolder(reader.op, [&](int32_t holder) { around_.push_back(holder); });
      }
      member = grouping.next(member);
    } while (member != group);
  }
  std::sort(around_.begin(), around_.end());
  around_.erase(std::unique(around_.begin(), around_.end()), around_.end());
  for (int32_t group : around_) {
    if (!graph_->IsAllReduce(group)) AddCollectivesOf(grouping, group, grouping.home(op));
  }
}

/*! \brief Collectives outside `bucket` that send a gradient of `group`. */
void EditSampler::AddCollectivesOf(const Grouping& grouping, int32_t group, int32_t bucket) {
  int32_t member = group;
  do {
    if (is_gradient_[member] != 0) {
      for (const DataEnd& reader : graph_->consumers(member)) {
        if (graph_->IsAllReduce(reader.op) && grouping.home(reader.op) != bucket) {
          choices_.push_back(reader.op);
        }
      }
    }
    member = grouping.next(member);
  } while (member != group);
}

bool EditSampler::DrawMerge(Rng* rng, const Grouping& grouping, Edit* edit) {
  const std::vector<int32_t>& ops = graph_->allreduce_ops();
  int32_t place = rng->Below(static_cast<int32_t>(ops.size()));
  choices_.clear();
  bool by_production =
      limits_.bucket_neighbours == BucketNeighbours::kProductionOrder && rng->Below(4) > 0;
  if (by_production) {
    AddProductionNeighbours(grouping, place);
    AddEquallyUrgent(grouping, grouping.home(ops[place]));
  } else {
    AddGradientNeighbours(grouping, ops[place]);
  }
  // A neighbour for two reasons is still one choice.
  std::sort(choices_.begin(), choices_.end());
  choices_.erase(std::unique(choices_.begin(), choices_.end()), choices_.end());
  if (choices_.empty()) return false;
  int32_t other = choices_[rng->Below(static_cast<int32_t>(choices_.size()))];
  *edit = {EditKind::kMergeBuckets, std::min(ops[place], other), std::max(ops[place], other)};
  return true;
}

/*! \brief The place of the next gradient of the same bucket, or -1. */
int32_t EditSampler::NextInBucket(const Grouping& grouping, int32_t place) const {
  const std::vector<int32_t>& ops = graph_->allreduce_ops();
  int32_t bucket = grouping.home(ops[place]);
  for (size_t i = place + 1; i < ops.size(); ++i) {
    if (grouping.home(ops[i]) == bucket) return static_cast<int32_t>(i);
  }
  return -1;
}

bool EditSampler::DrawSplit(Rng* rng, const Grouping& grouping, Edit* edit) {
  const std::vector<int32_t>& ops = graph_->allreduce_ops();
  int32_t place = rng->Below(static_cast<int32_t>(ops.size()));
  if (grouping.next(ops[place]) == ops[place]) return false;
  int32_t next = NextInBucket(grouping, place);
  if (next < 0) return false;
  *edit = {EditKind::kSplitBucket, ops[place], ops[next]};
  return true;
}

/*! \brief The gradient at the border of two buckets, of either side. */
bool EditSampler::DrawMove(Rng* rng, const Grouping& grouping, Edit* edit) {
  const std::vector<int32_t>& ops = graph_->allreduce_ops();
  int32_t place = rng->Below(static_cast<int32_t>(ops.size()));
  if (grouping.next(ops[place]) == ops[place]) return false;
  int32_t step = rng->Below(2) == 0 ? -1 : 1;
  int32_t end = RunEnd(grouping, place, step);
  if (end < 0 || end >= static_cast<int32_t>(ops.size())) return false;
  *edit = {EditKind::kMoveGradient, ops[end - step], ops[end]};
  return true;
}

bool EditSampler::DrawTakeOut(Rng* rng, const Grouping& grouping, Edit* edit) {
  const std::vector<Copy>& copies = grouping.copies();
  if (!copies.empty() && rng->Below(2) == 0) {
    const Copy& copy = copies[rng->Below(static_cast<int32_t>(copies.size()))];
    *edit = {EditKind::kTakeOut, copy.op, copy.group};
    return true;
  }
  // Every op of a group of several is a consumer or produces for one of the same group.
  int32_t op = consumers_[rng->Below(static_cast<int32_t>(consumers_.size()))];
  if (rng->Below(2) == 0) {
    Span<DataEnd> ends = graph_->producers(op);
    op = ends[rng->Below(static_cast<int32_t>(ends.size()))].op;
  }
  if (grouping.next(op) == op || graph_->IsAllReduce(op)) return false;
  *edit = {EditKind::kTakeOut, op, op};
  return true;
}

/*!
 * \brief A unit gets the urgency of one that is ready at a similar time, of any, or its own again;
 * or a bucket comes behind all others.
 *
 * Readers of one value become ready together: the weight gradient and the input gradient read the
 * output gradient. Updates lead to no gradient and fill gaps; with the urgency of any unit one runs
 * as soon as its bucket is done. What the last gradient does not need, as sums of biases, runs
 * while that gradient travels, once its own bucket is the least urgent one.
 */
bool EditSampler::DrawReorder(Rng* rng, const Grouping& grouping, Edit* edit) {
  int32_t how = rng->Below(5);
  const std::vector<Priority>& given = grouping.priorities();
  if (how == 0 && !given.empty()) {
    int32_t op = given[rng->Below(static_cast<int32_t>(given.size()))].op;
    *edit = {EditKind::kReorder, op, -1};
    return true;
  }
  const std::vector<int32_t>& collectives = graph_->allreduce_ops();
  if (how == 1 && !collectives.empty() && !not_urgent_.empty()) {
    int32_t last = collectives[rng->Below(static_cast<int32_t>(collectives.size()))];
    *edit = {EditKind::kReorder, last, not_urgent_.back()};
    return true;
  }
  int32_t op = rng->Below(graph_->num_ops());
  int32_t other = rng->Below(graph_->num_ops());
  Span<DataEnd> producers = graph_->producers(op);
  if (how >= 3 && !producers.empty()) {
    int32_t shared = producers[rng->Below(static_cast<int32_t>(producers.size()))].op;
    Span<DataEnd> readers = graph_->consumers(shared);
    other = readers[rng->Below(static_cast<int32_t>(readers.size()))].op;
  }
  // Of equal urgencies the exchange mostly changes nothing.
  int32_t urgency = graph_->Urgency(other);
  if (urgency == kNotUrgent || graph_->Urgency(op) == urgency) return false;
  *edit = {EditKind::kReorder, op, other};
  return true;
}

}  // namespace disco_fuse
