#include "cost/cost_model.h"

#include <cmath>
#include <sstream>
#include <stdexcept>

namespace disco_fuse {
namespace {

std::string DescribeGroup(const OpGraph& graph, const Group& group) {
  std::string text = "group of " + graph.Describe(group.ops.front());
  if (group.ops.size() > 1) {
    text += " and " + std::to_string(group.ops.size() - 1) + " more, up to " +
            graph.Describe(group.ops.back());
  }
  return text;
}

}  // namespace

Nanoseconds CostModel::Floor(const OpGraph&, int32_t) const { return Nanoseconds(0); }

Nanoseconds CostModel::TrafficFloor(const OpGraph&, int32_t, int64_t) const {
  return Nanoseconds(0);
}

Nanoseconds ToNanoseconds(double us, const std::string& model, const OpGraph& graph,
                          const Group& group) {
  // A day is no kernel: beyond it a sum of nanoseconds could overflow.
  constexpr double kMaxUs = 86400e6;
  if (std::isfinite(us) && us >= 0 && us <= kMaxUs) {
    return Nanoseconds(std::llround(us * 1000.0));
  }
  std::ostringstream out;
  out << "cost model '" << model << "' predicts " << us << " us for the "
      << DescribeGroup(graph, group) << "; allowed are finite times from 0 to " << kMaxUs;
  throw std::invalid_argument(out.str());
}

void CheckCount(size_t num_predictions, const std::vector<Group>& groups, const std::string& model,
                const OpGraph& graph) {
  if (num_predictions == groups.size()) return;
  std::string first =
      groups.empty() ? "" : ", beginning with the " + DescribeGroup(graph, groups[0]);
  throw std::invalid_argument("cost model '" + model + "' made " + std::to_string(num_predictions) +
                              " predictions for " + std::to_string(groups.size()) + " groups" +
                              first);
}

}  // namespace disco_fuse
