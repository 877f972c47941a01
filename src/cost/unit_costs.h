#ifndef DISCO_FUSE_COST_UNIT_COSTS_H_
#define DISCO_FUSE_COST_UNIT_COSTS_H_

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "cost/allreduce_model.h"
#include "cost/cost_model.h"
#include "strategy/unit_graph.h"

namespace disco_fuse {

/*! \brief Durations of units; every different kernel is priced once. */
class UnitCosts {
 public:
  UnitCosts(const OpGraph& graph, const CostModel& model, const AllReduceModel& allreduce);

  /*! \brief A strategy whose units are to be priced and where to put the result. */
  struct Request {
    const UnitGraph* units;
    std::vector<Nanoseconds>* durations; /*!< one per unit */
  };
  /*! \brief Asks the cost model at most once, for all kernels it has not seen yet. */
  void Price(const std::vector<Request>& requests);
  /*! \brief The duration of a kernel or library call, if its content was priced before. */
  bool Find(const Hash128& content, Nanoseconds* duration) const {
    auto it = memo_.find(content);
    if (it == memo_.end()) return false;
    *duration = it->second;
    return true;
  }
  /*! \brief Asks the cost model for `groups`, of the given contents, which Find then knows. */
  void Predict(const std::vector<Group>& groups, const std::vector<Hash128>& contents);
  Nanoseconds BucketTime(int64_t bytes) const { return allreduce_.Time(bytes); }
  /*! \brief Different kernels that the cost model was asked for. */
  int64_t num_priced() const { return static_cast<int64_t>(memo_.size()); }

 private:
  bool Lookup(const UnitGraph& units, int32_t unit, Nanoseconds* duration);

  const OpGraph* graph_;
  const CostModel* model_;
  AllReduceModel allreduce_;
  std::unordered_map<Hash128, Nanoseconds, Hash128Key> memo_;
  /*! Per representative the last kernel of that name: most kernels stay from candidate to
   * candidate, and this spares them the hash table. */
  struct Recent {
    Hash128 content;
    Nanoseconds duration{0};
  };
  std::vector<Recent> recent_;
};

}  // namespace disco_fuse

#endif  // DISCO_FUSE_COST_UNIT_COSTS_H_
