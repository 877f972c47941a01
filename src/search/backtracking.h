#ifndef DISCO_FUSE_SEARCH_BACKTRACKING_H_
#define DISCO_FUSE_SEARCH_BACKTRACKING_H_

#include <vector>

#include "search/evaluator.h"
#include "search/search_config.h"

namespace disco_fuse {

/*!
 * \brief DisCo's backtracking search (Yi et al., TPDS 2022, arXiv 2209.12769, Algorithm 1).
 *
 *     queue = {unfused}, unchanged = 0
 *     while the queue is not empty and unchanged < patience:
 *       H = pop the cheapest
 *       for each method: H' = H with 0..beta random edits of that method
 *         if H' is cheaper than the best: best = H', unchanged = 0    otherwise: unchanged += 1
 *         if H' costs at most alpha times the best: push H', unless it waits there already
 *
 * A place that the rules forbid is drawn again, num_tries times. Where no edit is drawn or possible
 * H' is H, which then goes back into the queue. Options beyond the paper say when it does not
 * (SearchConfig::drop_stale), and fill a queue that has run empty (SearchConfig::refill).
 *
 * With initial strategies there is a second phase, from a queue of them and of the best so far.
 * Each phase has a patience of its own, and they share max_steps half and half. So the result is
 * never worse than an initial strategy, and what the search finds without them is known.
 *
 * SearchConfig::num_starts such searches run independently; the best result (makespan, then hash,
 * then number) counts.
 *
 * The same arguments give the same result on every machine.
 *
 * \param initial Legal strategies.
 * \param observer Called on every improvement and every report_every candidates, by the thread that
 *     has called Search; may be empty.
 */
SearchResult Search(const OpGraph& graph, const CostModel& model, const Cluster& cluster,
                    const SearchConfig& config, const std::vector<Strategy>& initial,
                    const Observer& observer);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_SEARCH_BACKTRACKING_H_
