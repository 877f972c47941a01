#ifndef DISCO_FUSE_SEARCH_EDIT_EFFECTS_H_
#define DISCO_FUSE_SEARCH_EDIT_EFFECTS_H_

#include <vector>

#include "search/evaluator.h"
#include "strategy/edit.h"

namespace disco_fuse {

/*! \brief What one edit alone would do to a strategy. */
struct EditEffect {
  FusionDecision decision; /*!< why the edit is illegal, if it is */
  Nanoseconds makespan{0}; /*!< list-scheduled, with the edit; 0 if it is illegal */
};

/*! \brief The effects of edits, and what they are compared with. */
struct EditEffects {
  Nanoseconds makespan{0}; /*!< of the strategy without an edit, list-scheduled */
  std::vector<EditEffect> effects;
};

/*!
 * \brief Makes each of `edits` alone, on `strategy` as it is.
 *
 *     strategy --edit 0--> makespan 0        Edits that undo a decision tell what it has gained,
 *              --edit 1--> illegal: why      edits that were not made what they would cost.
 *              --edit 2--> makespan 2
 */
EditEffects EffectsOf(const OpGraph& graph, const FusionLimits& limits, const CostModel& model,
                      const Cluster& cluster, const Strategy& strategy,
                      const std::vector<Edit>& edits);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_SEARCH_EDIT_EFFECTS_H_
