#include "simulate/simulate.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "test_graphs.h"

namespace disco_fuse {
namespace {

Nanoseconds Ns(int64_t count) { return Nanoseconds(count); }

/*! \brief Simulates every op alone in its original order. */
Timeline Replay(const OpGraph& graph, const std::vector<int64_t>& durations_ns, int32_t permille) {
  Grouping grouping(graph);
  UnitGraph units;
  units.Build(grouping);
  std::vector<int32_t> order;
  std::vector<Nanoseconds> durations;
  for (int32_t i = 0; i < units.num_units(); ++i) {
    order.push_back(i);
    durations.push_back(Ns(durations_ns[i]));
  }
  return Simulate(units, order, durations, permille);
}

constexpr Stream kCompute = Stream::kCompute;
constexpr Stream kComm = Stream::kCommunication;

/*! \brief 0 -> allreduce 1 -> 3, and 0 -> 2 -> 3. */
OpGraph Overlapping() {
  GraphBuilder builder;
  builder.Elemwise({});
  builder.AllReduce(0);
  builder.Elemwise({0});
  builder.Elemwise({1, 2});
  return builder.Build();
}

TEST(Simulate, CommunicationOverlapsCompute) {
  Timeline expected;
  expected.events = {{0, kCompute, Ns(0), Ns(10)},
                     {1, kComm, Ns(10), Ns(18)},
                     {2, kCompute, Ns(10), Ns(20)},
                     {3, kCompute, Ns(20), Ns(30)}};
  expected.makespan = Ns(30);
  expected.compute = Ns(30);
  expected.allreduce = Ns(8);
  expected.overlapped = Ns(8);
  expected.critical_path = {0, 2, 3};
  EXPECT_EQ(Replay(Overlapping(), {10, 8, 10, 10}, 1000), expected);
}

TEST(Simulate, ContentionSlowsComputeWhileCommunicationRuns) {
  // 8 ns of communication let 4 of 10 ns of work pass; the other 6 run alone.
  Timeline expected;
  expected.events = {{0, kCompute, Ns(0), Ns(10)},
                     {1, kComm, Ns(10), Ns(18)},
                     {2, kCompute, Ns(10), Ns(24)},
                     {3, kCompute, Ns(24), Ns(34)}};
  expected.makespan = Ns(34);
  expected.compute = Ns(30);
  expected.allreduce = Ns(8);
  expected.overlapped = Ns(8);
  expected.critical_path = {0, 2, 3};
  EXPECT_EQ(Replay(Overlapping(), {10, 8, 10, 10}, 2000), expected);
}

TEST(Simulate, AUnitInsideOneMessageIsSlowedThroughout) {
  Timeline timeline = Replay(Overlapping(), {10, 50, 10, 10}, 1500);
  EXPECT_EQ(timeline.events[2].finish, Ns(25));
  // The reader of the message waits for it, and runs alone.
  EXPECT_EQ(timeline.events[3].start, Ns(60));
  EXPECT_EQ(timeline.makespan, Ns(70));
  EXPECT_EQ(timeline.overlapped, Ns(15));
  EXPECT_EQ(timeline.critical_path, (std::vector<int32_t>{0, 1, 3}));
}

TEST(Simulate, MessagesQueueAndContentionLastsUntilTheLast) {
  GraphBuilder builder;
  builder.Elemwise({});
  builder.AllReduce(0);
  builder.AllReduce(0);
  builder.Elemwise({0});
  Timeline timeline = Replay(builder.Build(), {10, 5, 7, 20}, 2000);
  EXPECT_EQ(timeline.events[1], (Event{1, kComm, Ns(10), Ns(15)}));
  EXPECT_EQ(timeline.events[2], (Event{2, kComm, Ns(15), Ns(22)}));
  // 12 ns of communication let 6 ns of work pass.
  EXPECT_EQ(timeline.events[3], (Event{3, kCompute, Ns(10), Ns(36)}));
}

TEST(Simulate, ABucketStartsWhereItStandsInTheOrder) {
  GraphBuilder builder;
  builder.Elemwise({});
  builder.Elemwise({0});
  builder.AllReduce(0);
  // Its gradient is ready at 10, but the start call comes after op 1.
  Timeline timeline = Replay(builder.Build(), {10, 20, 5}, 1000);
  EXPECT_EQ(timeline.events[2], (Event{2, kComm, Ns(30), Ns(35)}));
  EXPECT_EQ(timeline.critical_path, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(timeline.overlapped, Ns(0));
}

TEST(Simulate, ContentionBelowOneIsAnError) {
  EXPECT_THROW(Replay(Overlapping(), {1, 1, 1, 1}, 999), std::invalid_argument);
}

}  // namespace
}  // namespace disco_fuse
