#include "search/edit_effects.h"

#include <gtest/gtest.h>

#include <vector>

#include "test_graphs.h"

namespace disco_fuse {
namespace {

TEST(EditEffects, EveryEditIsMadeOnTheStrategyItself) {
  GraphBuilder builder;
  int32_t a = builder.Elemwise({});
  int32_t b = builder.Elemwise({a});
  int32_t c = builder.Elemwise({b});
  int32_t lonely = builder.Library({c});
  builder.op(lonely).is_output = true;
  OpGraph graph = builder.Build();
  CallbackCostModel model = CountingModel();
  Cluster cluster{AllReduceModel{5, 0.01, 5, 0.01, 0}, 1000};
  Strategy start = Replay(graph, {}, Strategy::Unfused(graph), {{EditKind::kFuse, a, b}});

  std::vector<Edit> edits{{EditKind::kFuse, b, c},
                          {EditKind::kFuse, c, lonely},
                          {EditKind::kTakeOut, a, b},
                          {EditKind::kFuse, b, c}};
  EditEffects found = EffectsOf(graph, {}, model, cluster, start, edits);

  ASSERT_EQ(found.effects.size(), edits.size());
  Evaluator evaluator(graph, model, cluster);
  Grouping grouping(graph);
  grouping.Load(start);
  evaluator.Price({&grouping});
  EXPECT_EQ(found.makespan, evaluator.Schedule(0));
  for (size_t i : {0, 2, 3}) {
    EXPECT_TRUE(found.effects[i].decision.allowed());
    grouping.Load(Replay(graph, {}, start, {edits[i]}));
    evaluator.Price({&grouping});
    EXPECT_EQ(found.effects[i].makespan, evaluator.Schedule(0));
  }
  EXPECT_EQ(found.effects[1].decision.reason().substr(0, 5), "kind:");
  EXPECT_EQ(found.effects[1].makespan, Nanoseconds(0));
  // The first edit has left no trace in the last one, which is the same.
  EXPECT_EQ(found.effects[3].makespan, found.effects[0].makespan);
  EXPECT_NE(found.effects[2].makespan, found.effects[0].makespan);
}

}  // namespace
}  // namespace disco_fuse
