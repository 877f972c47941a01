#include "search/lower_bound.h"

#include <gtest/gtest.h>

#include "cost/roofline.h"
#include "search/compute_floor.h"
#include "search/message_floor.h"
#include "test_graphs.h"

namespace disco_fuse {
namespace {

using std::chrono::microseconds;

constexpr int64_t kUs = 1000;

AllReduceModel Linear(double latency_us, double us_per_byte) {
  return {latency_us, us_per_byte, latency_us, us_per_byte, 0};
}

GradientFloor Gradient(int64_t bytes, int64_t shared_us, int64_t own_us, int64_t after_us = 0) {
  return {bytes, microseconds(shared_us), microseconds(own_us), microseconds(after_us)};
}

double MessageFloorUs(const std::vector<GradientFloor>& gradients, const AllReduceModel& model) {
  return static_cast<double>(MessageFloor(gradients, model).count()) / kUs;
}

/*! \brief 1 us of traffic per value of GraphBuilder, 5 us a launch, no operations to speak of. */
RooflineCostModel Roofline(const OpGraph& graph) {
  return RooflineCostModel(graph, {"test", 1e6, 0.4, 5, 0}, {});
}

TEST(ComputeFloor, ReadsAndWritesOfUnitsOfTheirOwnStay) {
  GraphBuilder builder;
  int32_t made = builder.Library({});
  int32_t only = builder.Elemwise({made});
  int32_t last = builder.Elemwise({only});
  builder.Library({last});
  OpGraph graph = builder.Build();
  RooflineCostModel model = Roofline(graph);
  EXPECT_EQ(model.Floor(graph, only), microseconds(1));      // its read
  EXPECT_EQ(model.HomeFloor(graph, only), microseconds(1));  // its write may be inlined
  EXPECT_LT(model.Floor(graph, last), microseconds(1));      // nothing: both ends inside
  EXPECT_EQ(model.HomeFloor(graph, last), microseconds(1));  // the second call reads it
  EXPECT_EQ(model.LaunchFloor(), microseconds(5));
}

TEST(ComputeFloor, AReadThatAnotherOpMayMakeDoesNotStay) {
  GraphBuilder builder;
  int32_t made = builder.Library({});
  int32_t a = builder.Elemwise({made});
  int32_t b = builder.Elemwise({made});
  builder.Read(a, 0);
  builder.Read(b, 0);
  builder.Read(b, 1);
  OpGraph graph = builder.Build();
  RooflineCostModel model = Roofline(graph);
  EXPECT_LT(model.Floor(graph, a), microseconds(1));
  EXPECT_EQ(model.Floor(graph, b), microseconds(1));      // value 1
  EXPECT_EQ(model.HomeFloor(graph, b), microseconds(2));  // and it must be written
}

TEST(ComputeFloor, CountsKernelsThatABarrierKeepsApart) {
  GraphBuilder builder;
  int32_t x = builder.Elemwise({builder.Elemwise({})});
  int32_t call = builder.Library({x});
  int32_t y = builder.Elemwise({call, x});
  builder.Elemwise({y});
  OpGraph graph = builder.Build();
  RooflineCostModel model = Roofline(graph);
  // two launches and the call's own with its read and write; written: x for the call, the result
  // read: the call's value. The floors of the others round to 0.
  ComputeFloor floor = FindComputeFloor(graph, model);
  EXPECT_EQ(floor.total.count() / kUs, 2 * 5 + (5 + 2) + 2 + 1);
  EXPECT_TRUE(floor.gradients.empty());
}

TEST(ComputeFloor, TellsWhatIsSharedFromWhatIsOwn) {
  GraphBuilder builder;
  int32_t shared = builder.Library({});
  int32_t first = builder.AllReduce(builder.Library({shared}));
  int32_t behind = builder.Library({shared});
  int32_t second = builder.AllReduce(builder.Library({behind}));
  builder.Elemwise({first});
  builder.Library({second});
  OpGraph graph = builder.Build();
  RooflineCostModel model = Roofline(graph);
  ComputeFloor floor = FindComputeFloor(graph, model);
  ASSERT_EQ(floor.gradients.size(), 2U);
  const GradientFloor& a = floor.gradients[0];
  const GradientFloor& b = floor.gradients[1];
  EXPECT_EQ(a.shared, microseconds(6));     // 5 + one write
  EXPECT_EQ(a.own, microseconds(7));        // its gradient
  EXPECT_EQ(a.after, microseconds(5 + 2));  // launch, read and write of the update
  EXPECT_EQ(b.shared, microseconds(6));
  EXPECT_EQ(b.own, microseconds(14));  // `behind` leads to no other gradient
  EXPECT_EQ(b.after, microseconds(7));
}

TEST(ComputeFloor, ACopyNeedNotBeWritten) {
  // x may be copied into the kernel before the AllReduce, and its home be the one of y, later.
  GraphBuilder builder;
  int32_t x = builder.Elemwise({});
  int32_t gradient = builder.Elemwise({x});
  int32_t allreduce = builder.AllReduce(gradient);
  builder.Library({builder.Elemwise({x, allreduce})});
  OpGraph graph = builder.Build();
  RooflineCostModel model = Roofline(graph);
  GradientFloor floor = FindComputeFloor(graph, model).gradients.at(0);
  EXPECT_EQ((floor.shared + floor.own).count() / kUs, 5 + 1);  // launch, the gradient written
}

TEST(MessageFloor, NothingStartsBeforeItsGradientExists) {
  // 100 bytes at 1 us each
  EXPECT_NEAR(MessageFloorUs({Gradient(100, 40, 2)}, Linear(5, 1)), 40 + 2 + 5 + 100, 0.01);
  EXPECT_NEAR(MessageFloorUs({Gradient(100, 40, 2, 7)}, Linear(5, 1)), 154, 0.01);
}

TEST(MessageFloor, ALateGradientIsSentAfterwards) {
  // the first is long gone when the second appears
  std::vector<GradientFloor> gradients{Gradient(10, 0, 1), Gradient(100, 1000, 1)};
  EXPECT_NEAR(MessageFloorUs(gradients, Linear(5, 1)), 1000 + 1 + 1 + 5 + 100, 0.01);
}

TEST(MessageFloor, ABusyNetworkStartsWithTheFirstGradient) {
  std::vector<GradientFloor> gradients;
  for (int64_t i = 1; i <= 10; ++i) gradients.push_back(Gradient(1000, 10 * i, 0));
  // 10 us before the first, 10000 for all bytes, one latency; the steps of V round down
  EXPECT_NEAR(MessageFloorUs(gradients, Linear(0, 1)), 10 + 10000, 0.01);
  EXPECT_GE(MessageFloorUs(gradients, Linear(5, 1)), 10 + 5 + 10000 - 0.01);
}

TEST(MessageFloor, WeighsOwnTimeAgainstBytesLeft) {
  // Sent before the big one, each costs 3 us of compute; sent after it, 10 us of network.
  std::vector<GradientFloor> gradients(5, Gradient(10, 0, 3));
  gradients.push_back(Gradient(1000, 50, 1));
  EXPECT_NEAR(MessageFloorUs(gradients, Linear(0, 1)), 50 + 1 + 1000 + 5 * 3, 0.01);
  std::vector<GradientFloor> slow(5, Gradient(10, 0, 30));
  slow.push_back(Gradient(1000, 50, 1));
  EXPECT_NEAR(MessageFloorUs(slow, Linear(0, 1)), 50 + 1 + 1000 + 5 * 10, 0.01);
}

TEST(MessageFloor, StaysBelowBothLines) {
  // Small messages: 1 us + 1 a byte up to 100 bytes; large: 50 us + 0.1 a byte.
  AllReduceModel model{1, 1, 50, 0.1, 100};
  EXPECT_NEAR(MessageFloorUs({Gradient(1000, 10, 0)}, model), 10 + 50 + 100, 0.01);
  // From 1 us for no bytes to 150 for all: 15.9 for 100 bytes, though they take 60.
  std::vector<GradientFloor> early{Gradient(900, 0, 0), Gradient(100, 500, 0)};
  EXPECT_NEAR(MessageFloorUs(early, model), 500 + 15.9, 0.1);
  // A second line that would begin below zero is replaced by one through the origin.
  AllReduceModel steep{10, 0, 0, 1, 100};
  double bound = MessageFloorUs({Gradient(500, 0, 0), Gradient(500, 0, 0)}, steep);
  EXPECT_LE(bound, 10 * 11);  // 11 messages of 91 bytes
  EXPECT_GE(bound, 95);
}

TEST(MessageFloor, GradientsWithoutBytesAreNotSent) {
  EXPECT_EQ(MessageFloor({Gradient(0, 10, 10)}, Linear(5, 1)), Nanoseconds(0));
}

/*! \brief What the bound was before: all compute, or the first gradient and then all bytes. */
Nanoseconds FirstGradientThenBytes(const ComputeFloor& floor, const AllReduceModel& model) {
  Nanoseconds head = Nanoseconds::max();
  int64_t bytes = 0;
  for (const GradientFloor& gradient : floor.gradients) {
    head = std::min(head, gradient.shared + gradient.own);
    bytes += gradient.bytes;
  }
  return std::max(floor.total, head + model.PartitionFloor(bytes));
}

TEST(LowerBound, IsTighterThanTheFirstGradientAndAllBytes) {
  GraphBuilder builder;
  int32_t chain = builder.Library({});
  std::vector<int32_t> gradients;
  for (int32_t i = 0; i < 4; ++i) {
    gradients.push_back(builder.Library({chain}));
    chain = builder.Library({chain});
  }
  for (int32_t gradient : gradients) builder.Elemwise({builder.AllReduce(gradient)});
  OpGraph graph = builder.Build();
  RooflineCostModel model = Roofline(graph);
  int32_t num_tighter = 0;
  for (double us_per_byte : {0.001, 0.01, 0.03, 0.1}) {
    Cluster cluster{Linear(3, us_per_byte), 1000};
    Nanoseconds before = FirstGradientThenBytes(FindComputeFloor(graph, model), cluster.allreduce);
    EXPECT_GE(LowerBound(graph, model, cluster), before) << us_per_byte;
    num_tighter += LowerBound(graph, model, cluster) > before ? 1 : 0;
  }
  EXPECT_GE(num_tighter, 2);
}

TEST(LowerBound, ContentionSlowsComputeWhileTheNetworkIsBusy) {
  GraphBuilder builder;
  int32_t first = builder.Library({});
  builder.AllReduce(first);
  for (int32_t i = 0; i < 20; ++i) first = builder.Library({first});
  OpGraph graph = builder.Build();
  RooflineCostModel model = Roofline(graph);
  Nanoseconds free = LowerBound(graph, model, {Linear(20, 0.1), 1000});
  EXPECT_EQ(free.count() / kUs, 6 + 20 * 7);
  // 60 us on the network, of which a half is lost
  Nanoseconds slowed = LowerBound(graph, model, {Linear(20, 0.1), 2000});
  EXPECT_NEAR(static_cast<double>((slowed - free).count()) / kUs, 30, 0.1);
}

}  // namespace
}  // namespace disco_fuse
