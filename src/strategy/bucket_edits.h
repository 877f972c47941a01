#ifndef DISCO_FUSE_STRATEGY_BUCKET_EDITS_H_
#define DISCO_FUSE_STRATEGY_BUCKET_EDITS_H_

#include <cstdint>

#include "strategy/grouping.h"
#include "strategy/legality.h"

namespace disco_fuse {

// Edits of buckets, in production order:
//
//     a b | c d     merge b, c     a b c d     split b, c     a b | c d     move b, c     a | b c d
//
// Where a rule forbids one, it says why and `grouping` stays as it is.

/*! \brief Rule `neighbours`: whether an edit may change gradients between the buckets of a and b.
 */
FusionDecision CheckNeighbours(const FusionLimits& limits, const Grouping& grouping, int32_t a,
                               int32_t b);

/*! \brief The buckets of two allreduce ops become one. */
FusionDecision MergeBuckets(const FusionLimits& limits, int32_t a, int32_t b, Grouping* grouping);

/*! \brief What is produced from `second` on leaves the bucket, in which `first` comes earlier. */
FusionDecision SplitBucket(int32_t first, int32_t second, Grouping* grouping);

/*! \brief `op` leaves its bucket, where others stay, for the neighbouring one of `target`. */
FusionDecision MoveGradient(const FusionLimits& limits, int32_t op, int32_t target,
                            Grouping* grouping);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_STRATEGY_BUCKET_EDITS_H_
