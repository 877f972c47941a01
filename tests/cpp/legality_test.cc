#include "strategy/legality.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "edit_reasons.h"
#include "strategy/edit.h"
#include "test_graphs.h"

namespace disco_fuse {
namespace {

using Ops = std::vector<int32_t>;

std::string RuleOf(const OpGraph& graph, const std::vector<Edit>& edits,
                   const FusionLimits& limits = {}) {
  return Rule(ReasonOf(graph, edits, limits));
}

constexpr EditKind kFuse = EditKind::kFuse;
constexpr EditKind kDuplicate = EditKind::kFuseDuplicate;
constexpr EditKind kMerge = EditKind::kMergeBuckets;

TEST(Legality, LibraryCallsAndCollectivesAreNotFused) {
  GraphBuilder builder;
  int32_t a = builder.Elemwise({});
  int32_t lib = builder.Library({a});
  int32_t b = builder.Elemwise({lib});
  int32_t reduced = builder.AllReduce(b);
  int32_t c = builder.Elemwise({reduced});
  OpGraph graph = builder.Build();
  EXPECT_EQ(RuleOf(graph, {{kFuse, a, lib}}), "kind");
  EXPECT_EQ(RuleOf(graph, {{kFuse, lib, b}}), "kind");
  EXPECT_EQ(RuleOf(graph, {{kFuse, b, reduced}}), "kind");
  EXPECT_EQ(RuleOf(graph, {{kFuse, reduced, c}}), "kind");
  EXPECT_EQ(RuleOf(graph, {{kDuplicate, a, lib}}), "kind");
  EXPECT_EQ(CheckKind(graph, Ops{a, lib}).reason(),
            "kind: op 1 ('op1') is a library call and cannot be part of a kernel");
  EXPECT_TRUE(CheckKind(graph, Ops{a, b, c}).allowed());
}

TEST(Legality, OpaqueAndTupleOpsStayAlone) {
  GraphBuilder builder;
  int32_t a = builder.Elemwise({});
  int32_t opaque = builder.Add(OpKind::kCompute, OpPattern::kOpaque, {a});
  int32_t tuple = builder.Add(OpKind::kCompute, OpPattern::kTuple, {a});
  OpGraph graph = builder.Build();
  EXPECT_EQ(RuleOf(graph, {{kFuse, a, opaque}}), "pattern");
  EXPECT_EQ(RuleOf(graph, {{kFuse, a, tuple}}), "pattern");
  EXPECT_EQ(RuleOf(graph, {{kDuplicate, a, opaque}}), "pattern");
}

TEST(Legality, OnlyProducersAreFused) {
  GraphBuilder builder;
  int32_t a = builder.Elemwise({});
  int32_t b = builder.Elemwise({});
  int32_t c = builder.Elemwise({a, b});
  OpGraph graph = builder.Build();
  EXPECT_EQ(RuleOf(graph, {{kFuse, a, b}}), "relation");
  EXPECT_EQ(RuleOf(graph, {{kFuse, a, 9}}), "relation");
  EXPECT_EQ(RuleOf(graph, {{kFuse, a, c}, {kFuse, a, c}}), "relation");
  EXPECT_EQ(RuleOf(graph, {{kFuse, a, c}, {kDuplicate, a, c}}), "relation");
}

TEST(Legality, FusionMakesNoCycle) {
  GraphBuilder builder;
  int32_t a = builder.Elemwise({});
  int32_t lib = builder.Library({a});
  int32_t b = builder.Elemwise({a, lib});
  OpGraph graph = builder.Build();
  EXPECT_EQ(RuleOf(graph, {{kFuse, a, b}}), "cycle");
  EXPECT_EQ(RuleOf(graph, {{kDuplicate, a, b}}), "allowed");
}

TEST(Legality, FusionMakesNoCycleThroughOtherGroups) {
  // Fusing a with c and b with d alone is fine; together the groups need each other.
  GraphBuilder builder;
  int32_t a = builder.Elemwise({});
  int32_t b = builder.Elemwise({});
  int32_t c = builder.Elemwise({a, b});
  int32_t d = builder.Elemwise({a, b});
  OpGraph graph = builder.Build();
  EXPECT_EQ(RuleOf(graph, {{kFuse, a, c}}), "allowed");
  EXPECT_EQ(RuleOf(graph, {{kFuse, b, d}}), "allowed");
  EXPECT_EQ(RuleOf(graph, {{kFuse, a, c}, {kFuse, b, d}}), "cycle");
}

TEST(Legality, OrderOnlyEdgesMakeCyclesToo) {
  // reader -> lib -> sink, and writer overwrites what reader reads; source feeds both.
  GraphBuilder builder;
  int32_t source = builder.Elemwise({});
  int32_t reader = builder.Library({});
  int32_t writer = builder.Elemwise({source});
  int32_t late = builder.Elemwise({source, reader});
  builder.Before(reader, writer);
  OpGraph graph = builder.Build();
  EXPECT_EQ(RuleOf(graph, {{kFuse, source, writer}}), "allowed");
  int32_t lib = builder.Library({source});
  builder.Before(lib, builder.Elemwise({source, late}));
  OpGraph cyclic = builder.Build();
  EXPECT_EQ(RuleOf(cyclic, {{kFuse, source, lib + 1}}), "cycle");
}

TEST(Legality, CopiesRunBeforeTheirInputIsOverwritten) {
  // The copy of reader would sit behind writer, which overwrites what it reads.
  GraphBuilder builder;
  int32_t reader = builder.Elemwise({});
  int32_t first = builder.Elemwise({reader});
  int32_t writer = builder.Library({first});
  int32_t second = builder.Elemwise({reader, writer});
  builder.Before(reader, writer);
  EXPECT_EQ(RuleOf(builder.Build(), {{kDuplicate, reader, second}}), "cycle");
  EXPECT_EQ(RuleOf(builder.Build(), {{kDuplicate, reader, first}}), "allowed");
}

TEST(Legality, GroupsAreCapped) {
  GraphBuilder builder;
  int32_t a = builder.Elemwise({});
  int32_t b = builder.Elemwise({a});
  int32_t c = builder.Elemwise({b});
  OpGraph graph = builder.Build();
  FusionLimits limits;
  limits.max_group_ops = 2;
  EXPECT_EQ(RuleOf(graph, {{kFuse, a, b}}, limits), "allowed");
  EXPECT_EQ(RuleOf(graph, {{kFuse, a, b}, {kFuse, b, c}}, limits), "size");
  EXPECT_EQ(RuleOf(graph, {{kFuse, a, b}, {kDuplicate, b, c}}, limits), "size");
}

TEST(Legality, ArgumentsAreCapped) {
  GraphBuilder builder;
  int32_t a = builder.Elemwise({});
  int32_t b = builder.Elemwise({a});
  builder.Read(a, 0);
  builder.Read(b, 0);
  builder.Read(b, 1);
  OpGraph graph = builder.Build();
  FusionLimits limits;
  limits.max_group_args = 3;  // values 0 and 1, output b
  EXPECT_EQ(RuleOf(graph, {{kFuse, a, b}}, limits), "allowed");
  limits.max_group_args = 2;
  EXPECT_EQ(RuleOf(graph, {{kFuse, a, b}}, limits), "arguments");
  EXPECT_EQ(CheckArguments(graph, limits, Ops{a, b}, 1).reason(),
            "arguments: the group of op 0 ('op0') has 2 inputs and 1 outputs, allowed are 2 "
            "together");
}

TEST(Legality, ExpensiveProducersAndOutputsAreNotDuplicated) {
  GraphBuilder builder;
  int32_t sum = builder.Reduce({});
  int32_t a = builder.Elemwise({sum});
  int32_t b = builder.Elemwise({a});
  int32_t c = builder.Elemwise({a, b});
  builder.op(a).is_output = true;
  OpGraph graph = builder.Build();
  EXPECT_EQ(RuleOf(graph, {{kDuplicate, sum, a}}), "duplicate");
  EXPECT_EQ(RuleOf(graph, {{kDuplicate, a, b}}), "duplicate");
  EXPECT_EQ(RuleOf(graph, {{kDuplicate, b, c}}), "allowed");
  builder.op(a).is_output = false;
  // With a cheap op everything that it needs from its own group is duplicated.
  EXPECT_EQ(RuleOf(builder.Build(), {{kFuse, sum, a}, {kDuplicate, a, c}}), "duplicate");
}

TEST(Legality, ParametersAreNoOps) {
  // A parameter is a value that ops read; no edit can name it as a producer.
  GraphBuilder builder;
  int32_t a = builder.Elemwise({});
  builder.Read(a, 0);
  builder.Read(builder.Elemwise({}), 0);
  OpGraph graph = builder.Build();
  EXPECT_EQ(RuleOf(graph, {{kFuse, 0, 1}}), "relation");
  EXPECT_EQ(RuleOf(graph, {{kDuplicate, 0, 1}}), "relation");
  EXPECT_EQ(RuleOf(graph, {{kFuse, 2, 1}}), "relation");
}

TEST(Legality, DuplicationIsCappedOverAllGroups) {
  // A chain of 4 that is copied into one reader after the other: 3 times 4 copies are too many.
  GraphBuilder builder;
  int32_t end = builder.Elemwise({});
  for (int i = 0; i < 3; ++i) end = builder.Elemwise({end});
  std::vector<int32_t> readers;
  for (int i = 0; i < 3; ++i) readers.push_back(builder.Elemwise({end}));
  builder.Library({end});
  OpGraph graph = builder.Build();
  std::vector<Edit> edits{{kFuse, 0, 1},
                          {kFuse, 1, 2},
                          {kFuse, 2, 3},
                          {kDuplicate, end, readers[0]},
                          {kDuplicate, end, readers[1]}};
  EXPECT_EQ(RuleOf(graph, edits), "allowed");
  edits.push_back({kDuplicate, end, readers[2]});
  EXPECT_EQ(RuleOf(graph, edits), "duplication");
}

TEST(Legality, DuplicationIsCapped) {
  GraphBuilder builder;
  builder.Elemwise({});
  builder.Elemwise({0});
  OpGraph graph = builder.Build();
  EXPECT_TRUE(CheckDuplication(graph, 2).allowed());
  EXPECT_EQ(Rule(CheckDuplication(graph, 3).reason()), "duplication");
}

TEST(Legality, DonationNeedsAnElementwiseReader) {
  auto rule = [](OpPattern pattern, int64_t num_elements) {
    GraphBuilder builder;
    int32_t reader = builder.Add(OpKind::kCompute, pattern, {});
    builder.op(reader).num_elements = num_elements;
    int32_t writer = builder.Elemwise({reader});
    builder.Before(reader, writer);
    return RuleOf(builder.Build(), {{kFuse, reader, writer}});
  };
  EXPECT_EQ(rule(OpPattern::kElemwise, 100), "allowed");
  EXPECT_EQ(rule(OpPattern::kBroadcast, 100), "allowed");
  EXPECT_EQ(rule(OpPattern::kInjective, 100), "donation");
  EXPECT_EQ(rule(OpPattern::kCommReduce, 100), "donation");
  EXPECT_EQ(rule(OpPattern::kElemwise, 99), "donation");
}

TEST(Legality, DonationNeedsEveryUseBeforeTheWrite) {
  GraphBuilder builder;
  int32_t reader = builder.Elemwise({});
  int32_t between = builder.Elemwise({reader});
  int32_t writer = builder.Elemwise({between});
  int32_t behind = builder.Elemwise({writer});
  int32_t beside = builder.Elemwise({between});
  builder.Before(reader, writer);
  OpGraph graph = builder.Build();
  EXPECT_TRUE(CheckDonation(graph, Ops{reader, between, writer}).allowed());
  EXPECT_TRUE(CheckDonation(graph, Ops{reader, between, writer, behind}).allowed());
  EXPECT_EQ(CheckDonation(graph, Ops{reader, between, writer, beside}).reason(),
            "donation: op 2 ('op2') overwrites in place what op 0 ('op0') reads, and op 4 ('op4') "
            "would use the read value after it");
}

TEST(Legality, BucketsAreOfOneMergeClass) {
  GraphBuilder builder;
  int32_t g = builder.Elemwise({});
  int32_t a = builder.AllReduce(g);
  int32_t b = builder.AllReduce(g);
  builder.op(b).merge_class = "avg/float16";
  EXPECT_EQ(RuleOf(builder.Build(), {{kMerge, a, b}}), "merge class");
  EXPECT_EQ(RuleOf(builder.Build(), {{kMerge, g, b}}), "merge class");
  builder.op(b).merge_class = builder.op(a).merge_class;
  EXPECT_EQ(RuleOf(builder.Build(), {{kMerge, a, b}}), "allowed");
  EXPECT_EQ(RuleOf(builder.Build(), {{kMerge, a, b}, {kMerge, a, b}}), "relation");
  builder.op(b).collective = "allgather";
  EXPECT_EQ(RuleOf(builder.Build(), {{kMerge, a, b}}), "merge class");
}

TEST(Legality, BucketsAgreeInReductionTypeAndRanks) {
  for (const char* other : {"sum/float32/world", "avg/float16/world", "avg/float32/pair"}) {
    SCOPED_TRACE(other);
    GraphBuilder builder;
    int32_t g = builder.Elemwise({});
    int32_t a = builder.AllReduce(g);
    int32_t b = builder.AllReduce(g);
    int32_t c = builder.AllReduce(g);
    for (int32_t op : {a, b, c}) builder.op(op).merge_class = "avg/float32/world";
    builder.op(c).merge_class = other;
    EXPECT_EQ(RuleOf(builder.Build(), {{kMerge, a, b}}), "allowed");
    EXPECT_EQ(RuleOf(builder.Build(), {{kMerge, a, c}}), "merge class");
    EXPECT_EQ(RuleOf(builder.Build(), {{kMerge, a, b}, {EditKind::kMoveGradient, a, c}}),
              "merge class");
  }
}

TEST(Legality, BucketsDoNotReachEachOther) {
  GraphBuilder builder;
  int32_t g = builder.Elemwise({});
  int32_t a = builder.AllReduce(g);
  int32_t update = builder.Elemwise({a});
  int32_t b = builder.AllReduce(update);
  FusionLimits limits;
  limits.bucket_neighbours = BucketNeighbours::kProductionOrder;
  EXPECT_EQ(RuleOf(builder.Build(), {{kMerge, a, b}}, limits), "cycle");
}

TEST(Legality, OnlyNeighbouringBucketsAreMerged) {
  GraphBuilder builder;
  std::vector<int32_t> gradients, collectives;
  for (int i = 0; i < 3; ++i) gradients.push_back(builder.Library({}));
  int32_t derived = builder.Elemwise({gradients[0]});
  for (int32_t g : gradients) collectives.push_back(builder.AllReduce(g));
  int32_t last = builder.AllReduce(derived);
  OpGraph graph = builder.Build();
  FusionLimits paper;
  paper.bucket_neighbours = BucketNeighbours::kProducerConsumer;
  EXPECT_EQ(RuleOf(graph, {{kMerge, collectives[0], collectives[1]}}, paper), "neighbours");
  EXPECT_EQ(RuleOf(graph, {{kMerge, collectives[0], last}}, paper), "allowed");
  EXPECT_EQ(RuleOf(graph, {{kMerge, last, collectives[0]}}, paper), "allowed");
  FusionLimits ordered;
  ordered.bucket_neighbours = BucketNeighbours::kProductionOrder;
  EXPECT_EQ(RuleOf(graph, {{kMerge, collectives[0], collectives[1]}}, ordered), "allowed");
  EXPECT_EQ(RuleOf(graph, {{kMerge, collectives[0], collectives[2]}}, ordered), "neighbours");
  EXPECT_EQ(
      RuleOf(graph,
             {{kMerge, collectives[0], collectives[1]}, {kMerge, collectives[0], collectives[2]}},
             ordered),
      "allowed");
}

}  // namespace
}  // namespace disco_fuse
