#ifndef DISCO_FUSE_STRATEGY_EDIT_H_
#define DISCO_FUSE_STRATEGY_EDIT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "strategy/grouping.h"
#include "strategy/legality.h"
#include "strategy/strategy.h"

namespace disco_fuse {

enum class EditKind : int32_t {
  kFuse = 0,          /*!< the groups of producer and consumer become one kernel */
  kFuseDuplicate = 1, /*!< producer is recomputed in the group of consumer, kept for the others */
  kMergeBuckets = 2,  /*!< the buckets of two allreduce ops become one message */
  // Beyond the paper:
  kSplitBucket = 3,  /*!< a bucket of both is cut in front of consumer, in production order */
  kMoveGradient = 4, /*!< producer leaves its bucket for that of consumer, a neighbour */
  kTakeOut = 5,      /*!< producer, with what only serves it, leaves the group of consumer */
  kReorder = 6,      /*!< the unit of producer gets the urgency of consumer; -1: its own again */
};

constexpr int32_t kNumEditKinds = 7;

inline bool IsFusion(EditKind kind) {
  return kind == EditKind::kFuse || kind == EditKind::kFuseDuplicate;
}

/*! \brief One change of a strategy, told by two ops; their groups at that time are meant. */
struct Edit {
  EditKind kind = EditKind::kFuse;
  int32_t producer = 0;
  int32_t consumer = 0;
  bool operator==(const Edit& other) const {
    return kind == other.kind && producer == other.producer && consumer == other.consumer;
  }
};

/*! \brief "fuse", "fuse-duplicate", "merge-buckets", ...: the names of the Python interface. */
const char* EditKindName(EditKind kind);

/*! \brief Applies `edit` if every rule allows it; otherwise `grouping` means the same as before. */
FusionDecision ApplyEdit(const FusionLimits& limits, const Edit& edit, Grouping* grouping);

/*!
 * \brief Applies `edits` one after the other to `start`; the order of the result is canonical.
 * \throws std::invalid_argument naming the index of the first illegal edit and the reason.
 */
Strategy Replay(const OpGraph& graph, const FusionLimits& limits, const Strategy& start,
                const std::vector<Edit>& edits);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_STRATEGY_EDIT_H_
