#include "strategy/strategy.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "strategy/unit_graph.h"
#include "test_graphs.h"

namespace disco_fuse {
namespace {

using Ids = std::vector<int32_t>;
using Copies = std::vector<Copy>;

std::string ErrorOf(const OpGraph& graph, const Ids& labels, const Copies& copies = {},
                    const Ids& order = {}, const FusionLimits& limits = {}) {
  try {
    Strategy::Create(graph, limits, labels, copies, order);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

OpGraph Diamond() {
  GraphBuilder builder;
  builder.Elemwise({});
  builder.Elemwise({0});
  builder.Library({0});
  builder.Elemwise({1, 2});
  return builder.Build();
}

Ids ToIds(Span<int32_t> span) { return {span.begin(), span.end()}; }

TEST(Strategy, LabelsBecomeRepresentatives) {
  Strategy strategy = Strategy::Create(Diamond(), {}, {70, 70, 5, 9}, {}, {});
  EXPECT_EQ(strategy.group_of(), (Ids{0, 0, 2, 3}));
  EXPECT_EQ(strategy.order(), (Ids{0, 2, 3}));
}

TEST(Strategy, HashCoversGroupingOnly) {
  GraphBuilder builder;
  for (int i = 0; i < 2; ++i) builder.Elemwise({});
  OpGraph graph = builder.Build();
  Strategy a = Strategy::Create(graph, {}, {0, 1}, {}, {0, 1});
  Strategy b = Strategy::Create(graph, {}, {0, 1}, {}, {1, 0});
  EXPECT_EQ(a.hash(), b.hash());
  EXPECT_FALSE(a == b);
  EXPECT_NE(a.hash(), Strategy::Create(graph, {}, {0, 0}, {}, {}).hash());
}

TEST(Strategy, CreateRejectsWhatEditsWouldReject) {
  OpGraph graph = Diamond();
  EXPECT_NE(ErrorOf(graph, {0, 1, 0, 3}).find("kind: op 2 ('op2') is a library call"),
            std::string::npos);
  EXPECT_NE(ErrorOf(graph, {0, 1, 2, 0}).find("cycle: "), std::string::npos);
  EXPECT_NE(ErrorOf(graph, {0, 1, 2, 3}, {{2, 3}}).find("kind: "), std::string::npos);
  FusionLimits limits;
  limits.max_group_ops = 1;
  EXPECT_NE(ErrorOf(graph, {0, 0, 2, 3}, {}, {}, limits).find("size: "), std::string::npos);
}

TEST(Strategy, CreateRejectsMalformedChoices) {
  OpGraph graph = Diamond();
  EXPECT_EQ(ErrorOf(graph, {0, 1}), "group_of must have one entry for each of the 4 ops, got 2");
  EXPECT_EQ(ErrorOf(graph, {0, 1, 2, 3}, {{9, 0}}), "duplicated op must be in [0, 4), got 9");
  EXPECT_EQ(ErrorOf(graph, {0, 1, 2, 3}, {{0, 7}}),
            "duplicated op 0 ('op0'): group 7 does not occur in group_of");
}

TEST(Strategy, CreateRejectsBadOrders) {
  OpGraph graph = Diamond();
  Ids alone{0, 1, 2, 3};
  EXPECT_EQ(ErrorOf(graph, alone, {}, {0, 2, 1, 3}), "no error");
  EXPECT_EQ(ErrorOf(graph, alone, {}, {0, 1, 3, 2}),
            "order: group 3 comes before group 2, which it depends on");
  EXPECT_EQ(ErrorOf(graph, alone, {}, {0, 1, 2}), "order: group 3 is missing");
  EXPECT_EQ(ErrorOf(graph, alone, {}, {0, 1, 2, 2}), "order: group 2 is given twice");
  EXPECT_EQ(ErrorOf(graph, {0, 0, 2, 3}, {}, {0, 1, 2, 3}),
            "order: 1 at position 1 is not the representative of a group");
}

TEST(Strategy, CreateMergesBucketsOfOneClass) {
  GraphBuilder builder;
  int32_t g = builder.Elemwise({});
  builder.AllReduce(g);
  builder.AllReduce(builder.Elemwise({g}));
  builder.AllReduce(builder.Elemwise({g}));
  EXPECT_EQ(ErrorOf(builder.Build(), {0, 1, 2, 3, 4, 1}), "no error");
  builder.op(5).merge_class = "sum";
  EXPECT_NE(ErrorOf(builder.Build(), {0, 1, 2, 3, 4, 1}).find("merge class: "), std::string::npos);
}

TEST(Strategy, DeadCopiesArePruned) {
  // Nobody in group 3 reads op 1's copy of op 0 but op 1 itself, which is not there.
  Strategy strategy = Strategy::Create(Diamond(), {}, {0, 1, 2, 3}, {{0, 3}}, {});
  EXPECT_TRUE(strategy.duplicated().empty());
}

TEST(UnitGraph, ListsMembersOutputsAndDependencies) {
  OpGraph graph = Diamond();
  Grouping grouping(graph);
  ASSERT_TRUE(grouping.Assign({0, 1, 2, 1}, {{0, 1}}));
  UnitGraph units;
  units.Build(grouping);
  ASSERT_EQ(units.num_units(), 3);
  EXPECT_EQ(units.representative(2), 1);
  EXPECT_EQ(ToIds(units.members(2)), (Ids{0, 1, 3}));
  EXPECT_EQ(ToIds(units.outputs(2)), (Ids{3}));
  EXPECT_EQ(ToIds(units.predecessors(2)), (Ids{1}));
  EXPECT_EQ(ToIds(units.outputs(0)), (Ids{0}));
  EXPECT_EQ(ToIds(units.successors(0)), (Ids{1}));
  EXPECT_EQ(units.kind(1), UnitKind::kLibrary);
}

TEST(UnitGraph, EveryCopyComesBeforeTheOverwrite) {
  GraphBuilder builder;
  int32_t reader = builder.Elemwise({});
  int32_t user = builder.Elemwise({reader});
  builder.Elemwise({reader});
  int32_t writer = builder.Elemwise({});
  builder.Before(reader, writer);
  OpGraph graph = builder.Build();
  Grouping grouping(graph);
  ASSERT_TRUE(grouping.Assign({0, 1, 2, 3}, {{reader, user}}));
  UnitGraph units;
  units.Build(grouping);
  EXPECT_EQ(ToIds(units.predecessors(units.unit_of(writer))),
            (Ids{units.unit_of(reader), units.unit_of(user)}));
}

TEST(UnitGraph, ContentTellsOutputsApart) {
  GraphBuilder builder;
  builder.Elemwise({});
  builder.Elemwise({0});
  builder.Library({0});
  OpGraph graph = builder.Build();
  auto content = [](const OpGraph& g) {
    Grouping grouping(g);
    EXPECT_TRUE(grouping.Assign({0, 0, 2}, {}));
    UnitGraph units;
    units.Build(grouping);
    return units.content(0);
  };
  GraphBuilder other;
  other.Elemwise({});
  other.Elemwise({0});
  other.Library({1});
  EXPECT_NE(content(graph), content(other.Build()));
}

}  // namespace
}  // namespace disco_fuse
