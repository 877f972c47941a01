#include "search/exhaustive.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include "search/lower_bound.h"

namespace disco_fuse {
namespace {

/*! \brief Pairs of ops that an edit of a kind may name, whatever the strategy. */
std::vector<std::pair<int32_t, int32_t>> Places(const OpGraph& graph, EditKind kind) {
  std::vector<std::pair<int32_t, int32_t>> places;
  if (IsFusion(kind)) {
    for (const Edge& edge : graph.edges()) {
      if (!edge.order_only) places.emplace_back(edge.producer, edge.consumer);
    }
    return places;
  }
  bool of_ops = kind == EditKind::kTakeOut || kind == EditKind::kReorder;
  std::vector<int32_t> ops = graph.allreduce_ops();
  if (of_ops) {
    ops.resize(graph.num_ops());
    std::iota(ops.begin(), ops.end(), 0);
  }
  for (int32_t a : ops) {
    if (kind == EditKind::kReorder) places.emplace_back(a, -1);
    for (int32_t b : ops) {
      if (kind != EditKind::kMergeBuckets || a < b) places.emplace_back(a, b);
    }
  }
  return places;
}

std::vector<Edit> AllEdits(const OpGraph& graph, const std::vector<EditKind>& methods) {
  std::vector<Edit> edits;
  for (EditKind kind : methods) {
    for (const auto& [producer, consumer] : Places(graph, kind)) {
      edits.push_back({kind, producer, consumer});
    }
  }
  return edits;
}

/*! \brief Tries all orders of the units of one strategy, and leaves out what cannot be better. */
class OrderSearch {
 public:
  OrderSearch(const UnitGraph& units, const std::vector<Nanoseconds>& durations)
      : units_(units), durations_(durations), num_missing_(units.num_units()) {
    for (int32_t unit = 0; unit < units.num_units(); ++unit) {
      num_missing_[unit] = static_cast<int32_t>(units.predecessors(unit).size());
    }
  }

  /*! \brief Lowers `makespan` and replaces `order` (representatives) if an order is better. */
  void Improve(int32_t contention_permille, Nanoseconds* makespan, std::vector<int32_t>* order) {
    Streams streams(contention_permille);
    streams.Reset(units_);
    best_ = *makespan;
    Extend(streams, order);
    *makespan = best_;
  }

 private:
  void Extend(const Streams& streams, std::vector<int32_t>* order) {
    Nanoseconds end =
        std::max(streams.free(Stream::kCompute), streams.free(Stream::kCommunication));
    if (end >= best_) return;
    if (static_cast<int32_t>(prefix_.size()) == units_.num_units()) {
      best_ = end;
      *order = prefix_;
      return;
    }
    for (int32_t unit = 0; unit < units_.num_units(); ++unit) {
      if (num_missing_[unit] != 0) continue;
      num_missing_[unit] = -1;
      for (int32_t after : units_.successors(unit)) --num_missing_[after];
      prefix_.push_back(units_.representative(unit));
      Streams longer = streams;
      longer.Issue(units_, unit, durations_[unit]);
      Extend(longer, order);
      prefix_.pop_back();
      for (int32_t after : units_.successors(unit)) ++num_missing_[after];
      num_missing_[unit] = 0;
    }
  }

  const UnitGraph& units_;
  const std::vector<Nanoseconds>& durations_;
  std::vector<int32_t> num_missing_; /*!< -1 for units that have been issued */
  std::vector<int32_t> prefix_;
  Nanoseconds best_{0};
};

struct State {
  Strategy strategy;
  Nanoseconds makespan;
  size_t parent;
  Edit edit;
};

}  // namespace

SearchResult Exhaustive(const OpGraph& graph, const CostModel& model, const Cluster& cluster,
                        const FusionLimits& limits, int64_t max_states,
                        const std::vector<EditKind>& methods, bool all_orders) {
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
    std::vector<int32_t> order = evaluator.Order(0);
    if (all_orders) {
      OrderSearch(evaluator.units(0), evaluator.durations(0))
          .Improve(cluster.contention_permille, &makespan, &order);
    }
    states.push_back({grouping.ToStrategy(std::move(order)), makespan, parent, edit});
  };
  add(0, {});
  std::vector<Edit> edits = AllEdits(graph, methods);
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
  result.initial_makespan = result.best_start_makespan = states[0].makespan;
  result.found_makespan = result.makespan;
  result.lower_bound = LowerBound(graph, model, cluster);
  for (size_t i = best; i != 0; i = states[i].parent) {
    result.edits.insert(result.edits.begin(), states[i].edit);
  }
  result.num_steps = result.num_candidates = static_cast<int64_t>(states.size());
  result.num_found_candidates = result.num_candidates;
  result.num_unseen = result.num_candidates - 1;
  result.stop_reason = StopReason::kExhausted;
  return result;
}

}  // namespace disco_fuse
