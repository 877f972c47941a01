#ifndef DISCO_FUSE_TESTS_CPP_TEST_GRAPHS_H_
#define DISCO_FUSE_TESTS_CPP_TEST_GRAPHS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cost/callback_cost_model.h"
#include "graph/op_graph.h"

namespace disco_fuse {

/*! \brief Builds small graphs op by op; every value has 100 elements of 4 bytes in 10 rows. */
class GraphBuilder {
 public:
  int32_t Add(OpKind kind, OpPattern pattern, const std::vector<int32_t>& producers) {
    int32_t id = static_cast<int32_t>(ops_.size());
    Op op;
    op.name = "op" + std::to_string(id);
    op.kind = kind;
    op.pattern = pattern;
    op.num_elements = 100;
    op.flops = 100;
    op.rows = 10;
    op.bytes_read = 400 * static_cast<int64_t>(producers.size());
    op.bytes_written = 400;
    if (kind == OpKind::kAllReduce) op.merge_class = "avg";
    ops_.push_back(op);
    for (int32_t producer : producers) edges_.push_back({producer, id, 400, false});
    return id;
  }
  int32_t Elemwise(const std::vector<int32_t>& producers) {
    return Add(OpKind::kCompute, OpPattern::kElemwise, producers);
  }
  int32_t Reduce(const std::vector<int32_t>& producers) {
    return Add(OpKind::kCompute, OpPattern::kCommReduce, producers);
  }
  int32_t Library(const std::vector<int32_t>& producers) {
    return Add(OpKind::kLibrary, OpPattern::kOutElemwiseFusable, producers);
  }
  int32_t AllReduce(int32_t gradient) {
    return Add(OpKind::kAllReduce, OpPattern::kOpaque, {gradient});
  }
  void Before(int32_t reader, int32_t writer) { edges_.push_back({reader, writer, 0, true}); }
  void Read(int32_t op, int32_t value) {
    reads_.push_back({op, value, 400});
    ops_[op].bytes_read += 400;
  }
  Op& op(int32_t id) { return ops_[id]; }
  OpGraph Build() const { return OpGraph::Create(ops_, edges_, reads_); }

 private:
  std::vector<Op> ops_;
  std::vector<Edge> edges_;
  std::vector<ExternalRead> reads_;
};

/*! \brief Every kernel takes 10 us, plus 1 us for each member beyond the first. */
inline CallbackCostModel CountingModel() {
  return CallbackCostModel("counting", [](const OpGraph&, const std::vector<Group>& groups) {
    std::vector<double> times_us;
    for (const Group& group : groups)
      times_us.push_back(9.0 + static_cast<double>(group.ops.size()));
    return times_us;
  });
}

}  // namespace disco_fuse

#endif  // DISCO_FUSE_TESTS_CPP_TEST_GRAPHS_H_
