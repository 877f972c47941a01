#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "cost/roofline.h"
#include "search/backtracking.h"
#include "search/edit_sampler.h"
#include "search/exhaustive.h"
#include "search/lower_bound.h"
#include "test_graphs.h"

namespace disco_fuse {
namespace {

Cluster TestCluster() { return {AllReduceModel{5, 0.01, 5, 0.01, 0}, 1200}; }

/*! \brief Two layers forward, then backward with a gradient and an update each. */
OpGraph TwoLayers(int num_layers = 2) {
  GraphBuilder builder;
  std::vector<int32_t> activations;
  int32_t x = builder.Elemwise({});
  for (int i = 0; i < num_layers; ++i) {
    x = builder.Elemwise({builder.Library({x})});
    activations.push_back(x);
  }
  int32_t dy = builder.Elemwise({x});
  for (int i = num_layers - 1; i >= 0; --i) {
    dy = builder.Elemwise({dy, activations[i]});
    int32_t gradient = builder.Reduce({dy});
    builder.op(builder.Elemwise({builder.AllReduce(gradient)})).is_output = true;
  }
  return builder.Build();
}

TEST(Search, TheSameSeedGivesTheSameResult) {
  OpGraph graph = TwoLayers(6);
  CallbackCostModel model = CountingModel();
  SearchConfig config;
  config.seed = 5;
  SearchResult a = Search(graph, model, TestCluster(), config, {}, {});
  SearchResult b = Search(graph, model, TestCluster(), config, {}, {});
  EXPECT_EQ(a.best, b.best);
  EXPECT_EQ(a.edits, b.edits);
  EXPECT_EQ(a.num_candidates, b.num_candidates);
  config.seed = 6;
  SearchResult c = Search(graph, model, TestCluster(), config, {}, {});
  EXPECT_NE(a.edits, c.edits);
}

TEST(Search, ASeedMeansTheSamePlanEverywhere) {
  // Recorded once: a change of this hash is a change of every plan made with a seed.
  OpGraph graph = TwoLayers(6);
  CallbackCostModel model = CountingModel();
  SearchResult result = Search(graph, model, TestCluster(), {}, {}, {});
  EXPECT_EQ(ToHex(result.best.hash()), "486a6d0facac8918850f6b56aebe7c88");
}

TEST(Search, EditsLeadToTheResult) {
  OpGraph graph = TwoLayers(4);
  CallbackCostModel model = CountingModel();
  SearchResult result = Search(graph, model, TestCluster(), {}, {}, {});
  EXPECT_LT(result.makespan, result.initial_makespan);
  EXPECT_EQ(result.start, 0);
  Strategy replayed = Replay(graph, {}, Strategy::Unfused(graph), result.edits);
  EXPECT_EQ(replayed.hash(), result.best.hash());
}

/*! \brief A search that ends by patience or a limit only, however small the graph. */
SearchConfig Persistent() {
  SearchConfig config;
  config.refill = config.drop_stale = true;
  return config;
}

TEST(Search, WhatWaitsWithoutAnImageIsRebuilt) {
  // Every kind of edit, a queue that is refilled, and generations far beyond a checkpoint.
  OpGraph graph = TwoLayers(12);
  CallbackCostModel model = CountingModel();
  SearchConfig config = Persistent();
  config.alpha = 1.2;
  config.beta = 4;
  config.methods = {EditKind::kFuse,        EditKind::kFuseDuplicate, EditKind::kMergeBuckets,
                    EditKind::kSplitBucket, EditKind::kMoveGradient,  EditKind::kTakeOut,
                    EditKind::kReorder};
  config.max_steps = 6000;
  config.patience = 6000;
  SearchResult kept = Search(graph, model, TestCluster(), config, {}, {});
  config.image_bytes = 0;
  SearchResult rebuilt = Search(graph, model, TestCluster(), config, {}, {});
  EXPECT_EQ(rebuilt.best, kept.best);
  EXPECT_EQ(rebuilt.edits, kept.edits);
  EXPECT_EQ(rebuilt.num_steps, kept.num_steps);
  EXPECT_EQ(rebuilt.num_unseen, kept.num_unseen);
  EXPECT_GT(kept.num_unseen, 1000);
  config.image_bytes = -1;
  EXPECT_THROW(Search(graph, model, TestCluster(), config, {}, {}), std::invalid_argument);
}

TEST(Search, FindsWhatExhaustiveSearchFinds) {
  OpGraph graph = TwoLayers();
  CallbackCostModel model = CountingModel();
  SearchResult oracle = Exhaustive(graph, model, TestCluster(), {}, 100000);
  EXPECT_EQ(oracle.stop_reason, StopReason::kExhausted);
  EXPECT_LE(oracle.lower_bound, oracle.makespan);
  EXPECT_EQ(Replay(graph, {}, Strategy::Unfused(graph), oracle.edits).hash(), oracle.best.hash());
  SearchResult result = Search(graph, model, TestCluster(), Persistent(), {}, {});
  EXPECT_EQ(result.makespan, oracle.makespan);
}

TEST(Search, ExhaustiveSearchRefusesLargeGraphs) {
  OpGraph graph = TwoLayers();
  CallbackCostModel model = CountingModel();
  EXPECT_THROW(Exhaustive(graph, model, TestCluster(), {}, 10), std::invalid_argument);
}

TEST(Search, StopsForEveryReason) {
  OpGraph graph = TwoLayers(6);
  CallbackCostModel model = CountingModel();
  auto run = [&](SearchConfig config, const Observer& observer) {
    return Search(graph, model, TestCluster(), config, {}, observer);
  };
  SearchConfig config;
  config.report_every = 1;
  config.drop_stale = config.refill = true;
  EXPECT_EQ(run(config, {}).stop_reason, StopReason::kPatience);
  config.max_steps = 40;
  SearchResult limited = run(config, {});
  EXPECT_EQ(limited.stop_reason, StopReason::kMaxSteps);
  EXPECT_EQ(limited.num_candidates, 40);
  auto say = [](Verdict verdict) {
    return [=](const Progress& p) { return p.num_candidates >= 7 ? verdict : Verdict::kContinue; };
  };
  SearchResult stopped = run(config, say(Verdict::kInterrupted));
  EXPECT_EQ(stopped.stop_reason, StopReason::kInterrupted);
  EXPECT_EQ(stopped.num_candidates, 7);
  EXPECT_LE(stopped.makespan, stopped.initial_makespan);
  EXPECT_EQ(run(config, say(Verdict::kTimeLimit)).stop_reason, StopReason::kTimeLimit);
}

TEST(Search, AnEmptyQueueEndsTheSearchUnlessRefilled) {
  // Everything but the unfused strategy is too dear to be followed up.
  OpGraph graph = TwoLayers();
  CallbackCostModel model("dear", [](const OpGraph&, const std::vector<Group>& groups) {
    std::vector<double> times_us;
    for (const Group& group : groups) times_us.push_back(group.ops.size() > 1 ? 1000 : 1);
    return times_us;
  });
  SearchConfig config;
  config.drop_stale = true;
  config.methods = {EditKind::kFuse};
  SearchResult emptied = Search(graph, model, TestCluster(), config, {}, {});
  EXPECT_EQ(emptied.stop_reason, StopReason::kQueueEmpty);
  EXPECT_LT(emptied.num_candidates, 100);
  config.refill = true;
  SearchResult refilled = Search(graph, model, TestCluster(), config, {}, {});
  EXPECT_EQ(refilled.stop_reason, StopReason::kPatience);
  EXPECT_EQ(refilled.num_candidates, config.patience);
  EXPECT_EQ(refilled.makespan, refilled.initial_makespan);
}

/*! \brief Two ops that may be fused, which costs more than alpha allows. */
SearchResult SearchDearPair(bool drop_stale) {
  GraphBuilder builder;
  builder.Elemwise({builder.Elemwise({})});
  OpGraph graph = builder.Build();
  CallbackCostModel model("dear", [](const OpGraph&, const std::vector<Group>& groups) {
    std::vector<double> times_us;
    for (const Group& group : groups) times_us.push_back(group.ops.size() > 1 ? 1000 : 1);
    return times_us;
  });
  SearchConfig config;
  config.drop_stale = drop_stale;
  config.methods = {EditKind::kMergeBuckets, EditKind::kFuse};
  return Search(graph, model, TestCluster(), config, {}, {});
}

TEST(Search, InThePaperAStrategyThatIsItsOwnChildGoesBackIntoTheQueue) {
  // There is no bucket to merge, so that the unfused strategy is its own child every time.
  SearchResult paper = SearchDearPair(/*drop_stale=*/false);
  EXPECT_EQ(paper.stop_reason, StopReason::kPatience);
  EXPECT_EQ(paper.num_candidates, 1000);
  SearchResult ours = SearchDearPair(/*drop_stale=*/true);
  EXPECT_EQ(ours.stop_reason, StopReason::kQueueEmpty);
  EXPECT_LE(ours.num_candidates, 20);
}

TEST(Search, ReportsImprovementsAndProgress) {
  OpGraph graph = TwoLayers(4);
  CallbackCostModel model = CountingModel();
  std::vector<Progress> reports;
  SearchConfig config;
  config.report_every = 10;
  config.max_steps = 100;
  SearchResult result = Search(graph, model, TestCluster(), config, {}, [&](const Progress& p) {
    reports.push_back(p);
    return Verdict::kContinue;
  });
  int64_t regular = 0;
  Nanoseconds last = result.initial_makespan;
  for (const Progress& report : reports) {
    regular += report.num_candidates % 10 == 0 ? 1 : 0;
    if (report.improved) {
      EXPECT_LT(report.makespan, last);
    } else {
      EXPECT_EQ(report.makespan, last);
    }
    last = report.makespan;
    EXPECT_GE(report.num_queued, 0);
  }
  EXPECT_EQ(regular, 10);
  EXPECT_GT(reports.front().num_queued, 0);
  EXPECT_EQ(*reports.back().best, result.best);
  EXPECT_EQ(last, result.makespan);
}

TEST(Search, FollowsUpInitialStrategiesInASecondPhase) {
  OpGraph graph = TwoLayers(8);
  CallbackCostModel model = CountingModel();
  SearchResult strong = Search(graph, model, TestCluster(), Persistent(), {}, {});
  EXPECT_EQ(strong.best_start, 0);
  EXPECT_EQ(strong.best_start_makespan, strong.initial_makespan);
  EXPECT_EQ(strong.found_makespan, strong.makespan);
  EXPECT_EQ(strong.num_found_candidates, strong.num_candidates);
  EXPECT_LT(strong.num_unseen, strong.num_candidates);
  EXPECT_GT(strong.num_unseen, strong.num_candidates / 4);
  SearchConfig config;
  config.max_steps = 1;
  std::vector<Strategy> initial{Strategy::Unfused(graph), strong.best};
  SearchResult result = Search(graph, model, TestCluster(), config, initial, {});
  EXPECT_EQ(result.best, strong.best);
  EXPECT_EQ(result.start, 2);
  EXPECT_TRUE(result.edits.empty());
  EXPECT_EQ(result.best_start, 2);
  EXPECT_EQ(result.best_start_makespan, strong.makespan);
  EXPECT_GT(result.found_makespan, strong.makespan);
  EXPECT_EQ(result.stop_reason, StopReason::kMaxSteps);
  config.max_steps = 101;
  SearchResult halves = Search(graph, model, TestCluster(), config, initial, {});
  EXPECT_EQ(halves.num_found_candidates, 51);
  EXPECT_EQ(halves.num_candidates, 101);
  config.max_steps = 51;
  EXPECT_EQ(Search(graph, model, TestCluster(), config, {}, {}).makespan, halves.found_makespan);
}

TEST(Search, TheSecondPhaseImprovesOnTheBestStart) {
  OpGraph graph = TwoLayers(8);
  CallbackCostModel model = CountingModel();
  SearchConfig config = Persistent();
  config.max_steps = 40;
  Strategy weak = Search(graph, model, TestCluster(), config, {}, {}).best;
  config.max_steps = 2000;
  config.seed = 1;
  SearchResult result = Search(graph, model, TestCluster(), config, {weak}, {});
  EXPECT_LT(result.makespan, result.best_start_makespan);
  Strategy start = result.start == 0 ? Strategy::Unfused(graph) : weak;
  EXPECT_EQ(Replay(graph, {}, start, result.edits).hash(), result.best.hash());
}

TEST(Search, AnInterruptedFirstPhaseStillLooksAtTheStarts) {
  OpGraph graph = TwoLayers(8);
  CallbackCostModel model = CountingModel();
  Strategy strong = Search(graph, model, TestCluster(), Persistent(), {}, {}).best;
  SearchConfig config;
  config.report_every = 1;
  auto run = [&](Verdict verdict) {
    return Search(graph, model, TestCluster(), config, {strong},
                  [=](const Progress& p) { return p.phase == 0 ? verdict : Verdict::kContinue; });
  };
  SearchResult interrupted = run(Verdict::kInterrupted);
  EXPECT_EQ(interrupted.num_candidates, 1);
  EXPECT_EQ(interrupted.best, strong);
  EXPECT_EQ(interrupted.stop_reason, StopReason::kInterrupted);
  // A limit of time ends the phase that reports it.
  SearchResult late = run(Verdict::kTimeLimit);
  EXPECT_EQ(late.num_found_candidates, 1);
  EXPECT_EQ(late.stop_reason, StopReason::kPatience);
}

TEST(Search, RoundsAndCapsAreOptions) {
  OpGraph graph = TwoLayers(4);
  CallbackCostModel model = CountingModel();
  SearchConfig config;
  config.children_per_pop = 10;
  config.queue_cap = 50;
  config.alpha = 1.1;
  config.methods = {EditKind::kFuseDuplicate};
  SearchResult result = Search(graph, model, TestCluster(), config, {}, {});
  EXPECT_LT(result.makespan, result.initial_makespan);
  for (const Edit& edit : result.edits) EXPECT_EQ(edit.kind, EditKind::kFuseDuplicate);
}

TEST(Search, AChainFusesIntoOneGroup) {
  GraphBuilder builder;
  int32_t x = builder.Elemwise({});
  for (int i = 0; i < 30; ++i) x = builder.Elemwise({x});
  OpGraph graph = builder.Build();
  EditSampler sampler(graph, {}, 8);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Rng rng(seed);
    Grouping grouping(graph);
    std::vector<Edit> edits;
    sampler.ApplyChain(EditKind::kFuse, 4, &rng, &grouping, &edits);
    size_t num_groups = grouping.Order().size();
    EXPECT_EQ(num_groups + edits.size(), 31u);
    int32_t group = grouping.home(edits[0].consumer);
    for (const Edit& edit : edits) EXPECT_EQ(grouping.home(edit.producer), group);
  }
}

TEST(Search, BadPredictionsEndTheSearch) {
  OpGraph graph = TwoLayers();
  CallbackCostModel model("liar", [](const OpGraph&, const std::vector<Group>& groups) {
    std::vector<double> times_us(groups.size(), 1.0);
    for (size_t i = 0; i < groups.size(); ++i) {
      if (groups[i].ops.size() > 1) times_us[i] = -1;
    }
    return times_us;
  });
  EXPECT_THROW(Search(graph, model, TestCluster(), {}, {}, {}), std::invalid_argument);
}

TEST(Search, ConfigErrorsNameTheField) {
  auto error_of = [](void (*spoil)(SearchConfig*)) -> std::string {
    SearchConfig config;
    spoil(&config);
    try {
      config.Check();
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_of([](SearchConfig*) {}), "no error");
  EXPECT_EQ(error_of([](SearchConfig* c) { c->alpha = 0.9; }),
            "SearchConfig: alpha must be finite and >= 1, got 0.9");
  EXPECT_EQ(error_of([](SearchConfig* c) { c->beta = 0; }),
            "SearchConfig: beta must be >= 1, got 0");
  EXPECT_EQ(error_of([](SearchConfig* c) { c->methods.clear(); }),
            "SearchConfig: methods must be at least one kind of edit, got none");
  EXPECT_EQ(error_of([](SearchConfig* c) { c->num_chains = 5; }),
            "SearchConfig: num_chains must be 0 unless all methods are fusions, got 5");
}

TEST(LowerBound, CountsLibraryCallsAndCommunication) {
  OpGraph graph = TwoLayers();
  CallbackCostModel model = CountingModel();
  // Two library calls of 10 us before the first gradient, and 800 bytes: 5 us + 8 us at best.
  SearchResult result = Search(graph, model, TestCluster(), {}, {}, {});
  EXPECT_NEAR(static_cast<double>(result.lower_bound.count()), 33000.0, 2.0);
}

TEST(LowerBound, CountsWhatMustComeBeforeTheFirstGradientOnly) {
  GraphBuilder builder;
  builder.Library({builder.AllReduce(builder.Library({}))});
  OpGraph graph = builder.Build();
  CallbackCostModel model = CountingModel();
  auto bound_us = [&](double latency_us) {
    Cluster cluster{AllReduceModel{latency_us, 0.01, latency_us, 0.01, 0}, 1000};
    return std::round(static_cast<double>(LowerBound(graph, model, cluster).count()) / 1000.0);
  };
  EXPECT_EQ(bound_us(16), 40);  // 10 before, 16 + 4 for 400 bytes, 10 after
  EXPECT_EQ(bound_us(1), 25);   // the same with 1 + 4
}

}  // namespace
}  // namespace disco_fuse
