#ifndef DISCO_FUSE_COST_COST_MODEL_H_
#define DISCO_FUSE_COST_COST_MODEL_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "graph/op_graph.h"

namespace disco_fuse {

using Nanoseconds = std::chrono::nanoseconds;

/*! \brief A kernel or library call that is to be priced. */
struct Group {
  std::vector<int32_t> ops;     /*!< members including copies, ascending */
  std::vector<int32_t> outputs; /*!< members whose value leaves the group, ascending */
};

/*! \brief Predicts how long units take; the only thing of the search that may be replaced. */
class CostModel {
 public:
  virtual ~CostModel() = default;
  virtual const std::string& name() const = 0;
  /*!
   * \brief One time per group, launch included.
   * \throws std::invalid_argument if it cannot tell a finite time >= 0; it never invents one.
   */
  virtual std::vector<Nanoseconds> Predict(const OpGraph& graph,
                                           const std::vector<Group>& groups) const = 0;
  /*! \brief Whether several threads may call Predict at a time. */
  virtual bool thread_safe() const { return false; }
  /*!
   * \brief A time that `op` adds to every unit that computes it, in every strategy.
   *
   * This and the next two enter the lower bound only: the time of a unit is at least LaunchFloor
   * plus the floors of its members. 0 is always true.
   */
  virtual Nanoseconds Floor(const OpGraph& graph, int32_t op) const;
  /*! \brief The same for the unit that is the home of `op`; at least Floor. */
  virtual Nanoseconds HomeFloor(const OpGraph& graph, int32_t op) const { return Floor(graph, op); }
  /*! \brief A time that every kernel takes besides the floors of its members. */
  virtual Nanoseconds LaunchFloor() const { return Nanoseconds(0); }
};

/*! \brief Rounds to whole nanoseconds; throws naming model and group if `us` is no duration. */
Nanoseconds ToNanoseconds(double us, const std::string& model, const OpGraph& graph,
                          const Group& group);

/*! \brief Throws unless there is one prediction per group. */
void CheckCount(size_t num_predictions, const std::vector<Group>& groups, const std::string& model,
                const OpGraph& graph);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_COST_COST_MODEL_H_
