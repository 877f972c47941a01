#ifndef DISCO_FUSE_SEARCH_EVALUATOR_H_
#define DISCO_FUSE_SEARCH_EVALUATOR_H_

#include <cstdint>
#include <vector>

#include "cost/allreduce_model.h"
#include "cost/cost_model.h"
#include "cost/unit_costs.h"
#include "simulate/schedule.h"
#include "strategy/grouping.h"
#include "strategy/unit_graph.h"

namespace disco_fuse {

/*! \brief What a makespan depends on besides the strategy and the kernels. */
struct Cluster {
  AllReduceModel allreduce;
  int32_t contention_permille = 1000;
};

/*! \brief Grouping -> order and makespan, reusing buffers and prices between calls. */
class Evaluator {
 public:
  Evaluator(const OpGraph& graph, const CostModel& model, const Cluster& cluster)
      : costs_(graph, model, cluster.allreduce), scheduler_(cluster.contention_permille) {}

  /*! \brief Prices the kernels of all groupings with one call of the cost model. */
  void Price(const std::vector<const Grouping*>& groupings);
  /*! \brief Schedules the i-th grouping that was priced last. */
  Nanoseconds Schedule(size_t i) { return scheduler_.Run(slots_[i].units, slots_[i].durations); }
  /*! \brief Representatives in the order of the last Schedule(i). */
  std::vector<int32_t> Order(size_t i) const {
    return scheduler_.RepresentativeOrder(slots_[i].units);
  }
  const UnitGraph& units(size_t i) const { return slots_[i].units; }
  const std::vector<Nanoseconds>& durations(size_t i) const { return slots_[i].durations; }

 private:
  struct Slot {
    UnitGraph units;
    std::vector<Nanoseconds> durations;
  };
  UnitCosts costs_;
  ListScheduler scheduler_;
  std::vector<Slot> slots_;
};

}  // namespace disco_fuse

#endif  // DISCO_FUSE_SEARCH_EVALUATOR_H_
