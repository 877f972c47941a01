#include "graph/op_graph.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "test_graphs.h"

namespace disco_fuse {
namespace {

std::string ErrorOf(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(OpGraph, IndexesProducersConsumersAndReads) {
  GraphBuilder builder;
  int32_t a = builder.Elemwise({});
  int32_t b = builder.Elemwise({a});
  int32_t c = builder.Elemwise({a, b});
  builder.Before(a, c);
  builder.Read(b, 7);
  OpGraph graph = builder.Build();
  ASSERT_EQ(graph.producers(c).size(), 2u);
  EXPECT_EQ(graph.producers(c)[0].op, a);
  EXPECT_EQ(graph.producers(c)[1].op, b);
  EXPECT_EQ(graph.producers(c)[1].bytes, 400);
  ASSERT_EQ(graph.consumers(a).size(), 2u);
  EXPECT_EQ(graph.consumers(a)[1].op, c);
  ASSERT_EQ(graph.order_before(c).size(), 1u);
  EXPECT_EQ(graph.order_before(c)[0], a);
  EXPECT_EQ(graph.order_after(a)[0], c);
  EXPECT_EQ(graph.external_reads(b)[0].value, 7);
  EXPECT_TRUE(graph.MustWrite(c));
  EXPECT_FALSE(graph.MustWrite(a));
}

TEST(OpGraph, OrdersCollectivesByProduction) {
  GraphBuilder builder;
  int32_t a = builder.Elemwise({});
  int32_t b = builder.Elemwise({});
  int32_t second = builder.AllReduce(b);
  int32_t first = builder.AllReduce(a);
  EXPECT_EQ(builder.Build().allreduce_ops(), (std::vector<int32_t>{first, second}));
}

TEST(OpGraph, ErrorsNameOpAndField) {
  auto with = [](const std::function<void(Op*)>& spoil) {
    return ErrorOf([&] {
      GraphBuilder builder;
      builder.Elemwise({});
      spoil(&builder.op(builder.Elemwise({0})));
      builder.Build();
    });
  };
  EXPECT_EQ(with([](Op* op) { op->flops = std::nan(""); }),
            "op 1 ('op1'): flops must be finite and >= 0, got nan");
  EXPECT_EQ(with([](Op* op) { op->rows = -1; }), "op 1 ('op1'): rows must be >= 0, got -1");
  EXPECT_EQ(with([](Op* op) { op->num_elements = -5; }),
            "op 1 ('op1'): num_elements must be >= 0, got -5");
  EXPECT_EQ(with([](Op* op) { op->bytes_read = -5; }),
            "op 1 ('op1'): bytes_read must be >= 0, got -5");
  EXPECT_EQ(with([](Op* op) { op->bytes_written = -5; }),
            "op 1 ('op1'): bytes_written must be >= 0, got -5");
  EXPECT_NE(with([](Op* op) { op->pattern = static_cast<OpPattern>(5); }).find("pattern"),
            std::string::npos);
  EXPECT_NE(with([](Op* op) { op->kind = static_cast<OpKind>(3); }).find("kind"),
            std::string::npos);
}

TEST(OpGraph, RejectsBadEdgesAndReads) {
  std::vector<Op> ops(2);
  auto edge = [&](Edge e) { return ErrorOf([&] { OpGraph::Create(ops, {e}, {}); }); };
  EXPECT_EQ(edge({1, 0, 4, false}),
            "edge 0 (1 -> 0): consumer must be larger than producer, because op ids are "
            "topological");
  EXPECT_EQ(edge({0, 2, 4, false}), "edge 0 (0 -> 2): consumer must be in [0, 2)");
  EXPECT_EQ(edge({-1, 1, 4, false}), "edge 0 (-1 -> 1): producer must be in [0, 2)");
  EXPECT_EQ(edge({0, 1, -4, false}), "edge 0 (0 -> 1): bytes must be >= 0, got -4");
  EXPECT_EQ(edge({0, 1, 4, true}), "edge 0 (0 -> 1): bytes of an order_only edge must be 0, got 4");
  EXPECT_NE(ErrorOf([&] {
              OpGraph::Create(ops, {{0, 1, 4, false}, {0, 1, 8, false}}, {});
            }).find("given twice"),
            std::string::npos);
  auto read = [&](ExternalRead r) { return ErrorOf([&] { OpGraph::Create(ops, {}, {r}); }); };
  EXPECT_EQ(read({5, 0, 4}), "external read 0: op must be in [0, 2), got 5");
  EXPECT_NE(read({0, -1, 4}).find("value"), std::string::npos);
  EXPECT_NE(read({0, 0, -1}).find("bytes"), std::string::npos);
  ops[1].kind = OpKind::kAllReduce;
  EXPECT_NE(ErrorOf([&] { OpGraph::Create(ops, {}, {}); }).find("sends a gradient"),
            std::string::npos);
}

TEST(OpGraph, DigestCoversEveryField) {
  std::vector<std::function<void(Op*)>> changes = {
      [](Op* op) { op->name = "x"; },
      [](Op* op) { op->kind = OpKind::kLibrary; },
      [](Op* op) { op->pattern = OpPattern::kBroadcast; },
      [](Op* op) { op->flops = 5; },
      [](Op* op) { op->num_elements = 5; },
      [](Op* op) { op->rows = 5; },
      [](Op* op) { op->bytes_read = 5; },
      [](Op* op) { op->bytes_written = 5; },
      [](Op* op) { op->signature = "x"; },
      [](Op* op) { op->is_output = true; },
      [](Op* op) { op->collective = "x"; },
      [](Op* op) { op->merge_class = "x"; },
  };
  std::vector<Op> ops(2);
  std::vector<std::string> digests = {ToHex(OpGraph::Create(ops, {{0, 1, 4, false}}, {}).digest()),
                                      ToHex(OpGraph::Create(ops, {{0, 1, 5, false}}, {}).digest()),
                                      ToHex(OpGraph::Create(ops, {{0, 1, 0, true}}, {}).digest()),
                                      ToHex(OpGraph::Create(ops, {}, {{0, 0, 4}}).digest()),
                                      ToHex(OpGraph::Create(ops, {}, {}).digest())};
  for (const auto& change : changes) {
    std::vector<Op> changed = ops;
    change(&changed[0]);
    digests.push_back(ToHex(OpGraph::Create(changed, {{0, 1, 4, false}}, {}).digest()));
  }
  for (size_t i = 0; i < digests.size(); ++i) {
    EXPECT_EQ(digests[i].size(), 32u);
    for (size_t j = 0; j < i; ++j) EXPECT_NE(digests[i], digests[j]) << i << " and " << j;
  }
}

TEST(OpGraph, DigestIsStable) {
  // A recorded value: the digest is part of plans, which move between machines.
  GraphBuilder builder;
  builder.Reduce({builder.Elemwise({})});
  EXPECT_EQ(ToHex(builder.Build().digest()), "defb10087b998ee2d50f13e8e7d47592");
  std::vector<Op> ops(3);
  EXPECT_EQ(OpGraph::Create(ops, {{0, 1, 4, false}, {0, 2, 4, false}}, {}).digest(),
            OpGraph::Create(ops, {{0, 2, 4, false}, {0, 1, 4, false}}, {}).digest());
}

}  // namespace
}  // namespace disco_fuse
