#include <tvm/ffi/reflection/registry.h>

#include <string>
#include <vector>

#include "ffi/convert.h"
#include "strategy/edit.h"
#include "strategy/strategy.h"
#include "strategy/unit_graph.h"

namespace disco_fuse {

FusionLimits ToLimits(const Fields& fields) {
  FusionLimits limits;
  limits.max_group_ops = fields.at("max_group_ops").cast<int32_t>();
  limits.max_group_args = fields.at("max_group_args").cast<int32_t>();
  limits.bucket_neighbours =
      static_cast<BucketNeighbours>(fields.at("bucket_neighbours").cast<int32_t>());
  return limits;
}

std::vector<Edit> ToEdits(ffi::TensorView rows) {
  std::vector<int32_t> flat = ToVector<int32_t>(rows);
  std::vector<Edit> edits;
  for (size_t i = 0; i + 2 < flat.size(); i += 3) {
    edits.push_back({static_cast<EditKind>(flat[i]), flat[i + 1], flat[i + 2]});
  }
  return edits;
}

namespace {

std::vector<int32_t> Flatten(const std::vector<Copy>& copies) {
  std::vector<int32_t> flat;
  for (const Copy& copy : copies) {
    flat.push_back(copy.op);
    flat.push_back(copy.group);
  }
  return flat;
}

std::vector<int32_t> Flatten(const std::vector<Priority>& priorities) {
  std::vector<int32_t> flat;
  for (const Priority& given : priorities) {
    flat.push_back(given.op);
    flat.push_back(given.rank);
  }
  return flat;
}

StrategyRef CreateStrategy(OpGraphRef graph, Fields limits, ffi::TensorView labels,
                           ffi::TensorView copies, ffi::TensorView order,
                           ffi::TensorView priorities) {
  std::vector<int32_t> flat = ToVector<int32_t>(copies);
  std::vector<Copy> pairs;
  for (size_t i = 0; i + 1 < flat.size(); i += 2) pairs.push_back({flat[i], flat[i + 1]});
  flat = ToVector<int32_t>(priorities);
  std::vector<Priority> given;
  for (size_t i = 0; i + 1 < flat.size(); i += 2) given.push_back({flat[i], flat[i + 1]});
  return Translate([&] {
    return StrategyRef(Strategy::Create(graph->graph, ToLimits(limits), ToVector<int32_t>(labels),
                                        pairs, ToVector<int32_t>(order), given));
  });
}

StrategyRef ReplayEdits(OpGraphRef graph, Fields limits, StrategyRef start, ffi::TensorView edits) {
  std::vector<Edit> list = ToEdits(edits);
  return Translate(
      [&] { return StrategyRef(Replay(graph->graph, ToLimits(limits), start->strategy, list)); });
}

ffi::String CheckEdit(OpGraphRef graph, Fields limits, StrategyRef strategy, ffi::TensorView edit) {
  Grouping grouping(graph->graph);
  grouping.Load(strategy->strategy);
  return ffi::String(ApplyEdit(ToLimits(limits), ToEdits(edit).at(0), &grouping).reason());
}

/*! \brief Representatives, kinds, members and outputs (offsets, values) in emitted order. */
ffi::Array<ffi::Tensor> ListUnits(OpGraphRef graph, StrategyRef strategy) {
  Grouping grouping(graph->graph);
  grouping.Load(strategy->strategy);
  UnitGraph units;
  units.Build(grouping);
  std::vector<int32_t> kinds, member_begin{0}, members, output_begin{0}, outputs;
  for (int32_t unit = 0; unit < units.num_units(); ++unit) {
    kinds.push_back(static_cast<int32_t>(units.kind(unit)));
    for (int32_t op : units.members(unit)) members.push_back(op);
    for (int32_t op : units.outputs(unit)) outputs.push_back(op);
    member_begin.push_back(static_cast<int32_t>(members.size()));
    output_begin.push_back(static_cast<int32_t>(outputs.size()));
  }
  return {ToTensor(strategy->strategy.order()),
          ToTensor(kinds),
          ToTensor(member_begin),
          ToTensor(members),
          ToTensor(output_begin),
          ToTensor(outputs)};
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::ObjectDef<StrategyObj>();
  refl::GlobalDef()
      .def("disco_fuse.strategy.create", CreateStrategy)
      .def("disco_fuse.strategy.unfused",
           [](OpGraphRef graph) { return StrategyRef(Strategy::Unfused(graph->graph)); })
      .def("disco_fuse.strategy.replay", ReplayEdits)
      .def("disco_fuse.strategy.check", CheckEdit)
      .def("disco_fuse.strategy.units", ListUnits)
      .def("disco_fuse.strategy.group_of",
           [](StrategyRef s) { return ToTensor(s->strategy.group_of()); })
      .def("disco_fuse.strategy.duplicated",
           [](StrategyRef s) { return ToTensor(Flatten(s->strategy.duplicated())); })
      .def("disco_fuse.strategy.priorities",
           [](StrategyRef s) { return ToTensor(Flatten(s->strategy.priorities())); })
      .def("disco_fuse.strategy.order", [](StrategyRef s) { return ToTensor(s->strategy.order()); })
      .def("disco_fuse.strategy.hash",
           [](StrategyRef s) { return ffi::String(ToHex(s->strategy.hash())); });
}

}  // namespace disco_fuse
