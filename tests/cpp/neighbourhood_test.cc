#include "search/neighbourhood.h"

#include <gtest/gtest.h>

#include <vector>

#include "search/edit_sampler.h"
#include "search/rng.h"
#include "test_graphs.h"

namespace disco_fuse {
namespace {

/*! \brief Layers with a gradient and an update each; all updates wait for a norm of all gradients.
 */
OpGraph ClippedTraining(int32_t num_layers) {
  GraphBuilder builder;
  std::vector<int32_t> forward{builder.Elemwise({})}, averages;
  for (int32_t i = 0; i < num_layers; ++i) {
    forward.push_back(builder.Elemwise({builder.Library({forward.back()})}));
  }
  int32_t dy = builder.Elemwise({forward.back()});
  for (int32_t i = num_layers; i > 0; --i) {
    dy = builder.Elemwise({dy, forward[i]});
    averages.push_back(builder.AllReduce(builder.Reduce({dy})));
  }
  int32_t norm = builder.Reduce(averages);
  for (int32_t average : averages) {
    builder.op(builder.Elemwise({average, norm})).is_output = true;
  }
  return builder.Build();
}

Cluster TestCluster() { return {AllReduceModel{5, 0.01, 5, 0.01, 0}, 1200}; }

TEST(Neighbourhood, FindsWhatTheEvaluatorFinds) {
  OpGraph graph = ClippedTraining(8);
  CallbackCostModel model = CountingModel();
  Evaluator evaluator(graph, model, TestCluster());
  Neighbourhood near(graph, model, TestCluster());
  EditSampler sampler(graph, {}, 8);
  Rng rng(5);
  Grouping base(graph);
  std::vector<Grouping> children(3, base);
  for (int32_t step = 0; step < 60; ++step) {
    evaluator.Price({&base});
    EXPECT_EQ(near.Settle(base), evaluator.Schedule(0));
    near.Price({&base});
    EXPECT_EQ(near.Order(0), evaluator.Order(0));
    std::vector<const Grouping*> groupings;
    for (int32_t kind = 0; kind < 3; ++kind) {
      children[kind] = base;
      Edit edit;
      for (int32_t i = rng.Below(4); i >= 0; --i) {
        sampler.ApplyRandom(static_cast<EditKind>(kind), &rng, &children[kind], &edit);
      }
      groupings.push_back(&children[kind]);
    }
    near.Price(groupings);
    evaluator.Price(groupings);
    // Makespans first: the order of a child is found again after others have been scheduled.
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(near.Schedule(i), evaluator.Schedule(i));
    for (size_t i = 0; i < 3; ++i) {
      evaluator.Schedule(i);
      EXPECT_EQ(near.Order(i), evaluator.Order(i));
    }
    base = step % 20 == 19 ? Grouping(graph) : children[rng.Below(3)];
  }
}

TEST(Neighbourhood, AsksTheCostModelOnceForAllChildren) {
  OpGraph graph = ClippedTraining(4);
  std::vector<size_t> batches;
  CallbackCostModel model("counted", [&](const OpGraph&, const std::vector<Group>& groups) {
    batches.push_back(groups.size());
    return std::vector<double>(groups.size(), 1.0);
  });
  Neighbourhood near(graph, model, TestCluster());
  Grouping base(graph);
  near.Settle(base);
  // One call for the library calls and kernels of the base: all ops but the four collectives.
  EXPECT_EQ(batches, (std::vector<size_t>{static_cast<size_t>(graph.num_ops()) - 4}));
  Grouping a = base, b = base, c = base;
  ASSERT_TRUE(ApplyEdit({}, {EditKind::kFuse, 8, 9}, &a).allowed());
  ASSERT_TRUE(ApplyEdit({}, {EditKind::kFuseDuplicate, 8, 9}, &b).allowed());
  FusionLimits limits;
  limits.bucket_neighbours = BucketNeighbours::kProductionOrder;
  ASSERT_TRUE(ApplyEdit(limits, {EditKind::kMergeBuckets, 12, 15}, &c).allowed());
  near.Price({&a, &b, &c});
  EXPECT_EQ(batches.size(), 2u);
  // Kernels are known from then on.
  near.Schedule(0);
  near.Price({&a, &b, &c});
  EXPECT_EQ(batches.size(), 2u);
}

}  // namespace
}  // namespace disco_fuse
