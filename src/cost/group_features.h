#ifndef DISCO_FUSE_COST_GROUP_FEATURES_H_
#define DISCO_FUSE_COST_GROUP_FEATURES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cost/cost_model.h"
#include "cost/loop_nests.h"
#include "graph/op_graph.h"

namespace disco_fuse {

/*! \brief Changes whenever a column changes its meaning; models of other versions are refused. */
constexpr int32_t kFeatureVersion = 2;

/*! \brief A group as learned cost models see it. */
struct GroupFeatures {
  std::vector<float> nodes;      /*!< row-major [members, NodeFeatureNames().size()] */
  std::vector<int32_t> producer; /*!< per data edge inside the group: index of a member */
  std::vector<int32_t> consumer; /*!< the same for the other end */
  std::vector<float> globals;    /*!< [GlobalFeatureNames().size()] */
};

/*! \brief Names of the columns of GroupFeatures::nodes; sizes and times are logarithms. */
const std::vector<std::string>& NodeFeatureNames();
/*! \brief Names of the entries of GroupFeatures::globals. */
const std::vector<std::string>& GlobalFeatureNames();

/*!
 * \brief Reads features off graphs, reusing its buffers.
 *
 *     mul --> sum --> div        node row: time, bytes, operations of the op alone, and its place
 * in
 *     \_______________/          the plan of loop nests (inlined, how often it is computed, output)
 *           |                    globals: the roofline's answer, what crosses the border of the
 *     one row per member         group, the shape of its nests, sums per pattern, class and type
 */
class FeatureReader {
 public:
  /*!
   * \param op_times_us Per op of the graph: its time alone, launch not included.
   * \param kernel_us The roofline's time of the group, launch not included.
   */
  void Read(const OpGraph& graph, const Group& group, const std::vector<double>& op_times_us,
            double kernel_us, GroupFeatures* features);

 private:
  struct Traffic;
  struct Totals;
  void CountComputations(int32_t size);
  Traffic TrafficOf(const OpGraph& graph, int32_t op);
  void AddNode(const OpGraph& graph, int32_t member, int32_t op, double time_us,
               const Traffic& traffic, GroupFeatures* features);
  void AddNests(const OpGraph& graph, const Group& group, Totals* totals);

  LoopNests nests_;
  std::vector<int32_t> num_computed_; /*!< per member: loop nests' roots that compute it */
  std::vector<double> nest_elements_; /*!< per nest: elements of its largest root */
  std::vector<int64_t> external_;     /*!< values read from outside so far, see TrafficOf */
};

}  // namespace disco_fuse

#endif  // DISCO_FUSE_COST_GROUP_FEATURES_H_
