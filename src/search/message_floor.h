#ifndef DISCO_FUSE_SEARCH_MESSAGE_FLOOR_H_
#define DISCO_FUSE_SEARCH_MESSAGE_FLOOR_H_

#include <vector>

#include "cost/allreduce_model.h"
#include "search/compute_floor.h"

namespace disco_fuse {

/*!
 * \brief A makespan that no partition of the gradients into messages, in no order, beats.
 *
 *     compute         |-- U(B1) --|-------- U(B1, B2) --------|--- U(B1, B2, B3) ---|
 *     communication               |--- B1 ---|                |-- B2 --|            |- B3 -| after
 *
 * Let a strategy send B1 ... Bm in this order, w_k bytes in the first k of them, W in all. Bk
 * starts when all gradients of B1 ... Bk exist, which takes U >= V(w_k) of compute, where
 *
 *     V(w) = min over sets S of gradients of at least w bytes of (max shared + sum of own) over S
 *
 * and the network then carries Bk ... Bm one after the other. With any line L + s b that is below
 * the time of every message of b bytes, and `after` the least that waits for one gradient:
 *
 *     makespan >= V(w_k) + (m - k + 1) L + s (W - w_(k-1)) + after        for every k     (1)
 *
 * The result is the least C for which some 0 = w_0 < w_1 < ... < w_m = W, real numbers, satisfy (1)
 * for every k with C in place of the makespan, or (2) if that is more. Whether C is too small is
 * decided from the last message backwards: the least w_(k-1) that (1) allows is also the best,
 * since V does not fall.
 *
 * A large gradient that comes late counts for more, since it is not divided. Let Bk hold gradient
 * i. Any other gradient j is sent before Bk, so that its own time comes before Bk as well, or in Bk
 * or later, so that its bytes are still to be sent; hence, for every i,
 *
 *     makespan >= shared_i + own_i + L + s b_i + sum over j != i of min(own_j, s b_j) + after (2)
 *
 * V is taken from below: own times as a fractional knapsack, and w rounded down to one of a fixed
 * number of steps. The lines are the edges of the convex hull below the two lines of the
 * AllReduceModel, made non-decreasing; each gives a bound and the larger one counts.
 */
Nanoseconds MessageFloor(const std::vector<GradientFloor>& gradients,
                         const AllReduceModel& allreduce);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_SEARCH_MESSAGE_FLOOR_H_
