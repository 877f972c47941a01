#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cost/gnn_inference.h"
#include "cost/group_features.h"
#include "cost/measured_cost_model.h"
#include "ffi/convert.h"

namespace disco_fuse {
namespace {

/*!
 * \brief Features of groups as flat tensors.
 *
 * \param roofline A roofline model of the graph, without launch.
 * \return Node features, offsets of each group's nodes, producers, consumers (of data edges, as
 *         indices of members), offsets of each group's edges, global features.
 */
ffi::Array<ffi::Tensor> ReadFeatures(CostModelRef roofline, OpGraphRef graph,
                                     ffi::TensorView op_begin, ffi::TensorView ops,
                                     ffi::TensorView output_begin, ffi::TensorView outputs) {
  const auto* model = dynamic_cast<const RooflineCostModel*>(roofline->model.get());
  if (model == nullptr) TVM_FFI_THROW(TypeError) << "features are read with a roofline model";
  std::vector<Group> groups = ToGroups(op_begin, ops, output_begin, outputs);
  std::vector<float> nodes, globals;
  std::vector<int32_t> node_begin{0}, edge_begin{0}, producer, consumer;
  Translate([&] {
    std::vector<double> op_times_us = OpTimesUs(graph->graph, *model);
    std::vector<Nanoseconds> kernels = model->Predict(graph->graph, groups);
    FeatureReader reader;
    GroupFeatures features;
    for (size_t i = 0; i < groups.size(); ++i) {
      double kernel_us = static_cast<double>(kernels[i].count()) / 1e3;
      reader.Read(graph->graph, groups[i], op_times_us, kernel_us, &features);
      nodes.insert(nodes.end(), features.nodes.begin(), features.nodes.end());
      globals.insert(globals.end(), features.globals.begin(), features.globals.end());
      producer.insert(producer.end(), features.producer.begin(), features.producer.end());
      consumer.insert(consumer.end(), features.consumer.begin(), features.consumer.end());
      node_begin.push_back(node_begin.back() + static_cast<int32_t>(groups[i].ops.size()));
      edge_begin.push_back(static_cast<int32_t>(producer.size()));
    }
  });
  return {ToTensor(nodes),    ToTensor(node_begin), ToTensor(producer),
          ToTensor(consumer), ToTensor(edge_begin), ToTensor(globals)};
}

/*! \brief `sizes`: layers, hidden, heads, dense. */
GnnNetwork ToNetwork(ffi::TensorView sizes, ffi::TensorView weights) {
  std::vector<int32_t> size = ToVector<int32_t>(sizes);
  return Translate(
      [&] { return GnnNetwork({size[0], size[1], size[2], size[3]}, ToVector<float>(weights)); });
}

/*! \brief The output of a network for one group, from the tensors of ReadFeatures. */
double RunGnn(ffi::TensorView sizes, ffi::TensorView weights, ffi::TensorView nodes,
              ffi::TensorView producer, ffi::TensorView consumer, ffi::TensorView globals) {
  GroupFeatures features{ToVector<float>(nodes), ToVector<int32_t>(producer),
                         ToVector<int32_t>(consumer), ToVector<float>(globals)};
  return ToNetwork(sizes, weights).Run(features);
}

/*! \brief `device`, `op_classes`, `shares` as for the roofline; `limits`: least and most output. */
CostModelRef MakeGnn(OpGraphRef graph, ffi::String name, ffi::TensorView device,
                     ffi::Array<ffi::String> op_classes, ffi::TensorView shares,
                     ffi::TensorView op_times_us, ffi::TensorView sizes, ffi::TensorView weights,
                     ffi::TensorView limits) {
  DeviceSpec spec = ToDevice(name, device, op_classes, shares);
  std::vector<double> limit = ToVector<double>(limits);
  return Translate([&] {
    return CostModelRef(
        std::make_unique<GnnCostModel>(graph->graph, spec, ToVector<double>(op_times_us),
                                       ToNetwork(sizes, weights), limit[0], limit[1]));
  });
}

/*! \brief `times_us`: of the groups, launch included; others cost what `base` says. */
CostModelRef MakeMeasured(CostModelRef base, OpGraphRef graph, ffi::TensorView op_begin,
                          ffi::TensorView ops, ffi::TensorView output_begin,
                          ffi::TensorView outputs, ffi::TensorView times_us) {
  std::vector<Group> groups = ToGroups(op_begin, ops, output_begin, outputs);
  std::vector<double> measured = ToVector<double>(times_us);
  return Translate([&] {
    CheckCount(measured.size(), groups, base->model->name(), graph->graph);
    MeasuredCostModel::Times times;
    for (size_t i = 0; i < groups.size(); ++i) {
      times[GroupSignature(graph->graph, groups[i])] =
          ToNanoseconds(measured[i], "measured", graph->graph, groups[i]);
    }
    // The reference keeps the base alive.
    auto owner = std::make_shared<CostModelRef>(base);
    std::shared_ptr<const CostModel> model(owner, base->model.get());
    return CostModelRef(std::make_unique<MeasuredCostModel>(model, std::move(times)));
  });
}

ffi::Array<ffi::String> Names(const std::vector<std::string>& names) {
  ffi::Array<ffi::String> result;
  for (const std::string& name : names) result.push_back(name);
  return result;
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef()
      .def("disco_fuse.cost.feature_version", []() { return kFeatureVersion; })
      .def("disco_fuse.cost.node_feature_names", []() { return Names(NodeFeatureNames()); })
      .def("disco_fuse.cost.global_feature_names", []() { return Names(GlobalFeatureNames()); })
      .def("disco_fuse.cost.read_features", ReadFeatures)
      .def("disco_fuse.cost.run_gnn", RunGnn)
      .def("disco_fuse.cost.gnn", MakeGnn)
      .def("disco_fuse.cost.measured", MakeMeasured);
}

}  // namespace disco_fuse
