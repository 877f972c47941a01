#ifndef DISCO_FUSE_SEARCH_EXHAUSTIVE_H_
#define DISCO_FUSE_SEARCH_EXHAUSTIVE_H_

#include <cstdint>
#include <vector>

#include "search/evaluator.h"
#include "search/search_config.h"

namespace disco_fuse {

/*!
 * \brief The best of all strategies that legal edits reach from the unfused one.
 *
 * An oracle for tiny graphs: it follows every edit of every strategy it meets.
 *
 * \param max_states Strategies to visit at most.
 * \param methods Kinds of edits.
 * \param all_orders Whether to try every order of the units of every strategy, and not only the
 *     list schedule: up to num_units! simulations each, so for graphs of 6 ops or so.
 * \throws std::invalid_argument if there are more.
 */
SearchResult Exhaustive(const OpGraph& graph, const CostModel& model, const Cluster& cluster,
                        const FusionLimits& limits, int64_t max_states,
                        const std::vector<EditKind>& methods = SearchConfig().methods,
                        bool all_orders = false);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_SEARCH_EXHAUSTIVE_H_
