#include "cost/roofline.h"

#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "test_graphs.h"

namespace disco_fuse {
namespace {

// 400 bytes take 1 us, the 100 operations of an op 0.1 us.
const DeviceSpec kDevice{"test", 1.0, 0.4, 10.0, 5.0};

double Us(const OpGraph& graph, const Group& group, const std::vector<double>& times = {}) {
  RooflineCostModel model(graph, kDevice, times);
  return static_cast<double>(model.Predict(graph, {group})[0].count()) / 1000.0;
}

TEST(Roofline, OneOpPaysItsTraffic) {
  GraphBuilder builder;
  builder.Read(builder.Elemwise({}), 0);
  builder.op(builder.Library({0})).flops = 5000;
  OpGraph graph = builder.Build();
  EXPECT_DOUBLE_EQ(Us(graph, {{0}, {0}}), 12.0);
  EXPECT_DOUBLE_EQ(Us(graph, {{1}, {1}}), 15.0);
  EXPECT_DOUBLE_EQ(Us(graph, {{1}, {1}}, {2.0, 7.0}), 17.0);
}

TEST(Roofline, InlinedOpsNeitherWriteNorAreRead) {
  GraphBuilder builder;
  builder.Read(builder.Elemwise({}), 0);
  builder.Elemwise({0});
  builder.Elemwise({1});
  OpGraph graph = builder.Build();
  Group group{{0, 1, 2}, {2}};
  EXPECT_EQ(CountNests(graph, group), 1);
  // Op 0 reads (1 us), op 1 only computes (0.1 us), op 2 writes (1 us).
  EXPECT_DOUBLE_EQ(Us(graph, group), 12.1);
  // Op 0 also written: a root in a nest of its own rows, which op 2 joins through op 1.
  EXPECT_DOUBLE_EQ(Us(graph, {{0, 1, 2}, {0, 2}}), 13.1);
}

/*! \brief a, its row sums, and a expression of both: the core of a softmax. */
GraphBuilder Softmax() {
  GraphBuilder builder;
  builder.Read(builder.Elemwise({}), 0);
  builder.Reduce({0});
  builder.Elemwise({0, 1});
  return builder;
}

TEST(Roofline, EqualRowsShareANest) {
  OpGraph graph = Softmax().Build();
  Group group{{0, 1, 2}, {2}};
  EXPECT_EQ(CountNests(graph, group), 1);
  // Op 0 twice, reading once (1 + 0.1); op 1 stays in cache (0.1); op 2 writes (1).
  EXPECT_DOUBLE_EQ(Us(graph, group), 12.2);
}

TEST(Roofline, ANestReadsAValueOnce) {
  // Op 0 is outside: its value is read by both members, from memory only once.
  OpGraph graph = Softmax().Build();
  EXPECT_DOUBLE_EQ(Us(graph, {{1, 2}, {2}}), 12.0);
}

TEST(Roofline, OtherRowsOpenANest) {
  GraphBuilder builder = Softmax();
  builder.op(1).rows = 0;
  OpGraph graph = builder.Build();
  Group group{{0, 1, 2}, {2}};
  EXPECT_EQ(CountNests(graph, group), 2);
  // Op 0 reads in both nests (1 + 1); op 1 writes (1); op 2 reads op 1 and writes (2); one nest_us.
  EXPECT_DOUBLE_EQ(Us(graph, group), 20.0);
}

TEST(Roofline, AnInlinedOpOnThePathNeedsTheRowsToo) {
  GraphBuilder builder;
  int32_t sum = builder.Reduce({});
  int32_t between = builder.Elemwise({sum});
  int32_t last = builder.Reduce({between});
  EXPECT_EQ(CountNests(builder.Build(), {{sum, between, last}, {last}}), 1);
  builder.op(between).rows = 1;
  EXPECT_EQ(CountNests(builder.Build(), {{sum, between, last}, {last}}), 2);
}

TEST(Roofline, ARootJoinsTheHighestNestOfItsProducers) {
  GraphBuilder builder;
  int32_t a = builder.Reduce({});
  int32_t b = builder.Reduce({});
  int32_t c = builder.Elemwise({a, b});
  int32_t d = builder.Elemwise({a});
  OpGraph graph = builder.Build();
  LoopNests nests;
  Group group{{a, b, c, d}, {c, d}};
  nests.Plan(graph, group);
  EXPECT_EQ(nests.num_nests(), 2);
  EXPECT_EQ(nests.nest(2), 1);
  EXPECT_EQ(nests.nest(3), 0);
  EXPECT_FALSE(nests.StaysInNest(0));
  EXPECT_TRUE(nests.StaysInNest(1));
}

TEST(Roofline, WhatIsInlined) {
  auto inlined = [](const GraphBuilder& builder, const Group& group) {
    OpGraph graph = builder.Build();
    LoopNests nests;
    nests.Plan(graph, group);
    return nests.inlined(0);
  };
  GraphBuilder builder;
  builder.Elemwise({});
  builder.Elemwise({0});
  builder.Elemwise({0});
  EXPECT_TRUE(inlined(builder, {{0, 1, 2}, {1, 2}}));
  EXPECT_FALSE(inlined(builder, {{0, 1, 2}, {0, 1, 2}})) << "an output is a root";
  builder.op(0).flops = 401;
  EXPECT_FALSE(inlined(builder, {{0, 1, 2}, {1, 2}})) << "expensive with two consumers";
  EXPECT_TRUE(inlined(builder, {{0, 1}, {1}})) << "expensive with one consumer";
  builder.op(1).pattern = OpPattern::kOutElemwiseFusable;
  EXPECT_FALSE(inlined(builder, {{0, 1}, {1}})) << "operand of a matmul";
  builder.op(1).pattern = OpPattern::kCommReduce;
  EXPECT_TRUE(inlined(builder, {{0, 1}, {1}}));
  builder.op(0).pattern = OpPattern::kCommReduce;
  EXPECT_FALSE(inlined(builder, {{0, 1}, {1}})) << "a reduction is a root";
}

TEST(Roofline, MeasuredTimesShrinkByWhatIsSaved) {
  GraphBuilder builder;
  builder.Read(builder.Elemwise({}), 0);
  builder.Elemwise({0});
  OpGraph graph = builder.Build();
  Group group{{0, 1}, {1}};
  // Slower than the roofline: the saved bytes at full bandwidth.
  EXPECT_DOUBLE_EQ(Us(graph, group, {4.0, 2.0}), 10 + 3 + 1);
  // Faster: the saved share of the measured time.
  EXPECT_DOUBLE_EQ(Us(graph, group, {1.0, 2.0}), 10 + 0.5 + 1);
}

/*! \brief A device on which elementwise ops reach half of the bandwidth and a tenth of the peak. */
DeviceSpec HalfBandwidth() {
  DeviceSpec device = kDevice;
  device.efficiency["elementwise"] = {0.1, 0.5};
  return device;
}

TEST(Roofline, RatesAreThoseOfTheClass) {
  GraphBuilder builder = Softmax();
  builder.op(0).op_class = "elementwise";
  builder.op(1).op_class = "reduction";
  OpGraph graph = builder.Build();
  auto us = [&](const Group& group, const std::vector<double>& times) {
    RooflineCostModel model(graph, HalfBandwidth(), times);
    return static_cast<double>(model.Predict(graph, {group})[0].count()) / 1000.0;
  };
  // Op 0 reads and writes at half of the rate (2 + 2); a class that is not listed is not slowed.
  EXPECT_DOUBLE_EQ(us({{0}, {0}}, {}), 14.0);
  EXPECT_DOUBLE_EQ(us({{1}, {1}}, {}), 12.0);
  // Op 0 twice: its write vanishes, its read stays once (2) and the other time it computes (1);
  // op 1 stays in cache (0.1), op 2 writes (1).
  EXPECT_DOUBLE_EQ(us({{0, 1, 2}, {2}}, {}), 10 + 2 + 1 + 0.1 + 1);
  // A measured time loses what is saved at the rate of the class: 400 bytes are 2 us.
  EXPECT_DOUBLE_EQ(us({{0, 1}, {1}}, {5.0, 0.0, 0.0}), 10 + 3.0);
  EXPECT_DOUBLE_EQ(us({{0, 1}, {1}}, {3.0, 0.0, 0.0}), 10 + 1.5);
}

TEST(Roofline, FloorKnowsTheClass) {
  GraphBuilder builder = Softmax();
  builder.op(0).op_class = "elementwise";
  OpGraph graph = builder.Build();
  RooflineCostModel model(graph, HalfBandwidth(), {});
  EXPECT_EQ(model.Floor(graph, 0), Nanoseconds(2000));  // nobody else reads that parameter
  EXPECT_EQ(model.Floor(graph, 1), Nanoseconds(100));
}

TEST(Roofline, FloorIsBelowEveryUse) {
  OpGraph graph = Softmax().Build();
  RooflineCostModel model(graph, kDevice, {});
  EXPECT_EQ(model.Floor(graph, 0), Nanoseconds(1000));
  EXPECT_EQ(model.Floor(graph, 1), Nanoseconds(100));
  GraphBuilder builder = Softmax();
  builder.op(2).is_output = true;
  OpGraph with_output = builder.Build();
  EXPECT_EQ(RooflineCostModel(with_output, kDevice, {}).HomeFloor(with_output, 2),
            Nanoseconds(1000));
}

TEST(Roofline, RejectsBadArguments) {
  OpGraph graph = Softmax().Build();
  auto make = [&](const DeviceSpec& device, const std::vector<double>& times) {
    RooflineCostModel(graph, device, times);
  };
  double inf = std::numeric_limits<double>::infinity();
  EXPECT_THROW(make({"d", 0, 1, 1, 1}, {}), std::invalid_argument);
  EXPECT_THROW(make({"d", 1, inf, 1, 1}, {}), std::invalid_argument);
  EXPECT_THROW(make({"d", 1, 1, -1, 1}, {}), std::invalid_argument);
  EXPECT_THROW(make({"d", 1, 1, 1, -1}, {}), std::invalid_argument);
  EXPECT_THROW(make({"d", 1, 1, 1, 1, {{"matmul", {0.0, 1.0}}}}, {}), std::invalid_argument);
  EXPECT_THROW(make({"d", 1, 1, 1, 1, {{"matmul", {1.0, 1.1}}}}, {}), std::invalid_argument);
  EXPECT_THROW(make(kDevice, {1}), std::invalid_argument);
  EXPECT_THROW(make(kDevice, {1, -1, 1}), std::invalid_argument);
  RooflineCostModel model(graph, kDevice, {});
  GraphBuilder other;
  other.Elemwise({});
  EXPECT_THROW(model.Predict(other.Build(), {{{0}, {0}}}), std::invalid_argument);
}

}  // namespace
}  // namespace disco_fuse
