#ifndef DISCO_FUSE_SEARCH_MULTI_START_H_
#define DISCO_FUSE_SEARCH_MULTI_START_H_

#include <cstdint>
#include <functional>

#include "search/search_config.h"

namespace disco_fuse {

/*! \brief One search; tells its observer how it stands, and depends on nothing but the seed. */
using SingleSearch = std::function<SearchResult(uint64_t seed, const Observer& observer)>;

/*!
 * \brief Runs num_starts searches on up to num_threads threads and returns the best result.
 *
 *     workers     run 0 ---event--->      run 2 ...           the next run, whoever is free
 *                 run 1 -----event---->      run 3 ...
 *     the caller        observer(event)                       verdicts go back to the workers
 *
 * Best: the smallest makespan, then the smallest hash, then the first. Counts are those of all
 * searches together. The observer is called by the calling thread only, which therefore also sees
 * signals; an exception of the observer or of a search ends all and is thrown on.
 *
 * \param parallel Whether searches may run at the same time; otherwise the caller runs them.
 */
SearchResult MultiStart(const SearchConfig& config, bool parallel, const Observer& observer,
                        const SingleSearch& search);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_SEARCH_MULTI_START_H_
