#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "edit_reasons.h"
#include "strategy/edit.h"
#include "test_graphs.h"

namespace disco_fuse {
namespace {

// Edits beyond the paper: what they do, and one test for each reason why not.

using Ids = std::vector<int32_t>;
using Copies = std::vector<Copy>;

constexpr EditKind kFuse = EditKind::kFuse;
constexpr EditKind kDuplicate = EditKind::kFuseDuplicate;
constexpr EditKind kMerge = EditKind::kMergeBuckets;
constexpr EditKind kSplit = EditKind::kSplitBucket;
constexpr EditKind kMove = EditKind::kMoveGradient;
constexpr EditKind kTake = EditKind::kTakeOut;
constexpr EditKind kReorder = EditKind::kReorder;

FusionLimits ByProduction() {
  FusionLimits limits;
  limits.bucket_neighbours = BucketNeighbours::kProductionOrder;
  return limits;
}

Strategy After(const OpGraph& graph, const std::vector<Edit>& edits,
               const FusionLimits& limits = ByProduction()) {
  return Replay(graph, limits, Strategy::Unfused(graph), edits);
}

std::string ReasonOf(const OpGraph& graph, const std::vector<Edit>& edits) {
  return ReasonOf(graph, edits, ByProduction());
}

/*! \brief Gradients 0, 1, 2, 3, their collectives 4, 5, 6, 7. */
OpGraph FourGradients() {
  GraphBuilder builder;
  for (int i = 0; i < 4; ++i) builder.Library({});
  for (int i = 0; i < 4; ++i) builder.AllReduce(i);
  return builder.Build();
}

const std::vector<Edit> kAllInOne{{kMerge, 4, 5}, {kMerge, 5, 6}, {kMerge, 6, 7}};

std::vector<Edit> With(std::vector<Edit> edits, const std::vector<Edit>& more) {
  edits.insert(edits.end(), more.begin(), more.end());
  return edits;
}

TEST(SplitBucket, CutsInProductionOrder) {
  OpGraph graph = FourGradients();
  EXPECT_EQ(After(graph, With(kAllInOne, {{kSplit, 5, 6}})).group_of(),
            (Ids{0, 1, 2, 3, 4, 4, 6, 6}));
  EXPECT_EQ(After(graph, With(kAllInOne, {{kSplit, 5, 6}, {kMerge, 5, 6}})).hash(),
            After(graph, kAllInOne).hash());
  EXPECT_EQ(After(graph, With(kAllInOne, {{kSplit, 4, 5}, {kSplit, 5, 6}, {kSplit, 6, 7}})).hash(),
            Strategy::Unfused(graph).hash());
}

TEST(SplitBucket, ReasonsWhyNot) {
  OpGraph graph = FourGradients();
  EXPECT_EQ(ReasonOf(graph, {{kSplit, 4, 5}}),
            "relation: op 4 ('op4') and op 5 ('op5') share no bucket");
  EXPECT_EQ(ReasonOf(graph, {{kMerge, 4, 5}, {kSplit, 5, 4}}),
            "relation: op 5 ('op5') is not produced before op 4 ('op4')");
  EXPECT_EQ(Rule(ReasonOf(graph, {{kMerge, 4, 5}, {kSplit, 4, 4}})), "relation");
  EXPECT_EQ(ReasonOf(graph, {{kSplit, 0, 5}}), "merge class: op 0 ('op0') is no collective");
  EXPECT_EQ(Rule(ReasonOf(graph, {{kSplit, 4, 0}})), "merge class");
}

TEST(MoveGradient, GoesToTheNeighbour) {
  OpGraph graph = FourGradients();
  std::vector<Edit> halves{{kMerge, 4, 5}, {kMerge, 6, 7}};
  EXPECT_EQ(After(graph, With(halves, {{kMove, 5, 6}})).group_of(), (Ids{0, 1, 2, 3, 4, 5, 5, 5}));
  EXPECT_EQ(After(graph, With(halves, {{kMove, 6, 4}})).group_of(), (Ids{0, 1, 2, 3, 4, 4, 4, 7}));
  EXPECT_EQ(After(graph, With(halves, {{kMove, 5, 6}, {kMove, 5, 4}})).hash(),
            After(graph, halves).hash());
}

TEST(MoveGradient, ReasonsWhyNot) {
  OpGraph graph = FourGradients();
  EXPECT_EQ(ReasonOf(graph, {{kMerge, 4, 5}, {kMove, 4, 5}}),
            "relation: op 4 ('op4') and op 5 ('op5') share a bucket already");
  EXPECT_EQ(ReasonOf(graph, {{kMove, 4, 5}}),
            "relation: op 4 ('op4') is alone in its bucket, which could only be merged");
  EXPECT_EQ(ReasonOf(graph, {{kMerge, 4, 5}, {kMove, 5, 7}}),
            "neighbours: the buckets of op 5 ('op5') and op 7 ('op7') are no neighbours");
  EXPECT_EQ(Rule(ReasonOf(graph, {{kMerge, 4, 5}, {kMove, 5, 3}})), "merge class");
}

TEST(MoveGradient, BucketsThatDependOnEachOtherExchangeNothing) {
  GraphBuilder builder;
  int32_t g = builder.Library({});
  int32_t a = builder.AllReduce(g);
  int32_t b = builder.AllReduce(g);
  int32_t late = builder.AllReduce(builder.Library({a}));
  OpGraph graph = builder.Build();
  EXPECT_EQ(Rule(ReasonOf(graph, {{kMerge, a, b}, {kMove, b, late}})), "cycle");
}

/*! \brief 0 -> 1 -> 2 -> 3, all in one group; 1 is also read by the library call 4. */
OpGraph Chain() {
  GraphBuilder builder;
  builder.Elemwise({});
  for (int i = 0; i < 3; ++i) builder.Elemwise({i});
  builder.Library({1});
  return builder.Build();
}

const std::vector<Edit> kWhole{{kFuse, 0, 1}, {kFuse, 1, 2}, {kFuse, 2, 3}};

TEST(TakeOut, WhatOnlyServesTheOpGoesAlong) {
  OpGraph graph = Chain();
  EXPECT_EQ(After(graph, With(kWhole, {{kTake, 1, 1}})).group_of(), (Ids{0, 0, 2, 2, 4}));
  EXPECT_EQ(After(graph, With(kWhole, {{kTake, 3, 3}})).group_of(), (Ids{0, 0, 2, 2, 4}));
  EXPECT_EQ(After(graph, With(kWhole, {{kTake, 0, 0}})).group_of(), (Ids{0, 1, 1, 1, 4}));
}

TEST(TakeOut, ARepresentativeMayLeave) {
  GraphBuilder builder;
  builder.Elemwise({});
  builder.Elemwise({});
  builder.Elemwise({0, 1});
  OpGraph graph = builder.Build();
  Strategy strategy = After(graph, {{kFuse, 0, 2}, {kFuse, 1, 2}, {kTake, 0, 0}});
  EXPECT_EQ(strategy.group_of(), (Ids{0, 1, 1}));
  EXPECT_EQ(strategy.order(), (Ids{0, 1}));
  EXPECT_EQ(strategy, After(graph, {{kFuse, 1, 2}}));
}

TEST(TakeOut, ACopyGoesBackToItsHome) {
  GraphBuilder builder;
  builder.Elemwise({});
  builder.Elemwise({0});
  builder.Elemwise({0});
  OpGraph graph = builder.Build();
  EXPECT_EQ(After(graph, {{kDuplicate, 0, 2}, {kTake, 0, 2}}), Strategy::Unfused(graph));
  // What only the copy needed goes as well.
  GraphBuilder longer;
  longer.Elemwise({});
  longer.Elemwise({0});
  longer.Elemwise({1});
  longer.Library({1});
  OpGraph chain = longer.Build();
  std::vector<Edit> copied{{kFuse, 0, 1}, {kDuplicate, 1, 2}};
  EXPECT_EQ(After(chain, copied).duplicated(), (Copies{{0, 2}, {1, 2}}));
  EXPECT_EQ(After(chain, With(copied, {{kTake, 1, 2}})), After(chain, {{kFuse, 0, 1}}));
}

TEST(TakeOut, BothPartsKeepTheCopiesThatTheyNeed) {
  GraphBuilder builder;
  int32_t x = builder.Elemwise({});
  int32_t y = builder.Elemwise({x});
  int32_t z = builder.Elemwise({x, y});
  builder.Library({x});
  OpGraph graph = builder.Build();
  Strategy strategy = After(graph, {{kDuplicate, x, y}, {kFuse, y, z}, {kTake, y, y}});
  EXPECT_EQ(strategy.group_of(), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(strategy.duplicated(), (Copies{{x, y}, {x, z}}));
}

TEST(TakeOut, RelationsThatAreMissing) {
  OpGraph graph = Chain();
  EXPECT_EQ(ReasonOf(graph, {{kTake, 0, 0}}),
            "relation: op 0 ('op0') and what only serves it are all of their group");
  EXPECT_EQ(ReasonOf(graph, {{kFuse, 0, 1}, {kTake, 1, 1}}),
            "relation: op 1 ('op1') and what only serves it are all of their group");
  EXPECT_EQ(ReasonOf(graph, {{kTake, 0, 1}}),
            "relation: the group of op 1 ('op1') does not compute op 0 ('op0')");
  EXPECT_EQ(Rule(ReasonOf(graph, {{kTake, 4, 4}})), "kind");
}

TEST(TakeOut, MakesNoCycle) {
  // a serves both others; b alone would stand between a and c.
  GraphBuilder builder;
  int32_t a = builder.Elemwise({});
  int32_t b = builder.Elemwise({a});
  int32_t c = builder.Elemwise({a, b});
  OpGraph graph = builder.Build();
  EXPECT_EQ(ReasonOf(graph, {{kFuse, a, b}, {kFuse, b, c}, {kTake, b, b}}),
            "cycle: op 1 ('op1') stands between what would be left of its group");
}

TEST(TakeOut, ACopyDoesNotGoBackBehindItsReader) {
  // The home of x also holds late, which needs the group of y.
  GraphBuilder builder;
  int32_t x = builder.Elemwise({});
  int32_t y = builder.Elemwise({x});
  int32_t call = builder.Library({y});
  int32_t late = builder.Elemwise({x, call});
  OpGraph graph = builder.Build();
  EXPECT_EQ(Rule(ReasonOf(graph, {{kDuplicate, x, y}, {kFuse, x, late}})), "allowed");
  builder.Library({x});
  OpGraph kept = builder.Build();
  EXPECT_EQ(Rule(ReasonOf(kept, {{kDuplicate, x, y}, {kFuse, x, late}, {kTake, x, y}})), "cycle");
}

TEST(TakeOut, WhatIsLeftHangsTogether) {
  GraphBuilder builder;
  int32_t x = builder.Elemwise({});
  int32_t y = builder.Elemwise({x});
  int32_t z = builder.Elemwise({x});
  OpGraph graph = builder.Build();
  EXPECT_EQ(ReasonOf(graph, {{kFuse, x, y}, {kFuse, x, z}, {kTake, x, x}}),
            "connection: without op 0 ('op0') its group would fall apart");
  builder.Library({x});
  OpGraph kept = builder.Build();
  std::vector<Edit> copied{{kDuplicate, x, y}, {kDuplicate, x, z}};
  int32_t sum = builder.Elemwise({y, z});
  OpGraph joined = builder.Build();
  EXPECT_EQ(Rule(ReasonOf(joined, With(copied, {{kFuse, y, sum}, {kFuse, z, sum}, {kTake, x, y}}))),
            "allowed");
  EXPECT_EQ(Rule(ReasonOf(kept, With(copied, {{kTake, x, z}}))), "allowed");
}

TEST(TakeOut, BothPartsObeyTheRules) {
  // The whole has one input and two outputs; without d it also has to write what d reads.
  GraphBuilder builder;
  int32_t a = builder.Elemwise({});
  int32_t b = builder.Elemwise({a});
  int32_t c = builder.Elemwise({b});
  int32_t d = builder.Elemwise({a, b});
  builder.Read(a, 0);
  OpGraph graph = builder.Build();
  FusionLimits limits;
  limits.max_group_args = 3;
  std::vector<Edit> edits{{kFuse, a, b}, {kFuse, b, d}, {kFuse, b, c}, {kTake, d, d}};
  EXPECT_EQ(Rule(ReasonOf(graph, edits, limits)), "arguments");
  limits.max_group_args = 4;
  EXPECT_EQ(Rule(ReasonOf(graph, edits, limits)), "allowed");
}

TEST(TakeOut, TheHomeObeysTheRulesWithoutTheCopyToo) {
  // x becomes an output of its home, which has two already.
  GraphBuilder builder;
  int32_t x = builder.Elemwise({});
  int32_t first = builder.Elemwise({x});
  int32_t second = builder.Elemwise({x});
  int32_t y = builder.Elemwise({x});
  builder.Read(x, 0);
  OpGraph graph = builder.Build();
  FusionLimits limits;
  limits.max_group_args = 3;
  std::vector<Edit> edits{{kDuplicate, x, y}, {kFuse, x, first}, {kFuse, x, second}, {kTake, x, y}};
  EXPECT_EQ(Rule(ReasonOf(graph, edits, limits)), "arguments");
  limits.max_group_args = 4;
  EXPECT_EQ(Rule(ReasonOf(graph, edits, limits)), "allowed");
}

TEST(Reorder, GivesAUnitAnotherUrgency) {
  OpGraph graph = FourGradients();
  Strategy strategy = After(graph, {{kReorder, 3, 0}});
  ASSERT_EQ(strategy.priorities().size(), 1u);
  EXPECT_EQ(strategy.priorities()[0], (Priority{3, 0}));
  EXPECT_NE(strategy.hash(), Strategy::Unfused(graph).hash());
  EXPECT_EQ(After(graph, {{kReorder, 3, 0}, {kReorder, 3, -1}}), Strategy::Unfused(graph));
  // Given urgencies are handed on.
  EXPECT_EQ(After(graph, {{kReorder, 3, 0}, {kReorder, 2, 3}}).priorities()[0], (Priority{2, 0}));
}

TEST(Reorder, ReasonsWhyNot) {
  OpGraph graph = Chain();
  EXPECT_EQ(ReasonOf(graph, {{kFuse, 0, 1}, {kReorder, 0, 1}}),
            "relation: op 0 ('op0') and op 1 ('op1') share a unit");
  EXPECT_EQ(ReasonOf(graph, {{kReorder, 0, -1}}),
            "urgency: the unit of op 0 ('op0') has that urgency already");
  EXPECT_EQ(ReasonOf(graph, {{kReorder, 0, 4}}),
            "urgency: op 4 ('op4') leads to no gradient and has no urgency to give");
  OpGraph urgent = FourGradients();
  EXPECT_EQ(Rule(ReasonOf(urgent, {{kReorder, 0, 1}, {kReorder, 0, 1}})), "urgency");
  EXPECT_EQ(Rule(ReasonOf(graph, {{kReorder, -1, 0}})), "relation");
  EXPECT_EQ(Rule(ReasonOf(graph, {{kReorder, 0, -2}})), "relation");
  EXPECT_EQ(Rule(ReasonOf(graph, {{kFuse, 0, -1}})), "relation");
}

TEST(Reorder, AMergedUnitKeepsTheMoreUrgentPriority) {
  OpGraph graph = FourGradients();
  std::vector<Edit> edits{{kReorder, 4, 3}, {kReorder, 5, 1}, {kMerge, 4, 5}};
  EXPECT_EQ(After(graph, edits).priorities(), (std::vector<Priority>{{4, 1}}));
  std::vector<Edit> turned{{kReorder, 4, 1}, {kReorder, 5, 3}, {kMerge, 4, 5}};
  EXPECT_EQ(After(graph, turned).priorities(), (std::vector<Priority>{{4, 1}}));
  // What leaves has its own urgency again.
  edits.push_back({kSplit, 4, 5});
  EXPECT_EQ(After(graph, edits).priorities(), (std::vector<Priority>{{4, 1}}));
  EXPECT_EQ(After(graph, {{kReorder, 5, 1}, {kMerge, 4, 5}}).priorities(),
            (std::vector<Priority>{{4, 1}}));
}

TEST(Reorder, CreateKeepsOnePriorityPerUnit) {
  OpGraph graph = Chain();
  Strategy strategy = Strategy::Create(graph, {}, {0, 0, 2, 3, 4}, {}, {}, {{1, 3}, {0, 4}});
  EXPECT_EQ(strategy.priorities(), (std::vector<Priority>{{0, 3}}));
  EXPECT_THROW(Strategy::Create(graph, {}, {0, 1, 2, 3, 4}, {}, {}, {{5, 0}}),
               std::invalid_argument);
  EXPECT_THROW(Strategy::Create(graph, {}, {0, 1, 2, 3, 4}, {}, {}, {{0, -1}}),
               std::invalid_argument);
  EXPECT_THROW(Strategy::Create(graph, {}, {0, 1, 2, 3, 4}, {}, {}, {{0, 5}}),
               std::invalid_argument);
}

}  // namespace
}  // namespace disco_fuse
