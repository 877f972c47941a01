#include "strategy/edit.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "search/edit_sampler.h"
#include "search/rng.h"
#include "test_graphs.h"

namespace disco_fuse {
namespace {

constexpr EditKind kFuse = EditKind::kFuse;
constexpr EditKind kDuplicate = EditKind::kFuseDuplicate;

using Ids = std::vector<int32_t>;
using Copies = std::vector<Copy>;

Strategy After(const OpGraph& graph, const std::vector<Edit>& edits) {
  return Replay(graph, {}, Strategy::Unfused(graph), edits);
}

/*! \brief x is read by y and z. */
OpGraph Fork() {
  GraphBuilder builder;
  builder.Elemwise({});
  builder.Elemwise({0});
  builder.Elemwise({0});
  return builder.Build();
}

TEST(Edit, FuseUnitesGroupsUnderTheSmallestOp) {
  OpGraph graph = Fork();
  EXPECT_EQ(After(graph, {{kFuse, 0, 2}}).group_of(), (Ids{0, 1, 0}));
  EXPECT_EQ(After(graph, {{kFuse, 0, 2}, {kFuse, 0, 1}}).group_of(), (Ids{0, 0, 0}));
}

TEST(Edit, DuplicateKeepsTheHomeForOthers) {
  Strategy strategy = After(Fork(), {{kDuplicate, 0, 2}});
  EXPECT_EQ(strategy.group_of(), (Ids{0, 1, 2}));
  EXPECT_EQ(strategy.duplicated(), (Copies{{0, 2}}));
}

TEST(Edit, AHomeThatNobodyNeedsDisappears) {
  OpGraph graph = Fork();
  Strategy strategy = After(graph, {{kDuplicate, 0, 2}, {kDuplicate, 0, 1}});
  EXPECT_EQ(strategy.group_of(), (Ids{0, 0, 2}));
  EXPECT_EQ(strategy.duplicated(), (Copies{{0, 2}}));
  EXPECT_EQ(strategy.order().size(), 2u);
  // The only reader takes its producer over entirely: the same as fusing.
  GraphBuilder chain;
  chain.Elemwise({});
  chain.Elemwise({0});
  OpGraph pair = chain.Build();
  EXPECT_EQ(After(pair, {{kDuplicate, 0, 1}}), After(pair, {{kFuse, 0, 1}}));
}

TEST(Edit, EqualChoicesAreEqualWhateverLedThere) {
  OpGraph graph = Fork();
  Strategy strategy = After(graph, {{kDuplicate, 0, 1}, {kDuplicate, 0, 2}});
  EXPECT_EQ(strategy, After(graph, {{kDuplicate, 0, 2}, {kDuplicate, 0, 1}}));
  EXPECT_EQ(strategy, After(graph, {{kDuplicate, 0, 2}, {kFuse, 0, 1}}));
  EXPECT_EQ(strategy, After(graph, {{kDuplicate, 0, 1}, {kFuse, 0, 2}}));
}

TEST(Edit, AHomeThatOthersReadStays) {
  GraphBuilder builder;
  builder.Elemwise({});
  builder.Elemwise({0});
  builder.Library({0});
  builder.Elemwise({1});
  // Op 0 is also read by a library call: its home stays although op 1 has its own copy.
  Strategy strategy = After(builder.Build(), {{kDuplicate, 0, 1}, {kDuplicate, 1, 3}});
  EXPECT_EQ(strategy.group_of(), (Ids{0, 1, 2, 1}));
  EXPECT_EQ(strategy.duplicated(), (Copies{{0, 1}}));
}

TEST(Edit, DuplicateTakesWhatTheProducerNeedsFromItsGroup) {
  GraphBuilder builder;
  builder.Elemwise({});
  builder.Elemwise({0});
  builder.Elemwise({});
  builder.Elemwise({1, 2});
  builder.Library({1});
  Strategy strategy = After(builder.Build(), {{kFuse, 0, 1}, {kDuplicate, 1, 3}});
  EXPECT_EQ(strategy.group_of(), (Ids{0, 0, 2, 3, 4}));
  EXPECT_EQ(strategy.duplicated(), (Copies{{0, 3}, {1, 3}}));
}

TEST(Edit, WhatOnlyAVanishedOpNeededVanishesToo) {
  GraphBuilder builder;
  builder.Elemwise({});
  builder.Elemwise({0});
  builder.Elemwise({0, 1});
  OpGraph graph = builder.Build();
  // After two edits op 0 is at home with op 1; the third takes op 1 away and leaves nobody there.
  Strategy strategy = After(graph, {{kDuplicate, 0, 1}, {kDuplicate, 0, 2}, {kDuplicate, 1, 2}});
  EXPECT_EQ(strategy.group_of(), (Ids{0, 0, 0}));
  EXPECT_TRUE(strategy.duplicated().empty());
}

TEST(Edit, WhatOnlyACopyThatVanishedNeededVanishesToo) {
  GraphBuilder builder;
  builder.Elemwise({});
  builder.Elemwise({0});
  builder.Elemwise({1});
  builder.Library({1});
  builder.Elemwise({0, 1, 2});
  // The last edit takes op 2 away, with the copy of op 1 there: the last to read op 0 at home.
  Strategy strategy =
      After(builder.Build(),
            {{kDuplicate, 1, 2}, {kDuplicate, 0, 1}, {kDuplicate, 0, 4}, {kDuplicate, 2, 4}});
  EXPECT_EQ(strategy.group_of(), (Ids{0, 0, 2, 3, 2}));
  EXPECT_EQ(strategy.duplicated(), (Copies{{0, 2}, {1, 2}}));
}

TEST(Edit, FusingWithTheHomeAbsorbsTheCopy) {
  OpGraph graph = Fork();
  EXPECT_EQ(After(graph, {{kDuplicate, 0, 2}, {kFuse, 0, 2}}), After(graph, {{kFuse, 0, 2}}));
}

TEST(Edit, ReplayNamesTheIllegalEdit) {
  OpGraph graph = Fork();
  try {
    After(graph, {{kFuse, 0, 1}, {kFuse, 1, 2}});
    FAIL() << "no error";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(),
                 "edit 1 (fuse 1 -> 2) is illegal: relation: op 2 ('op2') does not read op 1 "
                 "('op1')");
  }
}

/*! \brief Mostly element-wise ops, some with donated inputs, collectives and library calls. */
OpGraph RandomGraph(Rng* rng) {
  GraphBuilder builder;
  int32_t num_ops = 4 + rng->Below(14);
  for (int32_t id = 0; id < num_ops; ++id) {
    std::vector<int32_t> producers;
    for (int32_t p = 0; p < id; ++p) {
      if (rng->Below(id) < 2) producers.push_back(p);
    }
    int32_t kind = rng->Below(10);
    if ((kind == 0 || kind == 4) && !producers.empty()) {
      builder.AllReduce(producers[0]);
    } else if (kind == 1) {
      builder.Library(producers);
    } else if (kind == 2) {
      builder.Reduce(producers);
    } else {
      builder.Elemwise(producers);
    }
    if (id > 0 && rng->Below(4) == 0) builder.Before(rng->Below(id), id);
    builder.op(id).is_output = rng->Below(8) == 0;
  }
  return builder.Build();
}

void ExpectTopological(const Grouping& grouping) {
  std::vector<int32_t> place(grouping.graph().num_ops(), -1);
  std::vector<int32_t> order = grouping.Order();
  for (size_t i = 0; i < order.size(); ++i) place[order[i]] = static_cast<int32_t>(i);
  for (int32_t op = 0; op < grouping.graph().num_ops(); ++op) {
    EXPECT_GE(place[grouping.home(op)], 0);
  }
  for (int32_t group : order) {
    EXPECT_EQ(grouping.home(group), group);
    grouping.ForEachPredecessor(group,
                                [&](int32_t before) { EXPECT_LT(place[before], place[group]); });
  }
}

TEST(Edit, RandomEditsKeepEveryInvariant) {
  Rng rng(11);
  FusionLimits limits;
  limits.bucket_neighbours = BucketNeighbours::kProductionOrder;
  int64_t num_applied = 0, num_copies = 0;
  std::vector<int64_t> num_of_kind(kNumEditKinds, 0);
  for (int round = 0; round < 400; ++round) {
    OpGraph graph = RandomGraph(&rng);
    EditSampler sampler(graph, limits, 8);
    Grouping grouping(graph);
    std::vector<Edit> edits;
    for (int i = 0; i < 24; ++i) {
      Edit edit;
      // Mostly the paper's kinds, so that the others find something to undo.
      int32_t drawn = rng.Below(2) == 0 ? rng.Below(3) : rng.Below(kNumEditKinds);
      EditKind kind = static_cast<EditKind>(drawn);
      if (!sampler.ApplyRandom(kind, &rng, &grouping, &edit)) continue;
      edits.push_back(edit);
      ExpectTopological(grouping);
      Strategy made = grouping.ToStrategy(grouping.Order());
      Strategy again = Strategy::Create(graph, {}, made.group_of(), made.duplicated(), made.order(),
                                        made.priorities());
      ASSERT_EQ(made, again) << "round " << round;
      // The hash that was kept up to date is that of the parts.
      ASSERT_EQ(ToHex(made.hash()), ToHex(again.hash())) << "round " << round;
      ASSERT_EQ(ToHex(made.hash()),
                ToHex(WithPriorities(HashGrouping(made.group_of(), made.duplicated()),
                                     made.priorities())));
      num_copies += static_cast<int64_t>(made.duplicated().size());
      ++num_of_kind[drawn];
    }
    num_applied += static_cast<int64_t>(edits.size());
    EXPECT_EQ(Replay(graph, limits, Strategy::Unfused(graph), edits).hash(), grouping.Hash());
  }
  EXPECT_GT(num_applied, 1500);
  EXPECT_GT(num_copies, 1500);
  for (int64_t applied : num_of_kind) EXPECT_GT(applied, 10);
}

}  // namespace
}  // namespace disco_fuse
