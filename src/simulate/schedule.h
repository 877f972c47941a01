#ifndef DISCO_FUSE_SIMULATE_SCHEDULE_H_
#define DISCO_FUSE_SIMULATE_SCHEDULE_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "simulate/simulate.h"
#include "strategy/live_units.h"
#include "strategy/unit_graph.h"

namespace disco_fuse {

/*!
 * \brief List scheduling: the order in which units are emitted.
 *
 *     whenever the compute stream is free, at time t:
 *       issue the buckets that became ready, earliest first (ties: smaller representative)
 *       issue the most urgent compute unit whose dependencies are done at t
 *       if there is none, wait for the earliest end of a bucket in flight
 *
 * Buckets are ranked by the largest op id of their gradient producers, that is, in the order in
 * which the original program produces them. The urgency of a unit is the smallest rank of a bucket
 * that it leads to, ties go to the smaller representative; units that lead to no bucket (updates,
 * the loss) fill the gaps. A priority of the strategy stands in for the urgency of its unit, for
 * what leads to that unit as well. Run reuses the buffers of an earlier call.
 */
class ListScheduler {
 public:
  explicit ListScheduler(int32_t contention_permille) : streams_(contention_permille) {}
  /*! \brief Schedules; returns the makespan that Simulate would find for the order. */
  Nanoseconds Run(const UnitGraph& units, const std::vector<Nanoseconds>& durations);
  /*! \brief Units of the last Run in emitted order. */
  const std::vector<int32_t>& order() const { return order_; }
  /*! \brief The same as representatives. */
  std::vector<int32_t> RepresentativeOrder(const UnitGraph& units) const;

 private:
  void RankUnits(const UnitGraph& units);
  void MakeReady(const UnitGraph& units, int32_t unit);
  void Finish(const UnitGraph& units, int32_t unit);
  void FinishBucketsUntil(const UnitGraph& units, Nanoseconds now);
  void IssueBuckets(const UnitGraph& units, const std::vector<Nanoseconds>& durations);
  void Issue(const UnitGraph& units, const std::vector<Nanoseconds>& durations, int32_t unit);

  Streams streams_;
  std::vector<int32_t> order_;
  std::vector<int32_t> urgency_;
  std::vector<int32_t> num_missing_;
  std::vector<uint64_t> ready_; /*!< min-heap of (urgency, representative) of compute units */
  std::vector<std::pair<Nanoseconds, int32_t>> ready_buckets_; /*!< (ready time, unit) */
  std::vector<int32_t> in_flight_; /*!< buckets in start order, from next_end_ on unfinished */
  size_t next_end_ = 0;
};

}  // namespace disco_fuse

#endif  // DISCO_FUSE_SIMULATE_SCHEDULE_H_
