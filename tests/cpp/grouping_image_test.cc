#include <gtest/gtest.h>

#include <vector>

#include "search/edit_sampler.h"
#include "search/rng.h"
#include "strategy/block_array.h"
#include "strategy/grouping.h"
#include "test_graphs.h"

namespace disco_fuse {
namespace {

TEST(BlockArray, AnImageStaysAsItWasSaved) {
  BlockArray array(2 * BlockArray::kBlock + 3);
  for (int32_t i = 0; i < array.size(); ++i) array.Set(i, i);
  std::vector<int32_t> before = array.values();
  std::vector<BlockArray::Image> images = array.Save();
  array.Set(5, -1);
  array.Set(array.size() - 1, -2);
  array.Restore(images);
  EXPECT_EQ(array.values(), before);
  BlockArray other(array.size());
  other.Restore(images);
  EXPECT_EQ(other.values(), before);
}

TEST(BlockArray, OnlyWrittenBlocksGetAnotherImage) {
  BlockArray array(4 * BlockArray::kBlock);
  std::vector<BlockArray::Image> before = array.Save();
  BlockArray other(array.size());
  other.Restore(before);
  other.Set(BlockArray::kBlock, 7);
  std::vector<BlockArray::Image> after = other.Save();
  for (size_t block = 0; block < 4; ++block) {
    EXPECT_EQ(before[block] == after[block], block != 1) << block;
  }
}

OpGraph Chains() {
  GraphBuilder builder;
  std::vector<int32_t> ops{builder.Elemwise({}), builder.Elemwise({})};
  for (int32_t i = 0; i < 400; ++i) {
    ops.push_back(builder.Elemwise({ops[ops.size() - 1], ops[ops.size() - 2]}));
    if (i % 8 == 0) builder.AllReduce(ops.back());
  }
  return builder.Build();
}

TEST(GroupingImage, RestoresEveryStrategyOfAWalk) {
  OpGraph graph = Chains();
  FusionLimits limits;
  limits.bucket_neighbours = BucketNeighbours::kProductionOrder;
  EditSampler sampler(graph, limits, 8);
  Rng rng(11);
  Grouping grouping(graph), other(graph);
  std::vector<Strategy> strategies;
  std::vector<Grouping::Image> images;
  int32_t num_copies = 0;
  for (int32_t step = 0; step < 200; ++step) {
    strategies.push_back(grouping.ToStrategy(grouping.Order()));
    images.push_back(grouping.Save());
    num_copies += static_cast<int32_t>(grouping.copies().size());
    if (rng.Below(4) == 0) grouping.Restore(images[rng.Below(static_cast<int32_t>(images.size()))]);
    Edit edit;
    sampler.ApplyRandom(static_cast<EditKind>(rng.Below(kNumEditKinds)), &rng, &grouping, &edit);
  }
  EXPECT_GT(num_copies, 100);
  for (size_t i = 0; i < images.size(); ++i) {
    other.Restore(images[i]);
    EXPECT_EQ(other.ToStrategy(other.Order()), strategies[i]);
    EXPECT_EQ(other.Hash(), strategies[i].hash());
    Grouping loaded(graph);
    loaded.Load(strategies[i]);
    for (int32_t op = 0; op < graph.num_ops(); ++op) {
      if (other.home(op) != op) continue;
      std::vector<int32_t> members, expected;
      other.Members(op, &members);
      loaded.Members(op, &expected);
      EXPECT_EQ(members, expected);
    }
  }
}

/*! \brief Taking out and fusing again and again moves groups about in an order that has few gaps.
 */
TEST(GroupingImage, TheOrderStaysTopologicalWhenGroupsAreTakenOut) {
  OpGraph graph = Chains();
  EditSampler sampler(graph, {}, 8);
  Rng rng(12);
  Grouping grouping(graph);
  int32_t num_taken = 0;
  for (int32_t step = 0; step < 400; ++step) {
    Edit edit;
    sampler.ApplyRandom(EditKind::kFuse, &rng, &grouping, &edit);
    num_taken += sampler.ApplyRandom(EditKind::kTakeOut, &rng, &grouping, &edit) ? 1 : 0;
    ASSERT_EQ(grouping.Order().size(), grouping.CanonicalOrder().size());
    for (int32_t group : grouping.Order()) {
      grouping.ForEachPredecessor(
          group, [&](int32_t before) { ASSERT_TRUE(grouping.Precedes(before, group)); });
    }
  }
  EXPECT_GT(num_taken, 50);
}

}  // namespace
}  // namespace disco_fuse
