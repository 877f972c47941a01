#include "cost/gnn_inference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <vector>

#include "test_graphs.h"

namespace disco_fuse {
namespace {

constexpr GnnShape kShape{1, 2, 1, 1};

size_t Nodes() { return NodeFeatureNames().size(); }
size_t Globals() { return GlobalFeatureNames().size(); }

/*! \brief A network of kShape with means 0, scales 1 and weights 0. */
std::vector<float> Zeros() {
  std::vector<float> weights(2 * (Nodes() + Globals()), 0.0F);
  for (size_t i = 0; i < Nodes(); ++i) weights[Nodes() + i] = 1;
  for (size_t i = 0; i < Globals(); ++i) weights[2 * Nodes() + Globals() + i] = 1;
  size_t input = 2 * (Nodes() + 1), attention = 4 + 2 + 2 + 2, dense = 4 + Globals() + 1 + 2 + 2;
  weights.resize(weights.size() + input + attention + dense, 0.0F);
  return weights;
}

/*! \brief A network whose output is `value` whatever it reads. */
GnnNetwork Constant(float value) {
  std::vector<float> weights = Zeros();
  weights.back() = value;
  return GnnNetwork(kShape, weights);
}

DeviceSpec Device() { return {"test", 1.0, 0.4, 10.0, 2.0}; }

OpGraph Chain(int32_t length) {
  GraphBuilder builder;
  for (int32_t i = 0; i < length; ++i) {
    builder.Elemwise(i == 0 ? std::vector<int32_t>{} : std::vector<int32_t>{i - 1});
  }
  return builder.Build();
}

double PriceUs(const OpGraph& graph, const CostModel& model, const Group& group) {
  return static_cast<double>(model.Predict(graph, {group})[0].count()) / 1e3;
}

/*! \brief Two nodes with h = (a, 0): what attention does to them can be done by hand. */
GroupFeatures TwoNodes(float first, float second) {
  GroupFeatures features;
  features.nodes.assign(2 * Nodes(), 0.0F);
  features.nodes[0] = first;
  features.nodes[Nodes()] = second;
  features.producer = {0};
  features.consumer = {1};
  features.globals.assign(Globals(), 0.0F);
  return features;
}

TEST(GnnNetwork, AttentionSharesFollowTheScores) {
  std::vector<float> weights = Zeros();
  size_t input = 2 * (Nodes() + Globals());
  weights[input] = 1;  // h = (node feature 0, 0)
  size_t layer = input + 2 * (Nodes() + 1);
  weights[layer] = 1;      // projected = (h0, 0)
  weights[layer + 4] = 1;  // score of a sender: h0
  weights[layer + 8] = 3;  // bias of value 0
  size_t dense = layer + 10;
  weights[dense + 2] = 1;                  // the maximum of value 0
  weights[dense + 4 + Globals() + 1] = 1;  // second dense layer
  weights[dense + 4 + Globals() + 3] = 1;  // third
  GnnNetwork network(kShape, weights);
  double first = 1, second = 2;
  double shared =
      (first * std::exp(first) + second * std::exp(second)) / (std::exp(first) + std::exp(second));
  // Both nodes hear both; the residual of the second is larger.
  EXPECT_NEAR(network.Run(TwoNodes(1, 2)), second + 3 + shared, 1e-5);
}

TEST(GnnNetwork, SeveralNetworksAreAveraged) {
  std::vector<float> weights;
  for (float value : {1.0F, 2.0F, 6.0F}) {
    std::vector<float> one = Zeros();
    one.back() = value;
    weights.insert(weights.end(), one.begin(), one.end());
  }
  EXPECT_EQ(GnnNetwork(kShape, weights).Run(TwoNodes(1, 2)), 3);
}

TEST(GnnNetwork, RefusesWeightsThatDoNotFit) {
  std::vector<float> weights = Zeros();
  weights.pop_back();
  EXPECT_THROW(GnnNetwork(kShape, weights), std::invalid_argument);
  EXPECT_THROW(GnnNetwork({1, 3, 2, 1}, Zeros()), std::invalid_argument);
  EXPECT_THROW(GnnNetwork({0, 2, 1, 1}, Zeros()), std::invalid_argument);
  EXPECT_EQ(GnnNetwork(kShape, Zeros()).Run(TwoNodes(1, 2)), 0);
}

TEST(GnnCostModel, CorrectsGroupsAndLeavesOpsAlone) {
  OpGraph graph = Chain(3);
  RooflineCostModel roofline(graph, Device(), {});
  GnnCostModel model(graph, Device(), {}, Constant(0.7F), -1, 1);
  Group all{{0, 1, 2}, {2}}, one{{1}, {1}};
  double kernel_us = PriceUs(graph, roofline, all) - 10;
  EXPECT_NEAR(PriceUs(graph, model, all), 10 + kernel_us * std::exp(0.7F), 2e-3);
  EXPECT_EQ(PriceUs(graph, model, one), PriceUs(graph, roofline, one));
  EXPECT_EQ(model.name(), "gnn");
}

TEST(GnnCostModel, CutsOffWhatTrainingDidNotSee) {
  OpGraph graph = Chain(3);
  RooflineCostModel roofline(graph, Device(), {});
  Group all{{0, 1, 2}, {2}};
  double kernel_us = PriceUs(graph, roofline, all) - 10;
  GnnCostModel high(graph, Device(), {}, Constant(50), -1, 0.5);
  EXPECT_NEAR(PriceUs(graph, high, all), 10 + kernel_us * std::exp(0.5), 2e-3);
  GnnCostModel low(graph, Device(), {}, Constant(-50), -1, 0.5);
  EXPECT_NEAR(PriceUs(graph, low, all), 10 + kernel_us * std::exp(-1.0), 2e-3);
}

TEST(GnnCostModel, RefusesAnOutputThatIsNoNumber) {
  OpGraph graph = Chain(2);
  GnnCostModel model(graph, Device(), {}, Constant(std::nanf("")), -1, 1);
  EXPECT_THROW(model.Predict(graph, {{{0, 1}, {1}}}), std::invalid_argument);
}

TEST(FeatureReader, HasAColumnForEveryName) {
  OpGraph graph = Chain(3);
  GroupFeatures features;
  FeatureReader reader;
  reader.Read(graph, {{0, 1, 2}, {2}}, {1, 2, 4}, 5, &features);
  EXPECT_EQ(features.nodes.size(), 3 * Nodes());
  EXPECT_EQ(features.globals.size(), Globals());
  EXPECT_NEAR(features.globals[0], std::log(5), 1e-6);
  EXPECT_NEAR(features.nodes[2 * Nodes()], std::log(4), 1e-6);
  // Buffers are reused: what was read before must not show.
  reader.Read(graph, {{1, 2}, {2}}, {1, 2, 4}, 5, &features);
  EXPECT_EQ(features.nodes.size(), 2 * Nodes());
  EXPECT_EQ(features.producer, std::vector<int32_t>({0}));
}

}  // namespace
}  // namespace disco_fuse
