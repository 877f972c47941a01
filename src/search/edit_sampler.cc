#include "search/edit_sampler.h"

#include <algorithm>
#include <vector>

namespace disco_fuse {
namespace {

bool IsFusible(const OpGraph& graph, int32_t op) {
  Span<int32_t> self(&op, 1);
  return CheckKind(graph, self).allowed() && CheckPattern(graph, self).allowed();
}

}  // namespace

EditSampler::EditSampler(const OpGraph& graph, const FusionLimits& limits, int32_t num_tries)
    : graph_(&graph), limits_(limits), num_tries_(num_tries) {
  for (int32_t op = 0; op < graph.num_ops(); ++op) {
    if (!IsFusible(graph, op)) continue;
    for (const DataEnd& end : graph.producers(op)) {
      if (!IsFusible(graph, end.op)) continue;
      consumers_.push_back(op);
      break;
    }
  }
}

bool EditSampler::ApplyRandom(EditKind kind, Rng* rng, Grouping* grouping, Edit* applied) {
  for (int32_t i = 0; i < num_tries_; ++i) {
    bool drawn = kind == EditKind::kMergeBuckets ? DrawMerge(rng, *grouping, applied)
                                                 : DrawFusion(kind, rng, *grouping, applied);
    if (drawn && ApplyEdit(limits_, *applied, grouping).allowed()) return true;
  }
  return false;
}

void EditSampler::ApplyChain(EditKind kind, int32_t length, Rng* rng, Grouping* grouping,
                             std::vector<Edit>* applied) {
  if (consumers_.empty()) return;
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

bool EditSampler::DrawFusion(EditKind kind, Rng* rng, const Grouping& grouping, Edit* edit) {
  if (consumers_.empty()) return false;
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

void EditSampler::AddProductionNeighbours(const Grouping& grouping, int32_t place) {
  const std::vector<int32_t>& ops = graph_->allreduce_ops();
  int32_t bucket = grouping.home(ops[place]);
  for (int32_t step : {-1, 1}) {
    int32_t i = place + step;
    while (i >= 0 && i < static_cast<int32_t>(ops.size()) && grouping.home(ops[i]) == bucket) {
      i += step;
    }
    if (i >= 0 && i < static_cast<int32_t>(ops.size())) choices_.push_back(ops[i]);
  }
}

/*! \brief Collectives whose gradients come from the groups around the one that makes op's. */
void EditSampler::AddGradientNeighbours(const Grouping& grouping, int32_t op) {
  std::vector<int32_t> around;
  std::vector<int32_t> members;
  for (const DataEnd& end : graph_->producers(op)) {
    int32_t group = grouping.home(end.op);
    around.push_back(group);
    grouping.ForEachPredecessor(group, [&](int32_t before) { around.push_back(before); });
    grouping.Members(group, &members);
    for (int32_t member : members) {
      for (const DataEnd& reader : graph_->consumers(member)) {
        grouping.ForEachHolder(reader.op, [&](int32_t holder) { around.push_back(holder); });
      }
    }
  }
  std::sort(around.begin(), around.end());
  around.erase(std::unique(around.begin(), around.end()), around.end());
  for (int32_t group : around) {
    if (graph_->IsAllReduce(group)) continue;
    grouping.Members(group, &members);
    for (int32_t member : members) {
      for (const DataEnd& reader : graph_->consumers(member)) {
        if (graph_->IsAllReduce(reader.op) && grouping.home(reader.op) != grouping.home(op)) {
          choices_.push_back(reader.op);
        }
      }
    }
  }
}

bool EditSampler::DrawMerge(Rng* rng, const Grouping& grouping, Edit* edit) {
  const std::vector<int32_t>& ops = graph_->allreduce_ops();
  if (ops.size() < 2) return false;
  int32_t place = rng->Below(static_cast<int32_t>(ops.size()));
  choices_.clear();
  AddGradientNeighbours(grouping, ops[place]);
  if (limits_.bucket_neighbours == BucketNeighbours::kProductionOrder) {
    AddProductionNeighbours(grouping, place);
  }
  // A neighbour for two reasons is still one choice.
  std::sort(choices_.begin(), choices_.end());
  choices_.erase(std::unique(choices_.begin(), choices_.end()), choices_.end());
  if (choices_.empty()) return false;
  int32_t other = choices_[rng->Below(static_cast<int32_t>(choices_.size()))];
  *edit = {EditKind::kMergeBuckets, std::min(ops[place], other), std::max(ops[place], other)};
  return true;
}

}  // namespace disco_fuse
