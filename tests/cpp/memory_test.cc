#include "simulate/memory.h"

#include <gtest/gtest.h>

#include <vector>

#include "strategy/edit.h"
#include "test_graphs.h"

namespace disco_fuse {
namespace {

/*! \brief After `edits`, with units in the order of the grouping. */
StepMemory Measure(const OpGraph& graph, const std::vector<Edit>& edits) {
  Grouping grouping(graph);
  grouping.Load(Replay(graph, FusionLimits(), Strategy::Unfused(graph), edits));
  UnitGraph units;
  units.Build(grouping);
  std::vector<int32_t> order;
  for (int32_t unit = 0; unit < units.num_units(); ++unit) order.push_back(unit);
  return MemoryModel(graph).Measure(units, order);
}

/*! \brief Values of 400 bytes: 0 -> 1 -> 2 -> 3, and 0 -> 3. */
GraphBuilder Chain() {
  GraphBuilder builder;
  builder.Elemwise({});
  builder.Elemwise({0});
  builder.Elemwise({1});
  builder.Elemwise({0, 2});
  return builder;
}

TEST(Memory, PeakIsTheMostThatIsAliveAtOneTime) {
  // While 2 runs: 0 (read by 3), 1 and 2; while 3 runs: 0, 2 and 3.
  EXPECT_EQ(Measure(Chain().Build(), {}).peak, 3 * 400);
}

TEST(Memory, ReturnedValuesStayToTheEnd) {
  GraphBuilder builder = Chain();
  builder.op(1).is_output = true;
  EXPECT_EQ(Measure(builder.Build(), {}).peak, 4 * 400);
}

TEST(Memory, DonatedValuesTakeNone) {
  GraphBuilder builder = Chain();
  builder.op(1).is_output = true;
  builder.op(1).is_donated = true;
  EXPECT_EQ(Measure(builder.Build(), {}).peak, 3 * 400);
}

TEST(Memory, WhatAKernelKeepsToItselfTakesNone) {
  // 1 and 2 are inlined in 3: only 0 and 3 are ever written.
  std::vector<Edit> edits{{EditKind::kFuse, 2, 3}, {EditKind::kFuse, 1, 2}};
  EXPECT_EQ(Measure(Chain().Build(), edits).peak, 2 * 400);
}

TEST(Memory, ALaterLoopNestNeedsAWorkspace) {
  GraphBuilder builder;
  builder.Elemwise({});
  builder.Reduce({0});
  builder.Elemwise({1});
  builder.op(2).rows = 0;  // cannot share the loop over rows: a nest of its own
  builder.op(1).bytes_written = 40;
  EXPECT_EQ(Measure(builder.Build(), {{EditKind::kFuse, 1, 2}}).peak, 400 + 40 + 400);
  EXPECT_EQ(Measure(builder.Build(), {}).peak, 400 + 40);
}

TEST(Memory, ExternalValuesCountOnce) {
  GraphBuilder builder = Chain();
  builder.Read(0, 0);
  builder.Read(3, 0);
  builder.Read(2, 5);
  StepMemory memory = Measure(builder.Build(), {});
  EXPECT_EQ(memory.external, 2 * 400);
  EXPECT_EQ(memory.peak, (2 + 3) * 400);
}

/*! \brief Two gradients (0, 1), their AllReduces (2, 3) and updates (4, 5). */
OpGraph TwoGradients() {
  GraphBuilder builder;
  builder.Elemwise({});
  builder.Elemwise({});
  builder.AllReduce(0);
  builder.AllReduce(1);
  builder.Elemwise({2});
  builder.Elemwise({3});
  for (int32_t update : {4, 5}) {
    builder.op(update).is_output = true;
    builder.op(update).is_donated = true;
  }
  return builder.Build();
}

TEST(Memory, GradientsLiveUntilTheirAverageIsRead) {
  StepMemory memory = Measure(TwoGradients(), {});
  EXPECT_EQ(memory.buckets, 0);
  EXPECT_EQ(memory.peak, 2 * 400);
}

TEST(Memory, ABucketOfSeveralGradientsHasABufferOfItsOwn) {
  StepMemory memory = Measure(TwoGradients(), {{EditKind::kMergeBuckets, 2, 3}});
  EXPECT_EQ(memory.buckets, 2 * 400);
  EXPECT_EQ(memory.peak, 4 * 400);
}

}  // namespace
}  // namespace disco_fuse
