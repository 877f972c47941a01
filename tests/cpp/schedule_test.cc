#include "simulate/schedule.h"

#include <gtest/gtest.h>

#include <vector>

#include "search/rng.h"
#include "test_graphs.h"

namespace disco_fuse {
namespace {

using Ids = std::vector<int32_t>;

struct Scheduled {
  Ids order; /*!< representatives */
  Timeline timeline;
};

Scheduled Schedule(const Grouping& grouping, const std::vector<int64_t>& durations_ns,
                   int32_t permille = 1000) {
  UnitGraph units;
  units.Build(grouping);
  std::vector<Nanoseconds> durations;
  for (int32_t i = 0; i < units.num_units(); ++i) {
    durations.push_back(Nanoseconds(durations_ns[units.representative(i)]));
  }
  ListScheduler scheduler(permille);
  Nanoseconds makespan = scheduler.Run(units, durations);
  Scheduled result{scheduler.RepresentativeOrder(units),
                   Simulate(units, scheduler.order(), durations, permille)};
  EXPECT_EQ(makespan, result.timeline.makespan);
  return result;
}

TEST(Schedule, WhatLeadsToAGradientGoesFirst) {
  GraphBuilder builder;
  builder.Elemwise({});
  builder.Elemwise({0});
  builder.Elemwise({0});
  builder.AllReduce(2);
  builder.Elemwise({3});
  OpGraph graph = builder.Build();
  EXPECT_EQ(Schedule(Grouping(graph), {10, 10, 10, 10, 10}).order, (Ids{0, 2, 3, 1, 4}));
}

TEST(Schedule, EarlierProducedGradientsAreMoreUrgent) {
  GraphBuilder builder;
  builder.Elemwise({});  // leads to the later gradient 3
  builder.Elemwise({});  // leads to the earlier gradient 2
  builder.Elemwise({1});
  builder.Elemwise({0});
  builder.AllReduce(3);
  builder.AllReduce(2);
  OpGraph graph = builder.Build();
  EXPECT_EQ(Schedule(Grouping(graph), {10, 10, 10, 10, 5, 5}).order, (Ids{1, 2, 5, 0, 3, 4}));
}

TEST(Schedule, UpdatesFillTheTimeUntilAMessageEnds) {
  GraphBuilder builder;
  builder.Elemwise({});
  builder.AllReduce(0);
  builder.Elemwise({1});
  builder.Elemwise({0});
  builder.Elemwise({3});
  OpGraph graph = builder.Build();
  // The message ends at 30: op 3 runs meanwhile, at 20 nothing but op 4 is ready.
  Scheduled result = Schedule(Grouping(graph), {10, 20, 10, 10, 10});
  EXPECT_EQ(result.order, (Ids{0, 1, 3, 4, 2}));
  EXPECT_EQ(result.timeline.makespan, Nanoseconds(40));
  // A shorter one: at 20 both are ready and the smaller op wins.
  EXPECT_EQ(Schedule(Grouping(graph), {10, 10, 10, 10, 10}).order, (Ids{0, 1, 3, 2, 4}));
  // A longer one: the compute stream waits.
  result = Schedule(Grouping(graph), {10, 100, 10, 10, 10});
  EXPECT_EQ(result.timeline.makespan, Nanoseconds(120));
}

TEST(Schedule, BucketsStartInTheOrderTheyBecameReady) {
  GraphBuilder builder;
  builder.Elemwise({});
  builder.Elemwise({0});
  builder.AllReduce(1);
  builder.AllReduce(0);
  builder.AllReduce(1);
  OpGraph graph = builder.Build();
  EXPECT_EQ(Schedule(Grouping(graph), {10, 10, 5, 5, 5}).order, (Ids{0, 3, 1, 2, 4}));
}

TEST(Schedule, ABucketWaitsForItsLastGradient) {
  GraphBuilder builder;
  builder.Elemwise({});
  builder.AllReduce(0);
  builder.Elemwise({0});
  builder.AllReduce(2);
  OpGraph graph = builder.Build();
  Grouping grouping(graph);
  ASSERT_TRUE(grouping.Assign({0, 1, 2, 1}, {}));
  EXPECT_EQ(Schedule(grouping, {10, 5, 10, 0}).order, (Ids{0, 2, 1}));
}

TEST(Schedule, OrderOnlyEdgesAreKept) {
  GraphBuilder builder;
  builder.Elemwise({});
  builder.Elemwise({0});
  builder.Elemwise({});
  builder.AllReduce(2);
  builder.Before(1, 2);
  OpGraph graph = builder.Build();
  EXPECT_EQ(Schedule(Grouping(graph), {10, 10, 10, 10}).order, (Ids{0, 1, 2, 3}));
}

TEST(Schedule, MakespanIsThatOfTheReplay) {
  // Random graphs with collectives of collectives, zero durations, and contention.
  Rng rng(7);
  for (int round = 0; round < 300; ++round) {
    GraphBuilder builder;
    std::vector<int64_t> durations;
    for (int32_t id = 0; id < 25; ++id) {
      std::vector<int32_t> producers;
      for (int32_t p = 0; p < id; ++p) {
        if (rng.Below(8) == 0) producers.push_back(p);
      }
      bool collective = !producers.empty() && rng.Below(3) == 0;
      if (collective) producers.resize(1);
      builder.Add(collective ? OpKind::kAllReduce : OpKind::kCompute, OpPattern::kElemwise,
                  producers);
      durations.push_back(rng.Below(6));
    }
    OpGraph graph = builder.Build();
    Scheduled result = Schedule(Grouping(graph), durations, 1000 + 250 * rng.Below(5));
    EXPECT_EQ(result.order.size(), 25u);
  }
}

}  // namespace
}  // namespace disco_fuse
