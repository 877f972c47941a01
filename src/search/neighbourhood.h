#ifndef DISCO_FUSE_SEARCH_NEIGHBOURHOOD_H_
#define DISCO_FUSE_SEARCH_NEIGHBOURHOOD_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "cost/unit_costs.h"
#include "search/evaluator.h"
#include "simulate/reschedule.h"
#include "strategy/grouping.h"
#include "strategy/live_units.h"

namespace disco_fuse {

/*!
 * \brief Orders and makespans of strategies near a common base: what Evaluator finds, much faster.
 *
 *     Settle(base)     base: units, prices, schedule
 *     Price({a, b})    a: the units that differ, priced        b: the same
 *     Schedule(0)      base's schedule as far as it is that of a, the rest anew
 *
 * The groupings given to Price must stay as they are until they have been scheduled.
 */
class Neighbourhood {
 public:
  Neighbourhood(const OpGraph& graph, const CostModel& model, const Cluster& cluster);

  /*! \brief Moves the base, from wherever it is, and returns its makespan. */
  Nanoseconds Settle(const Grouping& base);
  /*! \brief Prices the kernels of all groupings with at most one call of the cost model. */
  void Price(const std::vector<const Grouping*>& groupings);
  /*! \brief The makespan of the i-th grouping that was priced last. */
  Nanoseconds Schedule(size_t i);
  /*! \brief Its representatives in emitted order; valid until the next call. */
  const std::vector<int32_t>& Order(size_t i);
  /*! \brief Kernels whose time was needed so far, and the different ones among them. */
  int64_t num_looked_up() const { return num_looked_up_; }
  int64_t num_priced() const { return costs_.num_priced(); }

 private:
  struct Slot {
    const Grouping* grouping;
    bool is_scheduled;
    Nanoseconds makespan;                               /*!< once it is scheduled */
    std::vector<std::pair<int32_t, int64_t>> durations; /*!< units that the base prices otherwise */
    std::vector<std::pair<int32_t, Hash128>> missing;   /*!< units that are not priced yet */
  };

  void PriceUnits(const Grouping& grouping, Slot* slot);
  void PriceMissing(size_t num_slots);
  void Apply(Slot* slot);
  void MoveAndRun(size_t i, bool in_full);
  void Run(size_t i, bool in_full);

  const OpGraph* graph_;
  UnitCosts costs_;
  LiveUnits units_;
  Rescheduler rescheduler_;
  std::vector<int64_t> durations_; /*!< of the base's units, by name */
  std::vector<Slot> slots_;
  std::vector<Group> groups_;     /*!< to be priced */
  std::vector<Hash128> contents_; /*!< of groups_ */
  int64_t num_looked_up_ = 0;
};

}  // namespace disco_fuse

#endif  // DISCO_FUSE_SEARCH_NEIGHBOURHOOD_H_
