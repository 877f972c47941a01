#include "search/compute_floor.h"

#include <algorithm>
#include <utility>

#include "search/forced_charges.h"
#include "search/forced_nests.h"
#include "search/forced_traffic.h"
#include "strategy/legality.h"

namespace disco_fuse {
namespace {

/*! \brief Time of each op as far as no strategy changes it. */
struct Floors {
  std::vector<bool> barrier;
  std::vector<Nanoseconds> anywhere; /*!< in any unit that computes the op */
  std::vector<Nanoseconds> home;
};

Floors FloorsOf(const OpGraph& graph, const CostModel& model) {
  Floors floors;
  floors.barrier.assign(graph.num_ops(), false);
  floors.anywhere.assign(graph.num_ops(), Nanoseconds(0));
  floors.home = floors.anywhere;
  std::vector<Group> alone;
  for (int32_t op = 0; op < graph.num_ops(); ++op) {
    Span<int32_t> alone_op(&op, 1);
    floors.barrier[op] =
        !CheckKind(graph, alone_op).allowed() || !CheckPattern(graph, alone_op).allowed();
    if (graph.IsAllReduce(op)) continue;
    if (floors.barrier[op]) {
      alone.push_back({{op}, {op}});
      continue;
    }
    floors.home[op] = model.HomeFloor(graph, op);
    bool copied = CheckDuplicable(graph, op).allowed();
    floors.anywhere[op] = copied ? model.Floor(graph, op) : floors.home[op];
  }
  if (alone.empty()) return floors;
  std::vector<Nanoseconds> times = model.Predict(graph, alone);
  CheckCount(times.size(), alone, model.name(), graph);
  for (size_t i = 0; i < alone.size(); ++i) {
    int32_t op = alone[i].ops[0];
    floors.home[op] = floors.anywhere[op] = times[i];
  }
  return floors;
}

/*! \brief Per op: the most kernels of which no two can be one, on a path that ends with the op. */
std::vector<int32_t> KernelsOnPath(const OpGraph& graph, const std::vector<bool>& barrier) {
  std::vector<int32_t> kernels(graph.num_ops(), 0);
  for (int32_t op = 0; op < graph.num_ops(); ++op) {
    kernels[op] = barrier[op] ? 0 : 1;
    for (const DataEnd& end : graph.producers(op)) {
      int32_t opened = !barrier[op] && barrier[end.op] ? 1 : 0;
      kernels[op] = std::max(kernels[op], kernels[end.op] + opened);
    }
  }
  return kernels;
}

/*! \brief Per op the only allreduce op that it leads to, or kNoAllReduce, or kSeveralAllReduces. */
std::vector<int32_t> OnlyAllReduce(const OpGraph& graph) {
  std::vector<int32_t> only(graph.num_ops(), kNoAllReduce);
  for (int32_t op = graph.num_ops() - 1; op >= 0; --op) {
    auto add = [&](int32_t other) {
      if (other == kNoAllReduce || other == only[op]) return;
      only[op] = only[op] == kNoAllReduce ? other : kSeveralAllReduces;
    };
    for (const DataEnd& end : graph.consumers(op)) {
      if (graph.IsAllReduce(end.op)) add(end.op);
      add(only[end.op]);
    }
  }
  return only;
}

/*! \brief Adds what comes before one AllReduce; ids are topological, so one pass back suffices. */
void AddBefore(const OpGraph& graph, const Floors& floors, const std::vector<int32_t>& only,
               int32_t allreduce, GradientFloor* floor) {
  enum : uint8_t { kOutside, kSomewhere, kAtHome };
  std::vector<uint8_t> needed(allreduce + 1, kOutside);
  needed[allreduce] = kSomewhere;
  for (int32_t op = allreduce; op >= 0; --op) {
    if (needed[op] == kOutside) continue;
    for (const DataEnd& end : graph.producers(op)) {
      uint8_t where = floors.barrier[op] ? kAtHome : kSomewhere;
      needed[end.op] = std::max(needed[end.op], where);
    }
    Nanoseconds time = needed[op] == kAtHome ? floors.home[op] : floors.anywhere[op];
    (only[op] == allreduce ? floor->own : floor->shared) += time;
  }
}

/*! \brief Adds what waits for one AllReduce, with one launch if there is a kernel among it. */
Nanoseconds After(const OpGraph& graph, const Floors& floors, Nanoseconds launch,
                  int32_t allreduce) {
  std::vector<bool> waits(graph.num_ops(), false);
  waits[allreduce] = true;
  Nanoseconds sum(0);
  bool has_kernel = false;
  for (int32_t op = allreduce; op < graph.num_ops(); ++op) {
    if (!waits[op]) continue;
    sum += floors.home[op];
    has_kernel = has_kernel || !floors.barrier[op];
    for (const DataEnd& end : graph.consumers(op)) waits[end.op] = true;
  }
  return has_kernel ? sum + launch : sum;
}

/*! \brief All charges: traffic, and nests at `nest` each. */
ChargedTime Charged(const OpGraph& graph, const CostModel& model, const std::vector<bool>& barrier,
                    const std::vector<int32_t>& only, Nanoseconds nest) {
  NestRegions regions(graph, barrier);
  std::vector<Charge> charges = ForcedNests(graph, regions, nest);
  for (Charge& charge : ForcedTraffic(graph, model, barrier, regions)) {
    charges.push_back(std::move(charge));
  }
  return AddUp(graph, barrier, only, std::move(charges));
}

}  // namespace

ComputeFloor FindComputeFloor(const OpGraph& graph, const CostModel& model) {
  Floors floors = FloorsOf(graph, model);
  std::vector<int32_t> kernels = KernelsOnPath(graph, floors.barrier);
  std::vector<int32_t> only = OnlyAllReduce(graph);
  Nanoseconds launch = model.LaunchFloor();
  Nanoseconds nest = std::min(launch, model.NestFloor());
  ChargedTime charged = Charged(graph, model, floors.barrier, only, nest);
  ComputeFloor result;
  int32_t most_kernels = 0;
  for (int32_t op = 0; op < graph.num_ops(); ++op) {
    result.total += floors.home[op];
    most_kernels = std::max(most_kernels, kernels[op]);
  }
  result.total += most_kernels * (launch - nest) + charged.total;
  for (size_t i = 0; i < graph.allreduce_ops().size(); ++i) {
    int32_t allreduce = graph.allreduce_ops()[i];
    GradientFloor floor{graph.op(allreduce).bytes_written,
                        kernels[allreduce] * (launch - nest) + charged.shared[i], charged.own[i],
                        After(graph, floors, launch, allreduce)};
    AddBefore(graph, floors, only, allreduce, &floor);
    result.gradients.push_back(floor);
  }
  return result;
}

}  // namespace disco_fuse
