#include "cost/roofline.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace disco_fuse {
namespace {

constexpr double kPerUs = 1e3; /*!< 1e9 a second, counted per microsecond */

void Require(bool ok, const char* field, double value, const char* allowed) {
  if (ok) return;
  std::ostringstream out;
  out << "DeviceSpec: " << field << " must be " << allowed << ", got " << value;
  throw std::invalid_argument(out.str());
}

void CheckDevice(const DeviceSpec& device) {
  auto positive = [](double x) { return std::isfinite(x) && x > 0; };
  auto not_negative = [](double x) { return std::isfinite(x) && x >= 0; };
  Require(positive(device.peak_gflops), "peak_gflops", device.peak_gflops, "finite and > 0");
  Require(positive(device.bandwidth_gbps), "bandwidth_gbps", device.bandwidth_gbps,
          "finite and > 0");
  Require(not_negative(device.launch_us), "launch_us", device.launch_us, "finite and >= 0");
  Require(not_negative(device.nest_us), "nest_us", device.nest_us, "finite and >= 0");
  for (const auto& [op_class, share] : device.efficiency) {
    for (double value : {share.flops, share.bandwidth}) {
      Require(value > 0 && value <= 1, ("efficiency of " + op_class).c_str(), value, "in (0, 1]");
    }
  }
}

Efficiency EfficiencyOf(const DeviceSpec& device, const Op& op) {
  auto it = device.efficiency.find(op.op_class);
  return it == device.efficiency.end() ? Efficiency{} : it->second;
}

/*! \brief Whether the rules `kind` and `pattern` let an op share a kernel at all. */
bool CanBeFused(const Op& op) {
  return op.kind == OpKind::kCompute && op.pattern != OpPattern::kOpaque &&
         op.pattern != OpPattern::kTuple;
}

void CheckTimes(const OpGraph& graph, const std::vector<double>& times_us) {
  if (times_us.empty()) return;
  if (static_cast<int32_t>(times_us.size()) != graph.num_ops()) {
    throw std::invalid_argument("op_times_us must have one entry for each of the " +
                                std::to_string(graph.num_ops()) + " ops, got " +
                                std::to_string(times_us.size()));
  }
  for (int32_t op = 0; op < graph.num_ops(); ++op) {
    // Collectives are priced by the AllReduceModel; whatever stands in their place is not used.
    if (graph.IsAllReduce(op) || (std::isfinite(times_us[op]) && times_us[op] >= 0)) continue;
    std::ostringstream out;
    out << "op_times_us of " << graph.Describe(op) << " must be finite and >= 0, got "
        << times_us[op];
    throw std::invalid_argument(out.str());
  }
}

}  // namespace

/*! \brief Buffers of one Predict call, so that pricing a group allocates nothing. */
struct RooflineCostModel::Scratch {
  LoopNests nests;
  uint32_t epoch = 0;               /*!< one per nest */
  std::vector<uint32_t> op_seen;    /*!< per op: the nest that has read it */
  std::vector<uint32_t> value_seen; /*!< per external value */

  bool FirstRead(std::vector<uint32_t>* seen, int32_t index) {
    if (static_cast<size_t>(index) >= seen->size()) seen->resize(index + 1, 0);
    return std::exchange((*seen)[index], epoch) != epoch;
  }
};

RooflineCostModel::RooflineCostModel(const OpGraph& graph, DeviceSpec device,
                                     std::vector<double> op_times_us)
    : device_(std::move(device)), graph_digest_(graph.digest()) {
  CheckDevice(device_);
  CheckTimes(graph, op_times_us);
  for (int32_t id = 0; id < graph.num_ops(); ++id) {
    const Op& op = graph.op(id);
    Efficiency share = EfficiencyOf(device_, op);
    double compute_us = op.flops / (device_.peak_gflops * share.flops * kPerUs);
    double bytes = static_cast<double>(op.bytes_read + op.bytes_written);
    double us_per_byte = 1.0 / (device_.bandwidth_gbps * share.bandwidth * kPerUs);
    double roofline_us = std::max(compute_us, bytes * us_per_byte);
    compute_us_.push_back(compute_us);
    us_per_byte_.push_back(us_per_byte);
    time_us_.push_back(op_times_us.empty() ? roofline_us : op_times_us[id]);
    num_consumers_.push_back(0);
    for (const DataEnd& end : graph.consumers(id)) {
      num_consumers_[id] += CanBeFused(graph.op(end.op)) ? 1 : 0;
    }
    for (const ValueRead& read : graph.external_reads(id)) {
      if (static_cast<size_t>(read.value) >= num_readers_.size())
        num_readers_.resize(read.value + 1);
      num_readers_[read.value] += CanBeFused(op) ? 1 : 0;
    }
  }
}

std::vector<Nanoseconds> RooflineCostModel::Predict(const OpGraph& graph,
                                                    const std::vector<Group>& groups) const {
  if (graph.digest() != graph_digest_) {
    throw std::invalid_argument("cost model 'roofline' was made for graph " + ToHex(graph_digest_) +
                                ", got graph " + ToHex(graph.digest()));
  }
  Scratch scratch;
  std::vector<Nanoseconds> times;
  for (const Group& group : groups) {
    times.push_back(ToNanoseconds(GroupUs(graph, group, &scratch), name_, graph, group));
  }
  return times;
}

double RooflineCostModel::GroupUs(const OpGraph& graph, const Group& group,
                                  Scratch* scratch) const {
  if (group.ops.size() == 1) return device_.launch_us + time_us_[group.ops[0]];
  LoopNests& nests = scratch->nests;
  nests.Plan(graph, group);
  double us = device_.launch_us + (nests.num_nests() - 1) * device_.nest_us;
  int32_t size = static_cast<int32_t>(group.ops.size());
  for (int32_t nest = 0; nest < nests.num_nests(); ++nest) {
    ++scratch->epoch;
    for (int32_t root = 0; root < size; ++root) {
      if (nests.nest(root) != nest) continue;
      for (int32_t member : nests.cone(root)) us += MemberUs(graph, group, member, nest, scratch);
      us += MemberUs(graph, group, root, nest, scratch);
    }
  }
  return us;
}

double RooflineCostModel::MemberUs(const OpGraph& graph, const Group& group, int32_t member,
                                   int32_t nest, Scratch* scratch) const {
  const LoopNests& nests = scratch->nests;
  int32_t op = group.ops[member];
  int64_t saved = 0;
  bool writes = !nests.inlined(member) && (nests.is_output(member) || !nests.StaysInNest(member));
  if (!writes) saved += graph.op(op).bytes_written;
  for (const DataEnd& end : graph.producers(op)) {
    int32_t before = nests.IndexOf(end.op);
    bool internal = before >= 0 && (nests.inlined(before) || nests.nest(before) == nest);
    if (internal || !scratch->FirstRead(&scratch->op_seen, end.op)) saved += end.bytes;
  }
  for (const ValueRead& read : graph.external_reads(op)) {
    if (!scratch->FirstRead(&scratch->value_seen, read.value)) saved += read.bytes;
  }
  return LessTraffic(graph, op, saved);
}

double RooflineCostModel::LessTraffic(const OpGraph& graph, int32_t op, int64_t saved_bytes) const {
  double time_us = time_us_[op];
  double bytes = static_cast<double>(graph.op(op).bytes_read + graph.op(op).bytes_written);
  double saved = std::min(static_cast<double>(saved_bytes), bytes);
  if (saved <= 0) return time_us;
  double saved_us = std::min(saved * us_per_byte_[op], time_us * saved / bytes);
  // A measured time below the roofline stands: fusing must not make an op slower.
  return std::max(std::min(compute_us_[op], time_us), time_us - saved_us);
}

int64_t RooflineCostModel::RemovableReads(const OpGraph& graph, int32_t op) const {
  int64_t bytes = 0;
  for (const DataEnd& end : graph.producers(op)) {
    if (CanBeFused(graph.op(end.op)) || num_consumers_[end.op] > 1) bytes += end.bytes;
  }
  for (const ValueRead& read : graph.external_reads(op)) {
    if (num_readers_[read.value] > 1) bytes += read.bytes;
  }
  return bytes;
}

Nanoseconds RooflineCostModel::Floor(const OpGraph& graph, int32_t op) const {
  int64_t removable = RemovableReads(graph, op) + graph.op(op).bytes_written;
  return Nanoseconds(static_cast<int64_t>(LessTraffic(graph, op, removable) * 1000.0));
}

Nanoseconds RooflineCostModel::HomeFloor(const OpGraph& graph, int32_t op) const {
  bool writes = graph.MustWrite(op);
  for (const DataEnd& end : graph.consumers(op)) {
    writes = writes || !CanBeFused(graph.op(end.op));
  }
  int64_t removable = RemovableReads(graph, op) + (writes ? 0 : graph.op(op).bytes_written);
  return Nanoseconds(static_cast<int64_t>(LessTraffic(graph, op, removable) * 1000.0));
}

Nanoseconds RooflineCostModel::LaunchFloor() const {
  return Nanoseconds(static_cast<int64_t>(device_.launch_us * 1000.0));
}

Nanoseconds RooflineCostModel::NestFloor() const {
  return Nanoseconds(static_cast<int64_t>(device_.nest_us * 1000.0));
}

/*! \brief Microseconds that a byte saved takes off the op, above the floor of its operations. */
double RooflineCostModel::RateOf(const OpGraph& graph, int32_t op) const {
  double bytes = static_cast<double>(graph.op(op).bytes_read + graph.op(op).bytes_written);
  return bytes > 0 ? std::min(us_per_byte_[op], time_us_[op] / bytes) : 0;
}

Nanoseconds RooflineCostModel::TrafficFloor(const OpGraph& graph, int32_t op, int64_t bytes) const {
  double rate = RateOf(graph, op);
  int64_t removable = RemovableReads(graph, op) + graph.op(op).bytes_written;
  double hidden =
      LessTraffic(graph, op, removable) - (time_us_[op] - rate * static_cast<double>(removable));
  int64_t all = graph.op(op).bytes_written;
  for (const DataEnd& end : graph.producers(op)) all += end.bytes;
  for (const ValueRead& read : graph.external_reads(op)) all += read.bytes;
  int64_t beyond = all - graph.op(op).bytes_read - graph.op(op).bytes_written;
  double slack = std::max(hidden, rate * static_cast<double>(std::max<int64_t>(beyond, 0)));
  double us = rate * static_cast<double>(bytes) * (1 - 1e-9) - slack;
  return Nanoseconds(std::max<int64_t>(0, static_cast<int64_t>(us * 1000.0)));
}

}  // namespace disco_fuse
