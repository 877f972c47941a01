#include "cost/measured_cost_model.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "test_graphs.h"

namespace disco_fuse {
namespace {

/*! \brief Two layers of two ops; op i of both has one signature, as equal kernels have. */
GraphBuilder TwoLayers() {
  GraphBuilder builder;
  for (int32_t first : {0, 2}) {
    builder.Elemwise({});
    builder.Elemwise({first});
    for (int32_t i : {0, 1}) builder.op(first + i).signature = "kernel" + std::to_string(i);
    builder.Read(first, first);
  }
  return builder;
}

TEST(GroupSignature, IsThatOfTheKernelAndNotOfItsPlace) {
  OpGraph graph = TwoLayers().Build();
  Hash128 layer = GroupSignature(graph, {{0, 1}, {1}});
  EXPECT_EQ(layer, GroupSignature(graph, {{2, 3}, {3}}));
  EXPECT_NE(layer, GroupSignature(graph, {{0, 1}, {0, 1}}));
  EXPECT_NE(layer, GroupSignature(graph, {{0, 3}, {3}}));
  EXPECT_NE(layer, GroupSignature(graph, {{0}, {0}}));
}

TEST(GroupSignature, TellsWhichValuesFromOutsideAreTheSame) {
  GraphBuilder builder;
  for (int32_t i = 0; i < 4; ++i) builder.Elemwise({});
  for (auto [op, value] : std::vector<std::pair<int32_t, int32_t>>{{0, 7}, {1, 7}, {2, 7}, {3, 8}})
    builder.Read(op, value);
  OpGraph graph = builder.Build();
  Hash128 shared = GroupSignature(graph, {{0, 1}, {0, 1}});
  EXPECT_EQ(shared, GroupSignature(graph, {{1, 2}, {1, 2}}));
  EXPECT_NE(shared, GroupSignature(graph, {{2, 3}, {2, 3}}));
}

TEST(MeasuredCostModel, AnswersWhatWasMeasuredAndAsksForTheRest) {
  OpGraph graph = TwoLayers().Build();
  auto base = std::make_shared<CallbackCostModel>(CountingModel());
  MeasuredCostModel::Times times{
      {GroupSignature(graph, {{0, 1}, {1}}), std::chrono::microseconds(77)}};
  MeasuredCostModel model(base, times);
  std::vector<Nanoseconds> found =
      model.Predict(graph, {{{0}, {0}}, {{2, 3}, {3}}, {{0, 1}, {0, 1}}});
  EXPECT_EQ(found,
            (std::vector<Nanoseconds>{std::chrono::microseconds(10), std::chrono::microseconds(77),
                                      std::chrono::microseconds(11)}));
  EXPECT_EQ(model.name(), "counting");
  EXPECT_FALSE(model.thread_safe());
}

}  // namespace
}  // namespace disco_fuse
