#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/reflection/registry.h>

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "ffi/convert.h"
#include "search/backtracking.h"
#include "search/edit_effects.h"
#include "search/exhaustive.h"
#include "simulate/simulate.h"

namespace disco_fuse {
namespace {

/*! \brief One strategy, priced: what schedule and simulate need. */
struct Priced {
  Grouping grouping;
  Evaluator evaluator;
  Priced(const OpGraphRef& graph, const StrategyRef& strategy, const CostModelRef& model,
         const Cluster& cluster)
      : grouping(graph->graph), evaluator(graph->graph, *model->model, cluster) {
    grouping.Load(strategy->strategy);
    evaluator.Price({&grouping});
  }
};

StrategyRef Schedule(OpGraphRef graph, StrategyRef strategy, CostModelRef model, Fields cluster) {
  return Translate([&] {
    Priced priced(graph, strategy, model, ToCluster(cluster));
    priced.evaluator.Schedule(0);
    return StrategyRef(priced.grouping.ToStrategy(priced.evaluator.Order(0)));
  });
}

/*! \brief Events (unit, stream, start ns, finish ns), critical path, totals in ns and bytes. */
ffi::Array<ffi::Tensor> SimulateStrategy(OpGraphRef graph, StrategyRef strategy, CostModelRef model,
                                         Fields cluster_fields) {
  Cluster cluster = ToCluster(cluster_fields);
  Timeline timeline = Translate([&] {
    Priced priced(graph, strategy, model, cluster);
    const UnitGraph& units = priced.evaluator.units(0);
    // Units are numbered in the order of the grouping, which is the strategy's own.
    std::vector<int32_t> order(units.num_units());
    std::iota(order.begin(), order.end(), 0);
    Timeline result =
        Simulate(units, order, priced.evaluator.durations(0), cluster.contention_permille);
    result.memory = MemoryModel(graph->graph).Measure(units, order);
    return result;
  });
  std::vector<int64_t> events;
  for (const Event& event : timeline.events) {
    for (int64_t number :
         {static_cast<int64_t>(event.unit), static_cast<int64_t>(event.stream),
          static_cast<int64_t>(event.start.count()), static_cast<int64_t>(event.finish.count())}) {
      events.push_back(number);
    }
  }
  std::vector<int64_t> totals{timeline.makespan.count(),  timeline.compute.count(),
                              timeline.allreduce.count(), timeline.overlapped.count(),
                              timeline.memory.external,   timeline.memory.buckets,
                              timeline.memory.peak};
  return {ToTensor(events), ToTensor(timeline.critical_path), ToTensor(totals)};
}

std::vector<EditKind> ToKinds(const ffi::Array<int64_t>& methods) {
  std::vector<EditKind> kinds;
  for (int64_t kind : methods) kinds.push_back(static_cast<EditKind>(kind));
  return kinds;
}

SearchConfig ToConfig(const Fields& fields) {
  SearchConfig config;
  config.alpha = fields.at("alpha").cast<double>();
  config.beta = fields.at("beta").cast<int32_t>();
  config.patience = fields.at("patience").cast<int64_t>();
  config.seed = static_cast<uint64_t>(fields.at("seed").cast<int64_t>());
  config.max_steps = fields.at("max_steps").cast<int64_t>();
  config.children_per_pop = fields.at("children_per_pop").cast<int32_t>();
  config.queue_cap = fields.at("queue_cap").cast<int64_t>();
  config.memory_limit = fields.at("memory_limit").cast<int64_t>();
  config.prefer_few = fields.at("prefer_few").cast<bool>();
  config.num_chains = fields.at("num_chains").cast<int32_t>();
  config.refill = fields.at("refill").cast<bool>();
  config.drop_stale = fields.at("drop_stale").cast<bool>();
  config.num_starts = fields.at("num_starts").cast<int32_t>();
  config.num_threads = fields.at("num_threads").cast<int32_t>();
  config.num_tries = fields.at("num_tries").cast<int32_t>();
  config.report_every = fields.at("report_every").cast<int64_t>();
  config.methods = ToKinds(fields.at("methods").cast<ffi::Array<int64_t>>());
  config.limits = ToLimits(fields.at("limits").cast<Fields>());
  return config;
}

ffi::Array<ffi::Any> FromResult(const SearchResult& result) {
  std::vector<int64_t> numbers{result.makespan.count(),
                               result.initial_makespan.count(),
                               result.lower_bound.count(),
                               result.start,
                               result.found_makespan.count(),
                               result.best_start,
                               result.best_start_makespan.count(),
                               result.num_steps,
                               result.num_candidates,
                               result.num_found_candidates,
                               result.num_unseen,
                               result.num_looked_up,
                               result.num_priced};
  std::vector<int32_t> edits;
  for (const Edit& edit : result.edits) {
    edits.push_back(static_cast<int32_t>(edit.kind));
    edits.push_back(edit.producer);
    edits.push_back(edit.consumer);
  }
  return {StrategyRef(result.best), ToTensor(numbers), ToTensor(edits),
          ffi::String(StopReasonName(result.stop_reason))};
}

ffi::Array<ffi::Any> RunSearch(OpGraphRef graph, CostModelRef model, Fields cluster, Fields config,
                               ffi::Array<StrategyRef> initial,
                               ffi::Optional<ffi::Function> observer) {
  std::vector<Strategy> starts;
  for (const StrategyRef& strategy : initial) starts.push_back(strategy->strategy);
  Observer observe;
  if (observer.has_value()) {
    ffi::Function call = observer.value();
    observe = [call](const Progress& progress) {
      ffi::Optional<StrategyRef> found;
      if (progress.improved) found = StrategyRef(*progress.best);
      ffi::Any verdict = call(progress.num_steps, progress.num_candidates,
                              static_cast<int64_t>(progress.makespan.count()), found, progress.run,
                              progress.phase, progress.num_queued);
      return static_cast<Verdict>(verdict.cast<int32_t>());
    };
  }
  return Translate([&] {
    return FromResult(
        Search(graph->graph, *model->model, ToCluster(cluster), ToConfig(config), starts, observe));
  });
}

ffi::Array<ffi::Any> RunExhaustive(OpGraphRef graph, CostModelRef model, Fields cluster,
                                   Fields limits, int64_t max_states, ffi::Array<int64_t> methods,
                                   bool all_orders) {
  return Translate([&] {
    return FromResult(Exhaustive(graph->graph, *model->model, ToCluster(cluster), ToLimits(limits),
                                 max_states, ToKinds(methods), all_orders));
  });
}

/*! \brief Makespans in ns, that of the strategy first, -1 for illegal edits; and their reasons. */
ffi::Array<ffi::Any> RunEditEffects(OpGraphRef graph, Fields limits, CostModelRef model,
                                    Fields cluster, StrategyRef strategy, ffi::TensorView edits) {
  std::vector<Edit> list = ToEdits(edits);
  EditEffects found = Translate([&] {
    return EffectsOf(graph->graph, ToLimits(limits), *model->model, ToCluster(cluster),
                     strategy->strategy, list);
  });
  std::vector<int64_t> makespans{found.makespan.count()};
  ffi::Array<ffi::String> reasons;
  for (const EditEffect& effect : found.effects) {
    makespans.push_back(effect.decision.allowed() ? effect.makespan.count() : -1);
    reasons.push_back(ffi::String(effect.decision.reason()));
  }
  return {ToTensor(makespans), reasons};
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef()
      .def("disco_fuse.simulate.schedule", Schedule)
      .def("disco_fuse.simulate.simulate", SimulateStrategy)
      .def("disco_fuse.search.edit_effects", RunEditEffects)
      .def("disco_fuse.search.search", RunSearch)
      .def("disco_fuse.search.exhaustive", RunExhaustive);
}

}  // namespace disco_fuse
