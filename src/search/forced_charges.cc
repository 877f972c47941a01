#include "search/forced_charges.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace disco_fuse {
namespace {

/*! \brief Bounds the time of one lower bound to a few seconds: beyond it charges are left out. */
constexpr int64_t kMaxSteps = 200000000;
constexpr size_t kSetsAtOnce = 1024;

int32_t FirstOp(const Charge& charge) {
  int32_t first = std::numeric_limits<int32_t>::max();
  for (const ChainPart& part : charge.sums[0].parts) {
    first = std::min(first, part.chain.ops[0].op);
  }
  return first;
}

/*! \brief The only allreduce op that the ops of a charge lead to, or a negative number. */
int32_t OnlyAllReduceOf(const Charge& charge, const std::vector<int32_t>& only) {
  int32_t result = kNoAllReduce;
  for (const ChainPart& part : charge.sums[0].parts) {
    for (const ChainOp& op : part.chain.ops) {
      int32_t other = only[op.op];
      if (other == kNoAllReduce || other == result) continue;
      result = result == kNoAllReduce ? other : kSeveralAllReduces;
    }
  }
  return result;
}

/*! \param length Of a chain: all of it, or as far as it lies before an allreduce op. */
template <typename Length>
Nanoseconds TimeOf(const Charge& charge, Length length) {
  int32_t places = 0;
  bool any = false;
  for (const ChainSum& sum : charge.sums) {
    int32_t number = 0;
    for (const ChainPart& part : sum.parts) number += std::max(0, length(part.chain) - part.less);
    any = any || number > 0;
    places = std::max(places, number - sum.less);
  }
  return any ? places * charge.each + charge.once : Nanoseconds(0);
}

/*! \brief Adds the time of one charge whose chains are known. */
void Add(const OpGraph& graph, const std::vector<int32_t>& only, const Charge& charge,
         ChargedTime* time) {
  time->total += TimeOf(charge, [](const ChainSet& chain) { return chain.longest; });
  int32_t single = OnlyAllReduceOf(charge, only);
  for (size_t i = 0; i < time->shared.size(); ++i) {
    auto before = [&](const ChainSet& chain) { return static_cast<int32_t>(chain.before[i]); };
    bool is_own = graph.allreduce_ops()[i] == single;
    (is_own ? time->own : time->shared)[i] += TimeOf(charge, before);
  }
}

}  // namespace

ChargedTime AddUp(const OpGraph& graph, const std::vector<bool>& barrier,
                  const std::vector<int32_t>& only, std::vector<Charge> charges) {
  // Sets that begin late need less of the graph: they go together.
  std::stable_sort(charges.begin(), charges.end(),
                   [](const Charge& a, const Charge& b) { return FirstOp(a) > FirstOp(b); });
  ChargedTime time;
  time.shared.assign(graph.allreduce_ops().size(), Nanoseconds(0));
  time.own = time.shared;
  int64_t max_steps = kMaxSteps;
  size_t first = 0;
  while (first < charges.size()) {
    std::vector<ChainSet*> sets;
    size_t last = first;
    for (; last < charges.size() && sets.size() < kSetsAtOnce; ++last) {
      for (ChainSum& sum : charges[last].sums) {
        for (ChainPart& part : sum.parts) sets.push_back(&part.chain);
      }
    }
    max_steps -= FindLongestChains(graph, barrier, max_steps, sets);
    for (; first < last; ++first) {
      Add(graph, only, charges[first], &time);
      charges[first] = {};  // or every gradient would be kept for every chain
    }
  }
  return time;
}

}  // namespace disco_fuse
