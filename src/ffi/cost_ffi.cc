#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cost/allreduce_model.h"
#include "cost/callback_cost_model.h"
#include "cost/loop_nests.h"
#include "cost/roofline.h"
#include "ffi/convert.h"

namespace disco_fuse {

AllReduceModel ToAllReduceModel(const Fields& fields) {
  AllReduceModel model;
  model.small_latency_us = fields.at("small_latency_us").cast<double>();
  model.small_us_per_byte = fields.at("small_us_per_byte").cast<double>();
  model.large_latency_us = fields.at("large_latency_us").cast<double>();
  model.large_us_per_byte = fields.at("large_us_per_byte").cast<double>();
  model.threshold_bytes = fields.at("threshold_bytes").cast<int64_t>();
  return model;
}

Cluster ToCluster(const Fields& fields) {
  return {ToAllReduceModel(fields.at("allreduce").cast<Fields>()),
          fields.at("contention_permille").cast<int32_t>()};
}

std::vector<Group> ToGroups(ffi::TensorView op_begin, ffi::TensorView ops,
                            ffi::TensorView output_begin, ffi::TensorView outputs) {
  std::vector<int32_t> op_at = ToVector<int32_t>(op_begin), all_ops = ToVector<int32_t>(ops);
  std::vector<int32_t> out_at = ToVector<int32_t>(output_begin);
  std::vector<int32_t> all_outputs = ToVector<int32_t>(outputs);
  std::vector<Group> groups;
  for (size_t i = 0; i + 1 < op_at.size(); ++i) {
    groups.push_back({{all_ops.begin() + op_at[i], all_ops.begin() + op_at[i + 1]},
                      {all_outputs.begin() + out_at[i], all_outputs.begin() + out_at[i + 1]}});
  }
  return groups;
}

DeviceSpec ToDevice(const ffi::String& name, ffi::TensorView device,
                    const ffi::Array<ffi::String>& op_classes, ffi::TensorView shares) {
  std::vector<double> numbers = ToVector<double>(device), share = ToVector<double>(shares);
  DeviceSpec spec{std::string(name), numbers[0], numbers[1], numbers[2], numbers[3]};
  for (size_t i = 0; i < op_classes.size(); ++i) {
    spec.efficiency[std::string(op_classes[i])] = {share[2 * i], share[2 * i + 1]};
  }
  return spec;
}

namespace {

/*! \brief Groups as four flat arrays: offsets and values of ops, offsets and values of outputs. */
struct FlatGroups {
  std::vector<int32_t> op_begin{0}, ops, output_begin{0}, outputs;

  explicit FlatGroups(const std::vector<Group>& groups) {
    for (const Group& group : groups) {
      ops.insert(ops.end(), group.ops.begin(), group.ops.end());
      outputs.insert(outputs.end(), group.outputs.begin(), group.outputs.end());
      op_begin.push_back(static_cast<int32_t>(ops.size()));
      output_begin.push_back(static_cast<int32_t>(outputs.size()));
    }
  }
};

CostModelRef MakeRoofline(OpGraphRef graph, ffi::String name, ffi::TensorView device,
                          ffi::Array<ffi::String> op_classes, ffi::TensorView shares,
                          ffi::TensorView op_times_us) {
  DeviceSpec spec = ToDevice(name, device, op_classes, shares);
  return Translate([&] {
    return CostModelRef(
        std::make_unique<RooflineCostModel>(graph->graph, spec, ToVector<double>(op_times_us)));
  });
}

/*! \brief `predict` gets the four arrays of FlatGroups and returns float64 microseconds. */
CostModelRef MakeCallback(ffi::String name, ffi::Function predict) {
  auto callback = [predict](const OpGraph&, const std::vector<Group>& groups) {
    FlatGroups flat(groups);
    ffi::Any result = predict(ToTensor(flat.op_begin), ToTensor(flat.ops),
                              ToTensor(flat.output_begin), ToTensor(flat.outputs));
    ffi::Tensor times_us = result.cast<ffi::Tensor>();
    return ToVector<double>(times_us);
  };
  return CostModelRef(std::make_unique<CallbackCostModel>(std::string(name), callback));
}

ffi::Tensor PredictUs(CostModelRef model, OpGraphRef graph, ffi::TensorView op_begin,
                      ffi::TensorView ops, ffi::TensorView output_begin, ffi::TensorView outputs) {
  std::vector<double> times_us;
  Translate([&] {
    std::vector<Group> groups = ToGroups(op_begin, ops, output_begin, outputs);
    for (Nanoseconds time : model->model->Predict(graph->graph, groups)) {
      times_us.push_back(static_cast<double>(time.count()) / 1000.0);
    }
  });
  return ToTensor(times_us);
}

ffi::Tensor CountNestsOf(OpGraphRef graph, ffi::TensorView op_begin, ffi::TensorView ops,
                         ffi::TensorView output_begin, ffi::TensorView outputs) {
  std::vector<int32_t> counts;
  for (const Group& group : ToGroups(op_begin, ops, output_begin, outputs)) {
    counts.push_back(CountNests(graph->graph, group));
  }
  return ToTensor(counts);
}

double AllReduceTimeUs(Fields fields, int64_t bytes) {
  return Translate([&] {
    AllReduceModel model = ToAllReduceModel(fields);
    model.Check();
    return static_cast<double>(model.Time(bytes).count()) / 1000.0;
  });
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::ObjectDef<CostModelObj>();
  refl::GlobalDef()
      .def("disco_fuse.cost.roofline", MakeRoofline)
      .def("disco_fuse.cost.callback", MakeCallback)
      .def("disco_fuse.cost.predict_us", PredictUs)
      .def("disco_fuse.cost.count_nests", CountNestsOf)
      .def("disco_fuse.cost.allreduce_time_us", AllReduceTimeUs);
}

}  // namespace disco_fuse
