#include "search/forced_charges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "cost/roofline.h"
#include "search/compute_floor.h"
#include "search/exhaustive.h"
#include "search/forced_nests.h"
#include "search/lower_bound.h"
#include "search/rng.h"
#include "test_graphs.h"

namespace disco_fuse {
namespace {

using std::chrono::microseconds;

constexpr int64_t kMaxStates = 200000;

/*! \brief 1 us of traffic per value of GraphBuilder, 5 us a launch, 2 us a further nest. */
DeviceSpec Device(double peak_gflops = 1e6) { return {"test", peak_gflops, 0.4, 5, 2}; }

std::vector<EditKind> AllEdits() {
  std::vector<EditKind> kinds;
  for (int32_t kind = 0; kind < kNumEditKinds; ++kind) kinds.push_back(static_cast<EditKind>(kind));
  return kinds;
}

std::vector<bool> Barriers(const OpGraph& graph) {
  std::vector<bool> barrier;
  for (const Op& op : graph.ops()) {
    barrier.push_back(op.kind != OpKind::kCompute || op.pattern == OpPattern::kOpaque);
  }
  return barrier;
}

int32_t Longest(const OpGraph& graph, std::vector<ChainOp> ops) {
  ChainSet set{std::move(ops)};
  FindLongestChains(graph, Barriers(graph), 1000, {&set});
  return set.longest;
}

TEST(BarrierChains, CountsOpsThatBarriersKeepApart) {
  GraphBuilder builder;
  int32_t a = builder.Elemwise({});
  int32_t b = builder.Elemwise({a});
  int32_t gradient = builder.AllReduce(builder.Library({b}));
  int32_t c = builder.Elemwise({gradient});
  int32_t d = builder.Elemwise({builder.Library({c})});
  OpGraph graph = builder.Build();
  EXPECT_EQ(Longest(graph, {}), 0);
  EXPECT_EQ(Longest(graph, {{a, false}, {b, false}}), 1);
  EXPECT_EQ(Longest(graph, {{a, false}, {c, false}}), 2);
  EXPECT_EQ(Longest(graph, {{a, false}, {b, false}, {c, false}, {d, false}}), 3);
  // No barrier reads a, whose home may be anywhere; b's home comes before the call.
  EXPECT_EQ(Longest(graph, {{a, true}, {c, false}}), 1);
  EXPECT_EQ(Longest(graph, {{b, true}, {c, true}, {d, true}}), 3);
}

TEST(BarrierChains, TellsWhatLeadsToEachAllReduce) {
  GraphBuilder builder;
  int32_t a = builder.Elemwise({});
  int32_t call = builder.Library({a});
  int32_t b = builder.Elemwise({call, a});
  builder.AllReduce(call);
  builder.AllReduce(b);
  OpGraph graph = builder.Build();
  std::vector<ChainSet> sets(70, ChainSet{{{a, false}, {b, false}}});
  sets[66].ops = {{b, false}};
  std::vector<ChainSet*> pointers;
  for (ChainSet& set : sets) pointers.push_back(&set);
  FindLongestChains(graph, Barriers(graph), 1000, pointers);
  for (size_t i : {0, 63, 64, 69}) EXPECT_EQ(sets[i].before, (std::vector<uint8_t>{1, 2})) << i;
  EXPECT_EQ(sets[66].before, (std::vector<uint8_t>{0, 1}));
  // After the first pass no steps are left.
  for (ChainSet& set : sets) set = ChainSet{set.ops};
  FindLongestChains(graph, Barriers(graph), 1, pointers);
  EXPECT_EQ(sets[63].longest, 2);
  EXPECT_EQ(sets[64].longest, 0);
  EXPECT_EQ(sets[64].before, (std::vector<uint8_t>{0, 0}));
}

TEST(NestRegions, NestsNeedEqualRows) {
  GraphBuilder builder;
  int32_t a = builder.Elemwise({});
  int32_t b = builder.Elemwise({a});
  int32_t sum = builder.Reduce({b});
  builder.op(sum).rows = 1;
  int32_t c = builder.Elemwise({sum});
  builder.op(c).rows = 0;
  int32_t call = builder.Library({b});
  int32_t d = builder.Elemwise({call});
  OpGraph graph = builder.Build();
  NestRegions regions(graph, Barriers(graph));
  EXPECT_EQ(regions.region(a), regions.region(b));
  EXPECT_NE(regions.region(b), regions.region(sum));
  EXPECT_NE(regions.region(sum), regions.region(c));
  EXPECT_NE(regions.region(b), regions.region(d));
  EXPECT_FALSE(regions.is_anchor(a));  // inlined in b
  for (int32_t op : {b, sum, c, d}) EXPECT_TRUE(regions.is_anchor(op)) << op;
  EXPECT_TRUE(regions.anchor(b).at_home);
  for (int32_t op : {sum, c, d}) EXPECT_FALSE(regions.anchor(op).at_home) << op;
}

TEST(TrafficFloor, IsWhatNoOperationsHide) {
  GraphBuilder builder;
  int32_t call = builder.Library({});
  int32_t a = builder.Elemwise({call});
  int32_t b = builder.Elemwise({call, a});
  OpGraph graph = builder.Build();
  RooflineCostModel fast(graph, Device(), {});
  EXPECT_NEAR(static_cast<double>(fast.TrafficFloor(graph, b, 400).count()), 1000, 2);
  // 100 operations take 0.25 us, which any one value may hide; b writes its own, of 1 us.
  RooflineCostModel slow(graph, Device(0.4), {});
  EXPECT_NEAR(static_cast<double>(slow.TrafficFloor(graph, a, 400).count()), 750, 2);
  EXPECT_EQ(slow.TrafficFloor(graph, a, 40), Nanoseconds(0));
  // An op measured at half its traffic reads at twice the rate.
  RooflineCostModel measured(graph, Device(), {6, 1, 1.5});
  EXPECT_NEAR(static_cast<double>(measured.TrafficFloor(graph, a, 400).count()), 500, 2);
}

TEST(TrafficFloor, ReadsBeyondTheBytesOfTheOpMayBeFree) {
  GraphBuilder builder;
  int32_t call = builder.Library({});
  int32_t a = builder.Elemwise({call});
  builder.Elemwise({call, a});
  builder.op(a).bytes_read = 100;  // a slice, whose edge says 400
  OpGraph graph = builder.Build();
  RooflineCostModel model(graph, Device(), {});
  EXPECT_NEAR(static_cast<double>(model.TrafficFloor(graph, a, 400).count()), 250, 2);
}

TEST(TrafficFloor, ACopyMayReadBeyondTheBytesOfTheOp) {
  GraphBuilder builder;
  int32_t shared = builder.Library({});
  int32_t alone = builder.Library({});
  int32_t a = builder.Elemwise({shared, alone});
  builder.Elemwise({shared, a});
  builder.op(a).bytes_read = 400;  // of 800; its floor has all that it reads of `alone`
  OpGraph graph = builder.Build();
  RooflineCostModel model(graph, Device(), {});
  EXPECT_EQ(model.TrafficFloor(graph, a, 400), Nanoseconds(0));
}

/*! \brief Expects that the compute floor is reached by the best of all strategies. */
void ExpectTight(const GraphBuilder& builder, int64_t floor_us) {
  OpGraph graph = builder.Build();
  RooflineCostModel model(graph, Device(), {});
  Nanoseconds floor = FindComputeFloor(graph, model).total;
  Cluster cluster{AllReduceModel{}, 1000};
  SearchResult best = Exhaustive(graph, model, cluster, {}, kMaxStates, AllEdits());
  EXPECT_LE(floor, best.makespan);
  EXPECT_NEAR(static_cast<double>(floor.count()), static_cast<double>(floor_us * 1000), 20);
  EXPECT_NEAR(static_cast<double>(best.makespan.count()), static_cast<double>(floor_us * 1000), 20);
}

TEST(ForcedTraffic, AValueInMemoryIsReadOnce) {
  GraphBuilder builder;
  int32_t x = builder.Library({});
  int32_t a = builder.Elemwise({x});
  builder.op(a).is_output = true;
  builder.Elemwise({x, a});
  ExpectTight(builder, (5 + 1) + 5 + 1 + 2);  // the call; launch, x, two results
}

TEST(ForcedTraffic, AnExternalValueIsReadOnce) {
  GraphBuilder builder;
  int32_t a = builder.Elemwise({});
  int32_t b = builder.Elemwise({a});
  builder.Read(a, 0);
  builder.Read(b, 0);
  ExpectTight(builder, 5 + 1 + 1);
}

TEST(ForcedTraffic, SeparatedReadersReadTwice) {
  GraphBuilder builder;
  int32_t x = builder.Library({});
  int32_t y = builder.Library({builder.Elemwise({x})});
  builder.Elemwise({x, y});
  ExpectTight(builder, (5 + 1) + (5 + 2) + (5 + 2) + (5 + 3));
}

TEST(ForcedTraffic, WhatCannotBeDuplicatedIsWrittenAndRead) {
  GraphBuilder builder;
  int32_t sum = builder.Reduce({});
  builder.Read(sum, 0);
  int32_t y = builder.Library({builder.Elemwise({sum})});
  builder.Elemwise({sum, y});
  ExpectTight(builder, (5 + 1 + 2) + (5 + 2) + (5 + 3));
}

TEST(ForcedTraffic, RecomputingReadsTheFamily) {
  GraphBuilder builder;
  int32_t x = builder.Library({});
  int32_t e = builder.Elemwise({x});
  builder.Elemwise({e, builder.Library({e})});
  ExpectTight(builder, (5 + 1) + (5 + 2) + (5 + 2) + (5 + 3));
}

TEST(ForcedTraffic, NestsOfUnlikeRowsReadForThemselves) {
  GraphBuilder builder;
  int32_t x = builder.Library({});
  int32_t sum = builder.Reduce({x});
  builder.op(sum).rows = 1;
  builder.Elemwise({x, sum});
  ExpectTight(builder, (5 + 1) + (5 + 2) + 2 + 2 + 1);  // x twice, sum written and read, result
}

TEST(ForcedTraffic, AnInlinedReaderCountsOneOfItsNests) {
  GraphBuilder builder;
  int32_t inlined = builder.Elemwise({builder.Library({})});
  int32_t sum = builder.Reduce({inlined});
  builder.op(sum).rows = 1;
  builder.Elemwise({inlined, sum});
  ExpectTight(builder, (5 + 1) + (5 + 2) + 2 + 2 + 1);  // as above
}

TEST(ForcedCharges, TellsWhatIsSharedFromWhatIsOwn) {
  GraphBuilder builder;
  int32_t x = builder.Library({});
  int32_t a = builder.Elemwise({x});
  int32_t first = builder.AllReduce(a);
  int32_t b = builder.Elemwise({x, builder.Library({x})});
  int32_t second = builder.AllReduce(b);
  builder.Read(b, 0);
  builder.Read(b, 1);
  builder.Library({first, second});
  OpGraph graph = builder.Build();
  RooflineCostModel model(graph, Device(), {});
  ComputeFloor floor = FindComputeFloor(graph, model);
  auto us = [](Nanoseconds time) { return static_cast<double>(time.count()) / 1000; };
  // Both read x: shared. The nest of either is its own, the rest of the launch is not.
  EXPECT_NEAR(us(floor.gradients[0].shared), (5 + 1) + 3 + 1, 0.02);
  EXPECT_NEAR(us(floor.gradients[0].own), 1 + 2, 0.02);
  EXPECT_NEAR(us(floor.gradients[1].shared), (5 + 1) + 3 + 1, 0.02);
  EXPECT_NEAR(us(floor.gradients[1].own), (5 + 2) + (1 + 2 + 1) + 2, 0.02);
}

/*! \brief Up to `max_ops` ops of any kind, with rows of three sorts and shared external values. */
OpGraph RandomGraph(Rng* rng, int32_t max_ops) {
  GraphBuilder builder;
  int32_t num_ops = 3 + rng->Below(max_ops - 2);
  for (int32_t id = 0; id < num_ops; ++id) {
    std::vector<int32_t> producers;
    for (int32_t p = 0; p < id; ++p) {
      if (rng->Below(id) < 2) producers.push_back(p);
    }
    int32_t kind = rng->Below(8);
    if (kind == 0 && !producers.empty()) {
      builder.AllReduce(producers.back());
    } else if (kind <= 2) {
      builder.Library(producers);
    } else if (kind == 3) {
      builder.Reduce(producers);
    } else {
      builder.Elemwise(producers);
    }
    Op& op = builder.op(id);
    op.flops *= static_cast<double>(1 + rng->Below(16));
    op.rows = std::vector<int64_t>{0, 1, 10, 10, 10}[rng->Below(5)];
    op.is_output = rng->Below(8) == 0;
    if (rng->Below(2) == 0) builder.Read(id, rng->Below(2));
    if (rng->Below(6) == 0) op.bytes_read /= 2;
    if (id > 0 && rng->Below(8) == 0) builder.Before(rng->Below(id), id);
  }
  return builder.Build();
}

TEST(LowerBound, IsNeverAboveTheBestStrategyInTheBestOrder) {
  Rng rng(11);
  int num_reached = 0;
  for (int i = 0; i < 400; ++i) {
    SCOPED_TRACE(i);
    OpGraph graph = RandomGraph(&rng, 6);
    RooflineCostModel model(graph, Device(i % 2 == 0 ? 1e6 : 2.0), {});
    Cluster cluster{AllReduceModel{1, i % 3 == 0 ? 0.02 : 0.0, 1, i % 3 == 0 ? 0.02 : 0.0, 0},
                    1000};
    SearchResult best = Exhaustive(graph, model, cluster, {}, kMaxStates, AllEdits(), true);
    Nanoseconds bound = LowerBound(graph, model, cluster);
    EXPECT_LE(bound, best.makespan);
    num_reached += bound + Nanoseconds(50) >= best.makespan ? 1 : 0;
  }
  RecordProperty("num_reached", num_reached);
  EXPECT_GE(num_reached, 100);
}

}  // namespace
}  // namespace disco_fuse
