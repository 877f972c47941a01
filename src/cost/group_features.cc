#include "cost/group_features.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <string_view>

namespace disco_fuse {
namespace {

constexpr std::array<OpPattern, 7> kPatterns = {
    OpPattern::kElemwise,           OpPattern::kBroadcast, OpPattern::kInjective,
    OpPattern::kCommReduce,         OpPattern::kTuple,     OpPattern::kOpaque,
    OpPattern::kOutElemwiseFusable,
};
constexpr std::array<const char*, 7> kPatternNames = {
    "elemwise", "broadcast", "injective", "reduce", "tuple", "opaque", "out_fusable"};
constexpr std::array<const char*, 6> kClasses = {"matmul",      "convolution", "reduction",
                                                 "elementwise", "movement",    "other"};
/*! \brief Operators as TVM's topi names their kernels; all others share the last place. */
constexpr std::array<std::string_view, 42> kTypes = {"abs",
                                                     "add",
                                                     "broadcast_to",
                                                     "cast",
                                                     "concatenate",
                                                     "divide",
                                                     "equal",
                                                     "erf",
                                                     "exp",
                                                     "floor_mod",
                                                     "full",
                                                     "gelu",
                                                     "greater",
                                                     "greater_equal",
                                                     "less",
                                                     "less_equal",
                                                     "log",
                                                     "log_softmax",
                                                     "logical_and",
                                                     "logical_not",
                                                     "max",
                                                     "max_pool2d",
                                                     "max_pool2d_backward",
                                                     "maximum",
                                                     "mean",
                                                     "minimum",
                                                     "multiply",
                                                     "negative",
                                                     "not_equal",
                                                     "power",
                                                     "relu",
                                                     "rsqrt",
                                                     "sigmoid",
                                                     "softmax",
                                                     "sqrt",
                                                     "strided_slice",
                                                     "subtract",
                                                     "sum",
                                                     "tanh",
                                                     "transpose",
                                                     "where",
                                                     "other"};
constexpr double kLeastUs = 1e-3; /*!< a clock does not tell shorter times apart */

float LogUs(double us) { return static_cast<float>(std::log(std::max(us, kLeastUs))); }
float Log1(double count) { return static_cast<float>(std::log1p(std::max(count, 0.0))); }

size_t PatternIndex(const Op& op) {
  return static_cast<size_t>(std::find(kPatterns.begin(), kPatterns.end(), op.pattern) -
                             kPatterns.begin());
}

/*! \brief Classes of a later release count as "other", the last one. */
size_t ClassIndex(const Op& op) {
  size_t index = 0;
  while (index + 1 < kClasses.size() && op.op_class != kClasses[index]) ++index;
  return index;
}

/*! \brief "lv3:tir_multiply12" is a multiply: the kernel's name without the numbers of copies. */
size_t TypeIndex(const Op& op) {
  std::string_view name = op.name;
  name.remove_prefix(name.rfind(':') + 1);  // npos + 1 is 0
  constexpr std::string_view kPrefix = "tir_";
  if (name.substr(0, kPrefix.size()) == kPrefix) name.remove_prefix(kPrefix.size());
  while (!name.empty() && std::isdigit(static_cast<unsigned char>(name.back()))) {
    name.remove_suffix(1);
  }
  size_t index = 0;
  while (index + 1 < kTypes.size() && kTypes[index] != name) ++index;
  return index;
}

std::vector<std::string> WithKinds(std::vector<std::string> names, const std::string& pattern,
                                   const std::string& op_class, const std::string& type) {
  for (const char* name : kPatternNames) names.push_back(pattern + name);
  for (const char* name : kClasses) names.push_back(op_class + name);
  for (std::string_view name : kTypes) names.push_back(type + std::string(name));
  return names;
}

}  // namespace

const std::vector<std::string>& NodeFeatureNames() {
  static const std::vector<std::string> names = WithKinds(
      {"log_time", "log_bytes_read", "log_bytes_written", "log_flops", "log_elements", "log_rows",
       "log_flops_per_element", "log_bytes_inside", "log_bytes_outside", "log_bytes_per_row",
       "is_output", "is_inlined", "log_computed", "num_producers", "num_consumers", "cut_edges"},
      "pattern_", "class_", "type_");
  return names;
}

const std::vector<std::string>& GlobalFeatureNames() {
  static const std::vector<std::string> names =
      WithKinds({"log_roofline", "log_sum_time",     "log_max_time",      "log_recomputed_time",
                 "log_bytes_in", "log_bytes_out",    "log_bytes_between", "log_bytes_kept",
                 "log_flops",    "log_members",      "log_nests",         "log_outputs",
                 "log_inlined",  "log_computed",     "log_max_elements",  "log_min_elements",
                 "log_max_rows", "num_without_rows", "num_values_in",     "num_cut_edges"},
                "num_", "log_time_", "num_type_");
  return names;
}

/*! \brief What one member reads. */
struct FeatureReader::Traffic {
  double inside = 0;      /*!< bytes made by other members */
  double outside = 0;     /*!< other bytes */
  double new_outside = 0; /*!< those of values that no earlier member has read */
  int32_t producers = 0;
  int32_t cut_edges = 0;
};

/*! \brief Sums over members. */
struct FeatureReader::Totals {
  double time_us = 0;
  double max_time_us = 0;
  double recomputed_us = 0;
  double bytes_in = 0;
  double bytes_out = 0;
  double bytes_between = 0; /*!< written by one nest and read by another */
  double bytes_kept = 0;    /*!< buffered inside a nest */
  double flops = 0;
  double computed = 0;
  double inlined = 0;
  double max_elements = 0;
  double min_elements = 0;
  double max_rows = 0;
  double without_rows = 0;
  double cut_edges = 0;
  std::array<double, kPatterns.size()> patterns{};
  std::array<double, kClasses.size()> class_us{};
  std::array<double, kTypes.size()> types{};
};

void FeatureReader::CountComputations(int32_t size) {
  num_computed_.assign(size, 0);
  for (int32_t member = 0; member < size; ++member) {
    if (nests_.inlined(member)) continue;
    ++num_computed_[member];
    for (int32_t inner : nests_.cone(member)) ++num_computed_[inner];
  }
}

FeatureReader::Traffic FeatureReader::TrafficOf(const OpGraph& graph, int32_t op) {
  Traffic traffic;
  // Ops outside the group and external values share one list: ops as they are, values below zero.
  auto read_outside = [&](int64_t value, int64_t bytes) {
    traffic.outside += static_cast<double>(bytes);
    if (std::find(external_.begin(), external_.end(), value) != external_.end()) return;
    external_.push_back(value);
    traffic.new_outside += static_cast<double>(bytes);
  };
  for (const DataEnd& end : graph.producers(op)) {
    if (nests_.IndexOf(end.op) < 0) {
      read_outside(end.op, end.bytes);
      continue;
    }
    traffic.inside += static_cast<double>(end.bytes);
    ++traffic.producers;
    traffic.cut_edges += end.keeps_rows ? 0 : 1;
  }
  for (const ValueRead& read : graph.external_reads(op)) {
    read_outside(-1 - static_cast<int64_t>(read.value), read.bytes);
  }
  return traffic;
}

void FeatureReader::AddNode(const OpGraph& graph, int32_t member, int32_t op, double time_us,
                            const Traffic& traffic, GroupFeatures* features) {
  const Op& item = graph.op(op);
  double elements = static_cast<double>(item.num_elements);
  double rows = static_cast<double>(item.rows), read = static_cast<double>(item.bytes_read);
  int32_t consumers = 0;
  for (const DataEnd& end : graph.consumers(op)) {
    int32_t after = nests_.IndexOf(end.op);
    if (after < 0) continue;
    ++consumers;
    features->producer.push_back(member);
    features->consumer.push_back(after);
  }
  std::vector<float>& nodes = features->nodes;
  nodes.insert(
      nodes.end(),
      {LogUs(time_us), Log1(read), Log1(static_cast<double>(item.bytes_written)), Log1(item.flops),
       Log1(elements), Log1(rows), Log1(item.flops / std::max(elements, 1.0)), Log1(traffic.inside),
       Log1(traffic.outside), Log1(read / std::max(rows, 1.0)),
       nests_.is_output(member) ? 1.0F : 0.0F, nests_.inlined(member) ? 1.0F : 0.0F,
       Log1(num_computed_[member]), static_cast<float>(traffic.producers),
       static_cast<float>(consumers), static_cast<float>(traffic.cut_edges)});
  size_t kinds = nodes.size();
  size_t classes = kinds + kPatterns.size(), types = classes + kClasses.size();
  nodes.resize(types + kTypes.size(), 0.0F);
  size_t pattern = PatternIndex(item);
  if (pattern < kPatterns.size()) nodes[kinds + pattern] = 1.0F;
  nodes[classes + ClassIndex(item)] = 1.0F;
  nodes[types + TypeIndex(item)] = 1.0F;
}

void FeatureReader::AddNests(const OpGraph& graph, const Group& group, Totals* totals) {
  nest_elements_.assign(nests_.num_nests(), 0.0);
  for (size_t member = 0; member < group.ops.size(); ++member) {
    int32_t index = static_cast<int32_t>(member);
    const Op& op = graph.op(group.ops[member]);
    if (nests_.inlined(index)) {
      totals->inlined += 1;
      continue;
    }
    double& elements = nest_elements_[nests_.nest(index)];
    // A reduction walks over what it reads; four bytes stand for an element of any type.
    double read = static_cast<double>(op.bytes_read) / 4;
    double walked = op.pattern == OpPattern::kCommReduce ? read : 0;
    elements = std::max({elements, walked, static_cast<double>(op.num_elements)});
    totals->max_rows = std::max(totals->max_rows, static_cast<double>(op.rows));
    totals->without_rows += op.rows == 0 ? 1 : 0;
    double bytes = static_cast<double>(op.bytes_written);
    if (nests_.is_output(index)) {
      totals->bytes_out += bytes;
    } else if (nests_.StaysInNest(index)) {
      totals->bytes_kept += bytes;
    } else {
      totals->bytes_between += bytes;
    }
  }
  auto [least, most] = std::minmax_element(nest_elements_.begin(), nest_elements_.end());
  totals->min_elements = *least;
  totals->max_elements = *most;
}

void FeatureReader::Read(const OpGraph& graph, const Group& group,
                         const std::vector<double>& op_times_us, double kernel_us,
                         GroupFeatures* features) {
  int32_t size = static_cast<int32_t>(group.ops.size());
  nests_.Plan(graph, group);
  CountComputations(size);
  external_.clear();
  *features = GroupFeatures{};
  Totals totals;
  for (int32_t member = 0; member < size; ++member) {
    int32_t id = group.ops[member];
    const Op& op = graph.op(id);
    double time_us = op_times_us[id], computed = num_computed_[member];
    Traffic traffic = TrafficOf(graph, id);
    AddNode(graph, member, id, time_us, traffic, features);
    totals.time_us += time_us;
    totals.max_time_us = std::max(totals.max_time_us, time_us);
    totals.recomputed_us += time_us * std::max(computed - 1, 0.0);
    totals.bytes_in += traffic.new_outside;
    totals.cut_edges += traffic.cut_edges;
    totals.flops += op.flops * computed;
    totals.computed += computed;
    if (PatternIndex(op) < kPatterns.size()) totals.patterns[PatternIndex(op)] += 1;
    totals.class_us[ClassIndex(op)] += time_us * std::max(computed, 1.0);
    totals.types[TypeIndex(op)] += 1;
  }
  AddNests(graph, group, &totals);
  features->globals = {LogUs(kernel_us),
                       LogUs(totals.time_us),
                       LogUs(totals.max_time_us),
                       LogUs(totals.recomputed_us),
                       Log1(totals.bytes_in),
                       Log1(totals.bytes_out),
                       Log1(totals.bytes_between),
                       Log1(totals.bytes_kept),
                       Log1(totals.flops),
                       Log1(size),
                       Log1(nests_.num_nests()),
                       Log1(static_cast<double>(group.outputs.size())),
                       Log1(totals.inlined),
                       Log1(totals.computed),
                       Log1(totals.max_elements),
                       Log1(totals.min_elements),
                       Log1(totals.max_rows),
                       static_cast<float>(totals.without_rows),
                       static_cast<float>(external_.size()),
                       static_cast<float>(totals.cut_edges)};
  for (double count : totals.patterns) features->globals.push_back(static_cast<float>(count));
  for (double us : totals.class_us) features->globals.push_back(LogUs(us));
  for (double count : totals.types) features->globals.push_back(static_cast<float>(count));
}

}  // namespace disco_fuse
