#ifndef DISCO_FUSE_COST_CALLBACK_COST_MODEL_H_
#define DISCO_FUSE_COST_CALLBACK_COST_MODEL_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cost/cost_model.h"

namespace disco_fuse {

/*! \brief A cost model that lives elsewhere (in Python, in a test) and answers in microseconds. */
class CallbackCostModel : public CostModel {
 public:
  using Callback = std::function<std::vector<double>(const OpGraph&, const std::vector<Group>&)>;
  CallbackCostModel(std::string name, Callback callback)
      : name_(std::move(name)), callback_(std::move(callback)) {}
  const std::string& name() const override { return name_; }
  std::vector<Nanoseconds> Predict(const OpGraph& graph,
                                   const std::vector<Group>& groups) const override {
    std::vector<double> times_us = callback_(graph, groups);
    CheckCount(times_us.size(), groups, name_, graph);
    std::vector<Nanoseconds> times(groups.size());
    for (size_t i = 0; i < groups.size(); ++i) {
      times[i] = ToNanoseconds(times_us[i], name_, graph, groups[i]);
    }
    return times;
  }

 private:
  std::string name_;
  Callback callback_;
};

}  // namespace disco_fuse

#endif  // DISCO_FUSE_COST_CALLBACK_COST_MODEL_H_
