#ifndef DISCO_FUSE_SEARCH_EXHAUSTIVE_H_
#define DISCO_FUSE_SEARCH_EXHAUSTIVE_H_

#include <cstdint>

#include "search/evaluator.h"
#include "search/search_config.h"

namespace disco_fuse {

/*!
 * \brief The best of all strategies that legal edits reach from the unfused one.
 *
 * An oracle for tiny graphs: it follows every edit of every strategy it meets.
 *
 * \param max_states Strategies to visit at most.
 * \throws std::invalid_argument if there are more.
 */
SearchResult Exhaustive(const OpGraph& graph, const CostModel& model, const Cluster& cluster,
                        const FusionLimits& limits, int64_t max_states);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_SEARCH_EXHAUSTIVE_H_
