#include "strategy/edit.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

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

}  // namespace
}  // namespace disco_fuse
