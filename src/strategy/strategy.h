#ifndef DISCO_FUSE_STRATEGY_STRATEGY_H_
#define DISCO_FUSE_STRATEGY_STRATEGY_H_

#include <cstdint>
#include <vector>

#include "graph/hash.h"
#include "graph/op_graph.h"
#include "strategy/legality.h"

namespace disco_fuse {

/*! \brief `op` is computed once more inside `group`. */
struct Copy {
  int32_t op;
  int32_t group;
  bool operator==(const Copy& other) const { return op == other.op && group == other.group; }
  bool operator<(const Copy& other) const {
    return op != other.op ? op < other.op : group < other.group;
  }
};

/*! \brief The unit that is home of `op` is as urgent as `rank` says, whatever it leads to. */
struct Priority {
  int32_t op;
  int32_t rank; /*!< on the scale of OpGraph::Urgency: an op id, never kNotUrgent */
  bool operator==(const Priority& other) const { return op == other.op && rank == other.rank; }
};

constexpr int32_t kNoPriority = -1;

/*!
 * \brief A complete choice: which ops form a kernel, which gradients a bucket, and in which order.
 *
 * Canonical: a group is named by its representative, the smallest op whose home it is; every op has
 * exactly one home, which is where readers outside the group take its value from; copies that
 * nobody reads do not exist; a unit has one priority or none. Equal choices are therefore equal
 * values.
 */
class Strategy {
 public:
  /*! \brief Every op alone, in topological order. */
  static Strategy Unfused(const OpGraph& graph);
  /*!
   * \brief Checks and canonicalises a choice that was made elsewhere.
   * \param labels One label per op; ops of equal label share a group (allreduce ops: a bucket).
   * \param copies Additional (op, label) pairs.
   * \param order Canonical representatives in emitted order, or empty for a topological order.
   * \param priorities Of any ops; of several for one unit the most urgent counts.
   * \throws std::invalid_argument with the reason of the rule that is violated.
   */
  static Strategy Create(const OpGraph& graph, const FusionLimits& limits,
                         const std::vector<int32_t>& labels, const std::vector<Copy>& copies,
                         const std::vector<int32_t>& order,
                         const std::vector<Priority>& priorities = {});
  /*! \brief For callers that hold canonical parts already. */
  Strategy(std::vector<int32_t> group_of, std::vector<Copy> duplicated, std::vector<int32_t> order,
           std::vector<Priority> priorities = {});
  /*! \brief The same for callers that know the hash as well. */
  Strategy(std::vector<int32_t> group_of, std::vector<Copy> duplicated, std::vector<int32_t> order,
           std::vector<Priority> priorities, const Hash128& hash);

  const std::vector<int32_t>& group_of() const { return group_of_; }
  /*! \brief Sorted by op, then group. */
  const std::vector<Copy>& duplicated() const { return duplicated_; }
  /*! \brief Representatives of all units: every unit once, after the units it depends on. */
  const std::vector<int32_t>& order() const { return order_; }
  /*! \brief Urgencies other than the derived ones, by representative, ascending. */
  const std::vector<Priority>& priorities() const { return priorities_; }
  /*! \brief Hash of grouping and priorities; the order follows from them and from the costs. */
  const Hash128& hash() const { return hash_; }
  bool operator==(const Strategy& other) const {
    return group_of_ == other.group_of_ && duplicated_ == other.duplicated_ &&
           order_ == other.order_ && priorities_ == other.priorities_;
  }

 private:
  std::vector<int32_t> group_of_;
  std::vector<Copy> duplicated_;
  std::vector<int32_t> order_;
  std::vector<Priority> priorities_;
  Hash128 hash_;
};

/*! \brief The hash that a strategy of these parts without priorities would have. */
Hash128 HashGrouping(const std::vector<int32_t>& group_of, const std::vector<Copy>& duplicated);
/*! \brief The same with priorities, if there are any. */
Hash128 WithPriorities(const Hash128& grouping, const std::vector<Priority>& priorities);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_STRATEGY_STRATEGY_H_
