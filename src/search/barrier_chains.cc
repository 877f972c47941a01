#include "search/barrier_chains.h"

#include <algorithm>
#include <array>
#include <limits>

namespace disco_fuse {
namespace {

constexpr size_t kLanes = 64; /*!< sets of one pass */

using Counts = std::array<uint8_t, kLanes>;

void Raise(Counts* to, const Counts& from) {
  for (size_t i = 0; i < kLanes; ++i) (*to)[i] = std::max((*to)[i], from[i]);
}

/*! \brief Chains on paths that end with one op, by what lies behind their last member. */
struct Ends {
  Counts closed; /*!< a barrier */
  Counts open;   /*!< none */
  Counts read;   /*!< none, as seen by a barrier that reads the op */
};

struct Entry {
  int32_t op;
  size_t lane;
  bool at_home;
};

class Pass {
 public:
  Pass(const OpGraph& graph, const std::vector<bool>& barrier)
      : graph_(graph), barrier_(barrier), ends_(graph.num_ops()) {}

  /*! \brief Follows sets[first] and up to 63 more; returns how many edges that took. */
  int64_t Run(const std::vector<ChainSet*>& sets, size_t first, size_t last) {
    entries_.clear();
    for (size_t i = first; i < last; ++i) {
      for (const ChainOp& op : sets[i]->ops) entries_.push_back({op.op, i - first, op.at_home});
    }
    std::stable_sort(entries_.begin(), entries_.end(),
                     [](const Entry& a, const Entry& b) { return a.op < b.op; });
    longest_.fill(0);
    next_ = 0;
    begin_ = entries_.empty() ? graph_.num_ops() : entries_[0].op;
    int64_t steps = 0;
    for (int32_t op = begin_; op < graph_.num_ops(); ++op) {
      Visit(op);
      steps += 1 + static_cast<int64_t>(graph_.producers(op).size());
    }
    Store(sets, first, last);
    return steps;
  }

 private:
  void Visit(int32_t op) {
    Ends& end = ends_[op];
    end = Ends{};
    for (const DataEnd& producer : graph_.producers(op)) {
      if (producer.op < begin_) continue;
      const Ends& before = ends_[producer.op];
      Raise(&end.closed, before.closed);
      Raise(&end.open, barrier_[op] ? before.read : before.open);
    }
    if (barrier_[op]) {
      Raise(&end.closed, end.open);
      end.open.fill(0);
      return;
    }
    end.read = end.open;
    for (; next_ < entries_.size() && entries_[next_].op == op; ++next_) Enter(entries_[next_]);
  }

  void Enter(const Entry& entry) {
    Ends& end = ends_[entry.op];
    uint8_t length = end.closed[entry.lane];
    if (length < std::numeric_limits<uint8_t>::max()) ++length;
    longest_[entry.lane] = std::max(longest_[entry.lane], length);
    end.read[entry.lane] = std::max(end.read[entry.lane], length);
    if (!entry.at_home) end.open[entry.lane] = std::max(end.open[entry.lane], length);
  }

  void Store(const std::vector<ChainSet*>& sets, size_t first, size_t last) const {
    for (size_t i = first; i < last; ++i) {
      sets[i]->longest = longest_[i - first];
      sets[i]->before.clear();
      for (int32_t op : graph_.allreduce_ops()) {
        sets[i]->before.push_back(op < begin_ ? 0 : ends_[op].closed[i - first]);
      }
    }
  }

  const OpGraph& graph_;
  const std::vector<bool>& barrier_;
  std::vector<Ends> ends_;
  std::vector<Entry> entries_;
  Counts longest_{};
  size_t next_ = 0;
  int32_t begin_ = 0;
};

}  // namespace

int64_t FindLongestChains(const OpGraph& graph, const std::vector<bool>& barrier, int64_t max_steps,
                          const std::vector<ChainSet*>& sets) {
  Pass pass(graph, barrier);
  int64_t steps = 0;
  for (size_t first = 0; first < sets.size(); first += kLanes) {
    size_t last = std::min(first + kLanes, sets.size());
    if (steps < max_steps) {
      steps += pass.Run(sets, first, last);
    } else {
      for (size_t i = first; i < last; ++i) {
        sets[i]->before.assign(graph.allreduce_ops().size(), 0);
      }
    }
  }
  return steps;
}

}  // namespace disco_fuse
