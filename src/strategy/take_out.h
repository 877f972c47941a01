#ifndef DISCO_FUSE_STRATEGY_TAKE_OUT_H_
#define DISCO_FUSE_STRATEGY_TAKE_OUT_H_

#include <cstdint>

#include "strategy/grouping.h"
#include "strategy/legality.h"

namespace disco_fuse {

/*!
 * \brief `op` leaves the group that is home of `member`.
 *
 *     home there:    [a b c d]   take out c     [a d] [b c]    b serves c only and goes along
 *     a copy there:  [a b' c]    take out b'    [a c]          and reads b from its home
 *
 * Copies that both parts need are held by both. Legal if neither part is computed from the other
 * both ways round, if what is left still hangs together, and if both obey all rules of a kernel.
 */
FusionDecision TakeOut(const FusionLimits& limits, int32_t op, int32_t member, Grouping* grouping);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_STRATEGY_TAKE_OUT_H_
