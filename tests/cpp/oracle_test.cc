#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cost/roofline.h"
#include "search/backtracking.h"
#include "search/exhaustive.h"
#include "search/rng.h"
#include "test_graphs.h"

namespace disco_fuse {
namespace {

// The search against exhaustive search, on 200 random graphs that are the same on every run.

constexpr int kNumGraphs = 200;
constexpr int64_t kMaxStates = 200000;

Cluster Network() { return {AllReduceModel{20, 0.02, 20, 0.02, 0}, 1250}; }

/*! \brief Ops of unlike lengths: 5 us and more for each unit of scale, 3 us of launch. */
DeviceSpec Device() { return {"test", 0.02, 0.4, 3.0, 1.0}; }

/*! \brief Up to `max_ops` ops of any kind, at most 3 of them AllReduces, of different sizes. */
OpGraph RandomGraph(Rng* rng, int32_t max_ops) {
  GraphBuilder builder;
  int32_t num_ops = 3 + rng->Below(max_ops - 2);
  int32_t num_collectives = 0;
  for (int32_t id = 0; id < num_ops; ++id) {
    std::vector<int32_t> producers;
    for (int32_t p = 0; p < id; ++p) {
      if (rng->Below(id) < 2) producers.push_back(p);
    }
    int32_t kind = rng->Below(8);
    if (kind < 3 && !producers.empty() && num_collectives < 3) {
      builder.AllReduce(producers.back());
      ++num_collectives;
    } else if (kind == 3) {
      builder.Library(producers);
    } else if (kind == 4) {
      builder.Reduce(producers);
    } else {
      builder.Elemwise(producers);
    }
    int64_t scale = 1 + rng->Below(16);
    builder.op(id).bytes_written *= scale;
    builder.op(id).flops *= static_cast<double>(scale);
    if (id > 0 && rng->Below(8) == 0) builder.Before(rng->Below(id), id);
  }
  return builder.Build();
}

SearchConfig Loose(const std::vector<EditKind>& methods) {
  SearchConfig config;
  config.alpha = 100;
  config.patience = 4000;
  config.refill = config.drop_stale = true;
  config.limits.bucket_neighbours = BucketNeighbours::kProductionOrder;
  config.methods = methods;
  return config;
}

TEST(Oracle, TheLooseSearchFindsTheOptimum) {
  Rng rng(2026);
  int num_equal = 0;
  SearchConfig config = Loose(SearchConfig().methods);
  for (int i = 0; i < kNumGraphs; ++i) {
    SCOPED_TRACE(i);
    OpGraph graph = RandomGraph(&rng, 7);
    RooflineCostModel model(graph, Device(), {});
    SearchResult oracle = Exhaustive(graph, model, Network(), config.limits, kMaxStates);
    SearchResult found = Search(graph, model, Network(), config, {}, {});
    EXPECT_GE(found.makespan, oracle.makespan);
    EXPECT_LE(oracle.lower_bound, oracle.makespan);
    num_equal += found.makespan == oracle.makespan ? 1 : 0;
  }
  EXPECT_GE(num_equal, kNumGraphs * 95 / 100);
  RecordProperty("num_equal", num_equal);
}

TEST(Oracle, NoEditBeatsTheBestOrderOfTheBestStrategy) {
  Rng rng(7);
  std::vector<EditKind> all, unordered;
  for (int32_t kind = 0; kind < kNumEditKinds; ++kind) {
    all.push_back(static_cast<EditKind>(kind));
    if (all.back() != EditKind::kReorder) unordered.push_back(all.back());
  }
  SearchConfig config = Loose(all);
  int num_equal = 0, num_better_order = 0;
  for (int i = 0; i < kNumGraphs; ++i) {
    SCOPED_TRACE(i);
    OpGraph graph = RandomGraph(&rng, 6);
    RooflineCostModel model(graph, Device(), {});
    SearchResult listed = Exhaustive(graph, model, Network(), config.limits, kMaxStates, unordered);
    SearchResult ordered =
        Exhaustive(graph, model, Network(), config.limits, kMaxStates, unordered, true);
    SearchResult found = Search(graph, model, Network(), config, {}, {});
    EXPECT_GE(found.makespan, ordered.makespan);
    EXPECT_LE(ordered.makespan, listed.makespan);
    num_equal += found.makespan == ordered.makespan ? 1 : 0;
    num_better_order += ordered.makespan < listed.makespan ? 1 : 0;
  }
  EXPECT_GE(num_equal, kNumGraphs * 95 / 100);
  EXPECT_GE(num_better_order, 3);
  RecordProperty("num_equal", num_equal);
  RecordProperty("num_better_order", num_better_order);
}

TEST(Oracle, PrioritiesBeatEveryListSchedule) {
  // The gradient that is produced last is computed fastest and takes longest to send.
  GraphBuilder builder;
  int32_t slow = builder.Library({});
  int32_t fast = builder.Library({});
  builder.op(slow).bytes_written = 24000;
  int32_t small = builder.AllReduce(slow);
  int32_t large = builder.AllReduce(fast);
  builder.op(large).bytes_written = 40000;
  builder.op(large).merge_class = "another dtype";
  OpGraph graph = builder.Build();
  RooflineCostModel model(graph, Device(), {});
  SearchConfig config = Loose({EditKind::kMergeBuckets, EditKind::kReorder});
  SearchResult listed = Exhaustive(graph, model, Network(), config.limits, kMaxStates);
  SearchResult ordered = Exhaustive(graph, model, Network(), config.limits, kMaxStates,
                                    {EditKind::kMergeBuckets}, /*all_orders=*/true);
  SearchResult found = Search(graph, model, Network(), config, {}, {});
  EXPECT_LT(ordered.makespan, listed.makespan);
  EXPECT_EQ(found.makespan, ordered.makespan);
  EXPECT_EQ(found.best.order(), (std::vector<int32_t>{fast, large, slow, small}));
}

TEST(Oracle, AllOrdersAreLegalAndAsFastAsSimulated) {
  Rng rng(3);
  for (int i = 0; i < 20; ++i) {
    OpGraph graph = RandomGraph(&rng, 6);
    RooflineCostModel model(graph, Device(), {});
    SearchResult result =
        Exhaustive(graph, model, Network(), {}, kMaxStates, SearchConfig().methods, true);
    const Strategy& best = result.best;
    EXPECT_EQ(Strategy::Create(graph, {}, best.group_of(), best.duplicated(), best.order()), best);
    Grouping grouping(graph);
    grouping.Load(best);
    Evaluator evaluator(graph, model, Network());
    evaluator.Price({&grouping});
    const UnitGraph& units = evaluator.units(0);
    std::vector<int32_t> order;
    for (int32_t name : best.order()) order.push_back(units.unit_of(name));
    EXPECT_EQ(Simulate(units, order, evaluator.durations(0), 1250).makespan, result.makespan);
  }
}

}  // namespace
}  // namespace disco_fuse
