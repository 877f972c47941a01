#include "search/exhaustive.h"

#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include "search/lower_bound.h"

namespace disco_fuse {
namespace {

std::vector<Edit> AllEdits(const OpGraph& graph) {
  std::vector<Edit> edits;
  for (const Edge& edge : graph.edges()) {
    if (edge.order_only) continue;
    edits.push_back({EditKind::kFuse, edge.producer, edge.consumer});
    edits.push_back({EditKind::kFuseDuplicate, edge.producer, edge.consumer});
  }
  const std::vector<int32_t>& collectives = graph.allreduce_ops();
  for (size_t i = 0; i < collectives.size(); ++i) {
    for (size_t j = i + 1; j < collectives.size(); ++j) {
      edits.push_back({EditKind::kMergeBuckets, collectives[i], collectives[j]});
    }
  }
  return edits;
}

struct State {
  Strategy strategy;
  Nanoseconds makespan;
  size_t parent;
  Edit edit;
};

}  // namespace

SearchResult Exhaustive(const OpGraph& graph, const CostModel& model, const Cluster& cluster,
                        const FusionLimits& limits, int64_t max_states) {
  Evaluator evaluator(graph, model, cluster);
  Grouping grouping(graph);
  std::vector<State> states;
  std::unordered_set<Hash128, Hash128Key> visited;
  auto add = [&](size_t parent, const Edit& edit) {
    if (!visited.insert(grouping.Hash()).second) return;
    if (static_cast<int64_t>(states.size()) >= max_states) {
      throw std::invalid_argument("exhaustive search is for tiny graphs: this one has more than " +
                                  std::to_string(max_states) + " strategies");
    }
    evaluator.Price({&grouping});
    Nanoseconds makespan = evaluator.Schedule(0);
    states.push_back({grouping.ToStrategy(evaluator.Order(0)), makespan, parent, edit});
  };
  add(0, {});
  std::vector<Edit> edits = AllEdits(graph);
  for (size_t i = 0; i < states.size(); ++i) {
    for (const Edit& edit : edits) {
      grouping.Load(states[i].strategy);
      if (ApplyEdit(limits, edit, &grouping).allowed()) add(i, edit);
    }
  }
  size_t best = 0;
  for (size_t i = 1; i < states.size(); ++i) {
    auto key = [&](size_t s) {
      return std::make_tuple(states[s].makespan, states[s].strategy.hash());
    };
    if (key(i) < key(best)) best = i;
  }
  SearchResult result{states[best].strategy};
  result.makespan = states[best].makespan;
  result.initial_makespan = states[0].makespan;
  result.lower_bound = LowerBound(graph, model, cluster);
  for (size_t i = best; i != 0; i = states[i].parent) {
    result.edits.insert(result.edits.begin(), states[i].edit);
  }
  result.num_steps = result.num_candidates = static_cast<int64_t>(states.size());
  result.stop_reason = StopReason::kExhausted;
  return result;
}

}  // namespace disco_fuse
