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
   * This and the next four enter the lower bound only: the time of a unit is at least LaunchFloor
   * plus the floors of its members, and NestFloor and TrafficFloor add to that. 0 is always true.
   */
  virtual Nanoseconds Floor(const OpGraph& graph, int32_t op) const;
  /*! \brief The same for the unit that is the home of `op`; at least Floor. */
  virtual Nanoseconds HomeFloor(const OpGraph& graph, int32_t op) const { return Floor(graph, op); }
  /*! \brief A time that every kernel takes besides the floors of its members. */
  virtual Nanoseconds LaunchFloor() const { return Nanoseconds(0); }
  /*! \brief A time that every loop nest (loop_nests.h) but the first of a kernel takes besides. */
  virtual Nanoseconds NestFloor() const { return Nanoseconds(0); }
  /*!
   * \brief A time that reading or writing a value of `bytes` adds where `op` does it.
   *
   * Holds once for each loop nest and value that the op reads from memory there, reading it before
   * other ops of the nest, and once for each writing of its own value; unless Floor and HomeFloor
   * say that they count that value.
   */
  virtual Nanoseconds TrafficFloor(const OpGraph& graph, int32_t op, int64_t bytes) const;
};

/*! \brief Rounds to whole nanoseconds; throws naming model and group if `us` is no duration. */
Nanoseconds ToNanoseconds(double us, const std::string& model, const OpGraph& graph,
                          const Group& group);

/*! \brief Throws unless there is one prediction per group. */
void CheckCount(size_t num_predictions, const std::vector<Group>& groups, const std::string& model,
                const OpGraph& graph);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_COST_COST_MODEL_H_
