#ifndef DISCO_FUSE_SEARCH_LOWER_BOUND_H_
#define DISCO_FUSE_SEARCH_LOWER_BOUND_H_

#include "search/evaluator.h"

namespace disco_fuse {

/*!
 * \brief A makespan that no legal strategy beats.
 *
 * Let f(op) be the time of the unit of a library call, which no strategy changes, and for other
 * compute ops the cost model's Floor. Every op has one home, homes of different ops add up on one
 * compute stream, contention only adds, and so
 *
 *     compute:  makespan >= sum of f(op) over all compute and library ops.
 *
 * No bucket can start before some gradient exists, which takes all ancestors of it, and the buckets
 * then run one after the other; any partition of the bytes takes AllReduceModel::PartitionFloor:
 *
 *     communication:  makespan >= min over allreduce ops a of (sum of f over the ancestors of a)
 *                                 + PartitionFloor(bytes of all allreduce ops)
 *
 * (Ancestors that are collectives themselves are left out, which only lowers the bound.) The result
 * is the larger of the two.
 */
Nanoseconds LowerBound(const OpGraph& graph, const CostModel& model, const Cluster& cluster);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_SEARCH_LOWER_BOUND_H_
