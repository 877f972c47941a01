#ifndef DISCO_FUSE_COST_MEASURED_COST_MODEL_H_
#define DISCO_FUSE_COST_MEASURED_COST_MODEL_H_

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cost/cost_model.h"
#include "graph/hash.h"

namespace disco_fuse {

/*!
 * \brief Equal for groups that are the same kernel, wherever in a graph they are.
 *
 *     layer 1   3 --> 4 --> 5          layer 2   13 --> 14 --> 15
 *               reads 1 and 2                    reads 11 and 12        one signature
 *
 * It holds the ops' own signatures, the edges between members, which values from outside are the
 * same, and what leaves the group.
 */
Hash128 GroupSignature(const OpGraph& graph, const Group& group);

/*! \brief Measured times where there are some, else those of another model. */
class MeasuredCostModel : public CostModel {
 public:
  /*! \brief By GroupSignature: the time of a group, launch included. */
  using Times = std::unordered_map<Hash128, Nanoseconds, Hash128Key>;

  MeasuredCostModel(std::shared_ptr<const CostModel> base, Times times)
      : base_(std::move(base)), times_(std::move(times)) {}
  const std::string& name() const override { return base_->name(); }
  bool thread_safe() const override { return base_->thread_safe(); }
  std::vector<Nanoseconds> Predict(const OpGraph& graph,
                                   const std::vector<Group>& groups) const override;

 private:
  std::shared_ptr<const CostModel> base_;
  Times times_;
};

}  // namespace disco_fuse

#endif  // DISCO_FUSE_COST_MEASURED_COST_MODEL_H_
