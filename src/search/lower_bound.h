#ifndef DISCO_FUSE_SEARCH_LOWER_BOUND_H_
#define DISCO_FUSE_SEARCH_LOWER_BOUND_H_

#include "search/evaluator.h"

namespace disco_fuse {

/*!
 * \brief A makespan that no legal strategy beats, whatever its kernels, buckets and order.
 *
 * The larger of two bounds, each proven where it is computed:
 *
 *     compute:        all ops have one home on one compute stream            (compute_floor.h)
 *     communication:  no gradient can be sent before it exists, and messages
 *                     run one after the other                                (message_floor.h)
 *
 * Contention c adds to the first: while the network is busy, which any partition of the gradients
 * takes at least A = AllReduceModel::PartitionFloor for, compute progresses at 1 / c. So in time T
 * at most T - A + A / c is computed, hence
 *
 *     T >= compute + A (1 - 1 / c)      less one nanosecond for each unit that was rounded.
 */
Nanoseconds LowerBound(const OpGraph& graph, const CostModel& model, const Cluster& cluster);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_SEARCH_LOWER_BOUND_H_
