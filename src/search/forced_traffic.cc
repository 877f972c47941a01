#include "search/forced_traffic.h"

#include <algorithm>
#include <map>
#include <utility>

#include "strategy/legality.h"

namespace disco_fuse {
namespace {

constexpr int32_t kNoFamily = -1;
constexpr int32_t kExternal = -1;
constexpr int32_t kNoReader = -1;
/*! A value joins only a family of which it keeps this share: a matter of tightness, not of truth.
 */
constexpr double kShareKept = 0.7;

struct Reader {
  int32_t op;
  int64_t bytes;
};

struct Family {
  int32_t root; /*!< op, or kExternal */
  Nanoseconds cheapest;
  std::vector<int32_t> readers; /*!< sorted and unique in the end */
  std::vector<int32_t> members; /*!< ops */
  int32_t only_reader;          /*!< of a root in memory, whose floor has the reading */
};

/*! \brief Sorts values into families, ops in topological order. */
class Families {
 public:
  Families(const OpGraph& graph, const CostModel& model, const std::vector<bool>& barrier)
      : graph_(graph), model_(model), barrier_(barrier), of_op_(graph.num_ops(), kNoFamily) {
    AddExternal();
    for (int32_t op = 0; op < graph.num_ops(); ++op) AddOp(op);
    for (Family& family : families_) {
      std::sort(family.readers.begin(), family.readers.end());
      family.readers.erase(std::unique(family.readers.begin(), family.readers.end()),
                           family.readers.end());
    }
  }
  const std::vector<Family>& families() const { return families_; }

 private:
  Nanoseconds Cheapest(const std::vector<Reader>& readers) const {
    Nanoseconds time = Nanoseconds::max();
    for (const Reader& reader : readers) {
      time = std::min(time, model_.TrafficFloor(graph_, reader.op, reader.bytes));
    }
    return time;
  }

  void Found(int32_t root, const std::vector<Reader>& readers, int32_t* family) {
    Nanoseconds cheapest = Cheapest(readers);
    if (readers.empty() || cheapest <= Nanoseconds(0)) return;
    bool in_memory = root == kExternal || barrier_[root];
    *family = static_cast<int32_t>(families_.size());
    int32_t only_reader = in_memory && readers.size() == 1 ? readers[0].op : kNoReader;
    families_.push_back({root, cheapest, {}, {}, only_reader});
    Join(*family, root, readers, cheapest);
  }

  void Join(int32_t index, int32_t op, const std::vector<Reader>& readers, Nanoseconds cheapest) {
    Family& family = families_[index];
    family.cheapest = std::min(family.cheapest, cheapest);
    for (const Reader& reader : readers) family.readers.push_back(reader.op);
    if (op != kExternal) family.members.push_back(op);
  }

  void AddExternal() {
    std::vector<std::vector<Reader>> readers;
    for (int32_t op = 0; op < graph_.num_ops(); ++op) {
      for (const ValueRead& read : graph_.external_reads(op)) {
        if (static_cast<size_t>(read.value) >= readers.size()) readers.resize(read.value + 1);
        if (!barrier_[op]) readers[read.value].push_back({op, read.bytes});
      }
    }
    of_value_.assign(readers.size(), kNoFamily);
    for (size_t value = 0; value < readers.size(); ++value) {
      Found(kExternal, readers[value], &of_value_[value]);
    }
  }

  void AddOp(int32_t op) {
    std::vector<Reader> readers;
    for (const DataEnd& end : graph_.consumers(op)) {
      if (!barrier_[end.op]) readers.push_back({end.op, end.bytes});
    }
    if (barrier_[op] || !CheckDuplicable(graph_, op).allowed()) {
      Found(op, readers, &of_op_[op]);
      return;
    }
    if (readers.empty()) return;
    Nanoseconds cheapest = Cheapest(readers);
    int32_t family = ChooseFamily(op, cheapest);
    if (family == kNoFamily) return;
    of_op_[op] = family;
    Join(family, op, readers, cheapest);
  }

  /*! \brief The youngest family that `op` reads among those that lose little. */
  int32_t ChooseFamily(int32_t op, Nanoseconds cheapest) const {
    std::vector<int32_t> read;
    for (const DataEnd& end : graph_.producers(op)) read.push_back(of_op_[end.op]);
    for (const ValueRead& end : graph_.external_reads(op)) read.push_back(of_value_[end.value]);
    double most = 0;
    for (int32_t family : read) {
      if (family != kNoFamily) most = std::max(most, Ns(families_[family].cheapest));
    }
    int32_t youngest = kNoFamily;
    for (int32_t family : read) {
      if (family == kNoFamily) continue;
      double time = Ns(families_[family].cheapest);
      if (time < kShareKept * most || Ns(cheapest) < kShareKept * time) continue;
      youngest = std::max(youngest, family);
    }
    return youngest;
  }

  static double Ns(Nanoseconds time) { return static_cast<double>(time.count()); }

  const OpGraph& graph_;
  const CostModel& model_;
  const std::vector<bool>& barrier_;
  std::vector<Family> families_;
  std::vector<int32_t> of_op_;
  std::vector<int32_t> of_value_;
};

/*! \brief The least that writing a value of the family adds; 0 if the floor of an op has it. */
Nanoseconds LeastWrite(const OpGraph& graph, const CostModel& model,
                       const std::vector<bool>& barrier, const Family& family) {
  Nanoseconds least = Nanoseconds::max();
  for (int32_t op : family.members) {
    bool counted = graph.MustWrite(op);
    for (const DataEnd& end : graph.consumers(op)) counted = counted || barrier[end.op];
    if (counted) return Nanoseconds(0);
    least = std::min(least, model.TrafficFloor(graph, op, graph.op(op).bytes_written));
  }
  return least;
}

/*! \brief A chain of all readers, each in a kernel of its own. */
ChainSum InKernels(const Family& family, bool fused_root) {
  ChainSum sum{std::vector<ChainPart>(1), family.only_reader == kNoReader ? 0 : 1};
  ChainPart& part = sum.parts[0];
  part.less = fused_root ? 1 : 0;
  if (fused_root) part.chain.ops.push_back({family.root, false});
  for (int32_t reader : family.readers) part.chain.ops.push_back({reader, false});
  return sum;
}

/*! \brief Chains of the readers that are anchors, region by region. */
ChainSum InRegions(const NestRegions& regions, const Family& family, bool fused_root) {
  std::map<int32_t, ChainPart> parts;
  auto add = [&](int32_t op) { parts[regions.region(op)].chain.ops.push_back(regions.anchor(op)); };
  if (fused_root) {
    add(family.root);
    parts[regions.region(family.root)].less = 1;
  }
  for (int32_t reader : family.readers) {
    if (regions.is_anchor(reader)) add(reader);
  }
  ChainSum sum;
  if (parts.size() < 2) return sum;
  if (family.only_reader != kNoReader) {
    if (regions.is_anchor(family.only_reader)) {
      parts[regions.region(family.only_reader)].less = 1;
    } else {
      sum.less = 1;
    }
  }
  for (auto& [region, part] : parts) sum.parts.push_back(std::move(part));
  return sum;
}

}  // namespace

std::vector<Charge> ForcedTraffic(const OpGraph& graph, const CostModel& model,
                                  const std::vector<bool>& barrier, const NestRegions& regions) {
  std::vector<Charge> charges;
  Families values(graph, model, barrier);
  for (const Family& family : values.families()) {
    if (family.only_reader != kNoReader && family.readers.size() == 1) continue;
    bool fused_root = family.root != kExternal && !barrier[family.root];
    Charge charge{family.cheapest, Nanoseconds(0), {InKernels(family, fused_root)}};
    if (fused_root) charge.once = LeastWrite(graph, model, barrier, family);
    // A root that may be inlined is in several nests.
    if (!fused_root || regions.is_anchor(family.root)) {
      ChainSum sum = InRegions(regions, family, fused_root);
      if (!sum.parts.empty()) charge.sums.push_back(std::move(sum));
    }
    charges.push_back(std::move(charge));
  }
  return charges;
}

}  // namespace disco_fuse
