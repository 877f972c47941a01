#include "strategy/legality.h"

#include <algorithm>
#include <string>
#include <vector>

namespace disco_fuse {
namespace {

bool Contains(Span<int32_t> sorted, int32_t op) {
  return std::binary_search(sorted.begin(), sorted.end(), op);
}

/*! \brief Marks the members from which members[last] can be reached inside the group. */
std::vector<bool> Ancestors(const OpGraph& graph, Span<int32_t> ops, size_t last) {
  std::vector<bool> reaches(ops.size(), false);
  reaches[last] = true;
  for (size_t i = last + 1; i-- > 0;) {
    if (!reaches[i]) continue;
    for (const DataEnd& end : graph.producers(ops[i])) {
      const int32_t* it = std::lower_bound(ops.begin(), ops.end(), end.op);
      if (it != ops.end() && *it == end.op) reaches[it - ops.begin()] = true;
    }
  }
  return reaches;
}

/*!
 * \brief The first member that uses the value of members[reader] without leading to the writer.
 *
 * Uses behind the writer are fine: they see what was written, not what the reader has read.
 */
int32_t FindEscape(const OpGraph& graph, Span<int32_t> ops, size_t reader, size_t writer) {
  std::vector<bool> reaches_writer = Ancestors(graph, ops, writer);
  std::vector<bool> descends(ops.size(), false);
  descends[reader] = true;
  for (size_t i = reader + 1; i < ops.size(); ++i) {
    if (i == writer) continue;
    for (const DataEnd& end : graph.producers(ops[i])) {
      const int32_t* it = std::lower_bound(ops.begin(), ops.end(), end.op);
      if (it != ops.end() && *it == end.op && descends[it - ops.begin()]) descends[i] = true;
    }
    if (descends[i] && !reaches_writer[i]) return ops[i];
  }
  return -1;
}

FusionDecision CheckReaderAndWriter(const OpGraph& graph, Span<int32_t> ops, int32_t reader,
                                    int32_t writer) {
  auto deny = [&](const std::string& why) {
    return FusionDecision::Deny("donation: " + graph.Describe(writer) +
                                " overwrites in place what " + graph.Describe(reader) +
                                " reads, and " + why);
  };
  OpPattern pattern = graph.op(reader).pattern;
  if (pattern != OpPattern::kElemwise && pattern != OpPattern::kBroadcast) {
    return deny("the reader is not element-wise");
  }
  if (graph.op(reader).num_elements != graph.op(writer).num_elements) {
    return deny("they differ in the number of elements");
  }
  size_t writer_at = std::lower_bound(ops.begin(), ops.end(), writer) - ops.begin();
  size_t reader_at = std::lower_bound(ops.begin(), ops.end(), reader) - ops.begin();
  int32_t escape = FindEscape(graph, ops, reader_at, writer_at);
  if (escape >= 0) return deny(graph.Describe(escape) + " would use the read value after it");
  return {};
}

}  // namespace

FusionDecision CheckKind(const OpGraph& graph, Span<int32_t> ops) {
  for (int32_t op : ops) {
    if (graph.op(op).kind == OpKind::kCompute) continue;
    const char* what = graph.IsAllReduce(op) ? "a collective" : "a library call";
    return FusionDecision::Deny("kind: " + graph.Describe(op) + " is " + what +
                                " and cannot be part of a kernel");
  }
  return {};
}

FusionDecision CheckPattern(const OpGraph& graph, Span<int32_t> ops) {
  for (int32_t op : ops) {
    OpPattern pattern = graph.op(op).pattern;
    if (pattern != OpPattern::kOpaque && pattern != OpPattern::kTuple) continue;
    const char* what = pattern == OpPattern::kTuple ? "a tuple" : "opaque";
    return FusionDecision::Deny("pattern: " + graph.Describe(op) + " is " + what +
                                " and is never fused");
  }
  return {};
}

FusionDecision CheckSize(const OpGraph& graph, const FusionLimits& limits, Span<int32_t> ops) {
  if (static_cast<int64_t>(ops.size()) <= limits.max_group_ops) return {};
  return FusionDecision::Deny("size: the group of " + graph.Describe(ops[0]) + " has " +
                              std::to_string(ops.size()) + " ops, allowed are " +
                              std::to_string(limits.max_group_ops));
}

FusionDecision CheckArguments(const OpGraph& graph, const FusionLimits& limits, Span<int32_t> ops,
                              int32_t num_outputs) {
  // Ops and external values are numbered independently: even keys are ops, odd keys values.
  std::vector<int64_t> inputs;
  for (int32_t op : ops) {
    for (const DataEnd& end : graph.producers(op)) {
      if (!Contains(ops, end.op)) inputs.push_back(2 * static_cast<int64_t>(end.op));
    }
    for (const ValueRead& read : graph.external_reads(op)) {
      inputs.push_back(2 * static_cast<int64_t>(read.value) + 1);
    }
  }
  // Distinct inputs are counted only if the upper bound does not already settle it.
  if (static_cast<int64_t>(inputs.size()) + num_outputs <= limits.max_group_args) return {};
  std::sort(inputs.begin(), inputs.end());
  int64_t num_inputs = std::unique(inputs.begin(), inputs.end()) - inputs.begin();
  if (num_inputs + num_outputs <= limits.max_group_args) return {};
  return FusionDecision::Deny("arguments: the group of " + graph.Describe(ops[0]) + " has " +
                              std::to_string(num_inputs) + " inputs and " +
                              std::to_string(num_outputs) + " outputs, allowed are " +
                              std::to_string(limits.max_group_args) + " together");
}

FusionDecision CheckDuplicable(const OpGraph& graph, int32_t op) {
  if (graph.op(op).pattern >= OpPattern::kCommReduce) {
    return FusionDecision::Deny("duplicate: " + graph.Describe(op) +
                                " is too expensive to be computed twice");
  }
  if (graph.op(op).is_output || !graph.order_before(op).empty()) {
    // Its buffer may be a donated one, which a copy running later would read after the overwrite.
    return FusionDecision::Deny("duplicate: " + graph.Describe(op) +
                                " is an output and may overwrite a donated buffer");
  }
  return {};
}

FusionDecision CheckDuplication(const OpGraph& graph, int32_t num_copies) {
  if (num_copies <= graph.num_ops()) return {};
  return FusionDecision::Deny("duplication: " + std::to_string(num_copies) +
                              " ops would be computed again, allowed are " +
                              std::to_string(graph.num_ops()));
}

FusionDecision CheckDonation(const OpGraph& graph, Span<int32_t> ops) {
  for (int32_t writer : ops) {
    for (int32_t reader : graph.order_before(writer)) {
      if (!Contains(ops, reader)) continue;
      FusionDecision decision = CheckReaderAndWriter(graph, ops, reader, writer);
      if (!decision.allowed()) return decision;
    }
  }
  return {};
}

FusionDecision CheckMergeClass(const OpGraph& graph, int32_t a, int32_t b) {
  for (int32_t op : {a, b}) {
    if (!graph.IsAllReduce(op)) {
      return FusionDecision::Deny("merge class: " + graph.Describe(op) + " is no collective");
    }
  }
  const Op& x = graph.op(a);
  const Op& y = graph.op(b);
  if (x.merge_class == y.merge_class && x.collective == y.collective) return {};
  return FusionDecision::Deny("merge class: " + graph.Describe(a) + " is '" + x.collective + " " +
                              x.merge_class + "', " + graph.Describe(b) + " is '" + y.collective +
                              " " + y.merge_class + "'");
}

FusionDecision CheckGroup(const OpGraph& graph, const FusionLimits& limits, Span<int32_t> ops,
                          int32_t num_outputs) {
  FusionDecision decision = CheckKind(graph, ops);
  if (decision.allowed()) decision = CheckPattern(graph, ops);
  if (decision.allowed()) decision = CheckSize(graph, limits, ops);
  if (decision.allowed()) decision = CheckArguments(graph, limits, ops, num_outputs);
  if (decision.allowed()) decision = CheckDonation(graph, ops);
  return decision;
}

}  // namespace disco_fuse
