#ifndef DISCO_FUSE_SEARCH_SEARCH_CONFIG_H_
#define DISCO_FUSE_SEARCH_SEARCH_CONFIG_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cost/cost_model.h"
#include "strategy/edit.h"
#include "strategy/strategy.h"

namespace disco_fuse {

/*! \brief Knobs of the backtracking search; the defaults are the paper's. */
struct SearchConfig {
  /*! Candidates up to alpha times the incumbent's makespan are followed up. */
  double alpha = 1.05;
  /*! A candidate is made by 0 to beta edits of one kind. */
  int32_t beta = 10;
  /*! Whether the number of edits is uniform up to a bound that is itself uniform from 1 to beta:
   * never 0, and mostly few, since late in a search one of many edits nearly always spoils. */
  bool prefer_few = false;
  /*! If > 0, a candidate is made by that many chains of 1 to beta edits instead; each chain fuses
   * more and more producers into the group of one op (the authors' code: 5 chains). */
  int32_t num_chains = 0;
  /*! Candidates without improvement after which the search ends. */
  int64_t patience = 1000;
  uint64_t seed = 0;
  /*! Candidates at most; < 0: no limit. */
  int64_t max_steps = -1;
  /*! Rounds of all methods per popped strategy (the authors' code: 10). */
  int32_t children_per_pop = 1;
  /*! Strategies kept in the queue, the cheapest ones; < 0: all (the authors' code: 50). */
  int64_t queue_cap = -1;
  /*! Bytes that images of queued strategies may take, and again those of strategies that refill the
   * queue; the dearest are rebuilt from their edits when they are popped. Changes no result. */
  int64_t image_bytes = int64_t{192} << 20;
  /*! Whether a queue that runs empty before patience ends gets back everything within alpha of the
   * best. The paper's algorithm stops there, on small graphs after a handful of candidates. */
  bool refill = false;
  /*! Whether a strategy that is its own child (no edit drawn or possible) goes back into the queue
   * only if one of its other children was new. In the paper it always does, and being the cheapest
   * may be popped again and again while others wait. */
  bool drop_stale = false;
  /*! Random places tried per edit before it is given up. */
  int32_t num_tries = 8;
  /*! Independent searches, the first with `seed`, the others with seeds derived from it. The limits
   * above are those of each; the best result counts. */
  int32_t num_starts = 1;
  /*! Threads that they run on; the result is the same for any number, unless time is limited. */
  int32_t num_threads = 1;
  std::vector<EditKind> methods = {EditKind::kFuse, EditKind::kFuseDuplicate,
                                   EditKind::kMergeBuckets};
  FusionLimits limits;
  /*! Bytes that a step may need; strategies that need more are illegal. < 0: no limit. */
  int64_t memory_limit = -1;
  /*! Candidates between two progress reports. */
  int64_t report_every = 256;

  /*! \throws std::invalid_argument naming the field that is out of range. */
  void Check() const;
};

enum class StopReason : int32_t {
  kQueueEmpty = 0,
  kPatience = 1,
  kMaxSteps = 2,
  kTimeLimit = 3,
  kInterrupted = 4,
  kExhausted = 5,
};

/*! \brief "queue-empty", "patience", "max-steps", "time-limit", "interrupted" or "exhausted". */
const char* StopReasonName(StopReason reason);

/*! \brief Where the search stands; of several searches, all of them together. */
struct Progress {
  int64_t num_steps;      /*!< strategies taken from the queue */
  int64_t num_candidates; /*!< strategies judged */
  Nanoseconds makespan;   /*!< of the incumbent */
  bool improved;          /*!< whether there is a new incumbent */
  int32_t run = 0;        /*!< which of num_starts searches reports */
  int32_t phase = 0;      /*!< 1 if that follows up initial strategies, 0 before */
  int64_t num_queued = 0; /*!< strategies that wait; a search that has ended counts as it was */
  std::shared_ptr<const Strategy> best = nullptr; /*!< the incumbent of the search that reports */
};

/*!
 * \brief What the observer wants: the core has neither a clock nor signals.
 *
 * kTimeLimit ends the phase of the search that reports, kInterrupted everything.
 */
enum class Verdict : int32_t { kContinue = 0, kTimeLimit = 1, kInterrupted = 2 };
using Observer = std::function<Verdict(const Progress&)>;

struct SearchResult {
  Strategy best;
  Nanoseconds makespan{0};
  Nanoseconds initial_makespan{0}; /*!< of the unfused strategy, however much memory it needs */
  Nanoseconds lower_bound{0};
  int32_t start = 0; /*!< 0: `edits` start from unfused; i: from the i-th initial strategy */
  std::vector<Edit> edits = {}; /*!< lead from there to `best` */
  /*! Of the best strategy reached from the unfused one before any initial strategy was looked at.
   * Here and below the largest time there is, if that needs too much memory. */
  Nanoseconds found_makespan{0};
  int32_t best_start = 0; /*!< the fastest start as it is, numbered like `start` */
  Nanoseconds best_start_makespan{0};
  int64_t num_steps = 0;
  int64_t num_candidates = 0;
  int64_t num_found_candidates = 0; /*!< of those, judged before the initial strategies */
  int64_t num_unseen = 0;           /*!< of those, with at least one edit, and not met before */
  int64_t num_looked_up = 0;        /*!< kernels whose time was needed since a candidate has them */
  int64_t num_priced = 0;           /*!< of those, the different ones: the cost model was asked */
  StopReason stop_reason = StopReason::kQueueEmpty;
};

}  // namespace disco_fuse

#endif  // DISCO_FUSE_SEARCH_SEARCH_CONFIG_H_
