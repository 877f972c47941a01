#ifndef DISCO_FUSE_SEARCH_COMPUTE_FLOOR_H_
#define DISCO_FUSE_SEARCH_COMPUTE_FLOOR_H_

#include <cstdint>
#include <vector>

#include "cost/cost_model.h"
#include "graph/op_graph.h"

namespace disco_fuse {

/*!
 * \brief What every strategy has to compute before and after the AllReduce of one gradient.
 *
 *     forward --> backward of layer 3 --> backward of layer 2 --> ...     shared by all behind it
 *                        |                       |
 *                 weight gradient 3       weight gradient 2               its own
 *
 * Before the gradients of a set S are there, at least max over S of `shared` plus the sum over S of
 * `own` has been computed.
 */
struct GradientFloor {
  int64_t bytes;
  Nanoseconds shared; /*!< ancestors that lead to other AllReduces too; launches, charges */
  Nanoseconds own;    /*!< ancestors that lead to no other AllReduce, and their charges */
  Nanoseconds after;  /*!< what waits for it */
};

/*! \brief Compute that no strategy avoids. */
struct ComputeFloor {
  Nanoseconds total{0};
  std::vector<GradientFloor> gradients; /*!< one per allreduce op */
};

/*!
 * \brief Adds up floors of ops and launches that the graph forces.
 *
 * An op is a *barrier* if it is always a unit of its own: a library call, a collective, an opaque
 * or tuple op. Its time is known. Of any other op x a part of its unit's time is counted:
 *
 * * HomeFloor(x) once, since every op has one home. Before an AllReduce it is counted where the
 *   home must come earlier: if x cannot be duplicated, or a barrier among the ancestors reads x,
 *   which it does from the home. Otherwise a copy may have served, and Floor(x) is counted.
 * * Launches: along a path, the op before a barrier has its home before it, and the op after a
 *   barrier has its home behind it, so that two ops with a barrier in between are in different
 *   kernels. Their number is the largest number of runs of non-barriers on a path.
 * * Nests and traffic: ForcedNests and ForcedTraffic, which name places no two of which are one
 *   nest. With k kernels and n >= k nests, launches take L k + N (n - k) >= (L - N) k + N n, where
 *   L is LaunchFloor, and N is NestFloor or L if that is less.
 */
ComputeFloor FindComputeFloor(const OpGraph& graph, const CostModel& model);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_SEARCH_COMPUTE_FLOOR_H_
