#ifndef DISCO_FUSE_STRATEGY_LIVE_UNITS_H_
#define DISCO_FUSE_STRATEGY_LIVE_UNITS_H_

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "graph/hash.h"
#include "graph/op_graph.h"
#include "strategy/grouping.h"
#include "strategy/unit_graph.h"

namespace disco_fuse {

/*!
 * \brief What UnitGraph says about a strategy, kept up to date from one strategy to the next.
 *
 *     home   before  0 0 2 3 3        what is looked at again: units [0] and [2], which changed,
 *            after   0 0 0 3 3        units that read them, units that they read
 *
 * A unit is named by its representative, so that it keeps its name while others come and go. On top
 * of UnitGraph there are urgencies (see ListScheduler) and which units are late.
 */
class LiveUnits {
 public:
  explicit LiveUnits(const OpGraph& graph);

  /*! \brief Becomes the units of `grouping`, whichever strategy came before. */
  void MoveTo(const Grouping& grouping);
  /*! \brief Goes back to the strategy before the last MoveTo; once, not twice. */
  void Undo();
  /*! \brief Units that the last MoveTo removed. */
  const std::vector<int32_t>& gone() const { return gone_; }
  /*! \brief Units that the last MoveTo made new, or gave other predecessors or more urgency, or
   * made late or not late. */
  const std::vector<int32_t>& reordered() const { return reordered_; }
  /*! \brief Units of which the last MoveTo changed nothing but that they are less urgent. */
  const std::vector<int32_t>& postponed() const { return postponed_; }
  /*! \brief Units that are new or have other members, outputs or bytes since the last MoveTo. */
  const std::vector<int32_t>& repriced() const { return repriced_; }
  /*! \brief Members and outputs of a unit, ascending; `grouping` is what MoveTo got last. */
  static void Describe(const Grouping& grouping, int32_t unit, std::vector<int32_t>* members,
                       std::vector<int32_t>* outputs);

  int32_t num_units() const { return num_units_; }
  int32_t num_buckets() const { return num_buckets_; }
  bool exists(int32_t unit) const { return home_[unit] == unit; }
  bool IsBucket(int32_t unit) const { return is_bucket_[unit] != 0; }
  /*! \brief In no particular order, like successors. */
  const std::vector<int32_t>& predecessors(int32_t unit) const { return predecessors_[unit]; }
  const std::vector<int32_t>& successors(int32_t unit) const { return successors_[unit]; }
  const Hash128& content(int32_t unit) const { return facts_[unit].content; }
  int64_t bucket_bytes(int32_t unit) const { return facts_[unit].bucket_bytes; }
  int32_t urgency(int32_t unit) const { return facts_[unit].urgency; }
  /*! \brief A bucket, a unit that depends on one, or one that is not urgent. */
  bool IsLate(int32_t unit) const { return late_[unit] != 0; }
  /*! \brief A compute unit that needs a bucket, directly or not, and is urgent all the same. */
  bool IsUrgentDependent(int32_t unit) const;
  /*! \brief By which the list scheduler chooses among compute units: urgency, then name. */
  uint64_t Key(int32_t unit) const { return KeyOf(facts_[unit].urgency, unit); }
  /*! \brief The smallest key of a compute unit that depends on a bucket, or of those without
   * urgency if that is smaller. */
  uint64_t SmallestLateKey() const {
    return urgent_dependents_.empty() ? KeyOf(kNotUrgent, 0) : *urgent_dependents_.begin();
  }

 private:
  /*! \brief Why a unit is looked at, and what was found. */
  enum Look : uint8_t {
    kNoted = 1,
    kContent = 2,
    kPredecessors = 4,
    kNew = 8,
    kOtherOrder = 16,
    kOtherPrice = 32,
    kPostponed = 64,
    kQueued = 128,
  };
  /*! \brief What is known of a unit besides its neighbours. */
  struct Facts {
    Hash128 content;
    int64_t bucket_bytes = 0;
    int32_t production_rank = -1;
    int32_t urgency = kNotUrgent;
    int32_t priority = kNoPriority; /*!< stands in for the urgency */
    bool dependent = false;         /*!< needs a bucket, directly or not */
    bool late = false;
  };
  using Pairs = std::vector<std::pair<int32_t, int32_t>>;
  /*! \brief What the last MoveTo replaced. */
  struct Log {
    int32_t num_units = 0;
    int32_t num_buckets = 0;
    Pairs homes; /*!< (op, group) */
    bool has_copies = false;
    std::vector<Copy> copies;
    std::vector<Priority> priorities;
    std::vector<std::pair<int32_t, Facts>> facts;
    size_t num_predecessors = 0; /*!< valid ones of the following, whose buffers are reused */
    std::vector<std::pair<int32_t, std::vector<int32_t>>> predecessors;
    Pairs links;   /*!< (before, unit) */
    Pairs unlinks; /*!< (before, unit) */
  };

  static uint64_t KeyOf(int32_t urgency, int32_t unit) {
    return (static_cast<uint64_t>(static_cast<uint32_t>(urgency)) << 32) |
           static_cast<uint32_t>(unit);
  }
  void Begin();
  void Note(int32_t unit, int32_t look);
  void FindDifferences();
  void NoteHome(int32_t op, int32_t before);
  void NoteCopies();
  void NoteCopy(const Copy& copy);
  void NoteNeighbours(int32_t op);
  void NotePriorities();
  void Remove(int32_t unit);
  void LookAtContent(int32_t unit);
  static bool IsOutput(const Grouping& grouping, int32_t unit, int32_t op);
  void LookAtPredecessors(int32_t unit);
  void CollectPredecessors(int32_t unit);
  void SavePredecessors(int32_t unit);
  void Link(int32_t before, int32_t unit);
  void Unlink(int32_t before, int32_t unit);
  void EraseSuccessor(int32_t before, int32_t unit);
  void CountUnit(int32_t unit, int32_t change);
  bool FindDependence(int32_t unit) const;
  void SettleDependence();
  int32_t OwnUrgency(int32_t unit) const;
  int32_t FindUrgency(int32_t unit) const;
  void SettleUrgency();
  void SettleLate();
  void Push(int32_t unit, bool last_first);
  int32_t Pop();

  const OpGraph* graph_;
  const Grouping* grouping_ = nullptr; /*!< during MoveTo */
  int32_t num_units_ = 0;
  int32_t num_buckets_ = 0;
  std::vector<int32_t> home_;
  std::vector<Copy> copies_;
  std::vector<Priority> priorities_;
  std::vector<Hash128> keys_; /*!< per op: as a member, as an output */
  std::vector<uint8_t> is_bucket_;
  std::vector<Facts> facts_;
  std::vector<uint8_t> late_; /*!< what facts_ says, where the scheduler finds it faster */
  std::vector<std::vector<int32_t>> predecessors_;
  std::vector<std::vector<int32_t>> successors_;
  std::set<uint64_t> urgent_dependents_; /*!< keys of compute units that depend on a bucket */
  // What the last MoveTo did.
  std::vector<uint8_t> look_; /*!< per unit, 0 for those that are not in noted_ */
  std::vector<int32_t> noted_;
  std::vector<int32_t> gone_;
  std::vector<int32_t> reordered_;
  std::vector<int32_t> postponed_;
  std::vector<int32_t> repriced_;
  Log log_;
  // Scratch.
  std::vector<int32_t> found_;
  std::vector<uint32_t> seen_;
  uint32_t epoch_ = 0;
  Pairs queue_;                /*!< heap of (place, unit) */
  std::vector<int32_t> seeds_; /*!< whose urgency may have changed */
};

}  // namespace disco_fuse

#endif  // DISCO_FUSE_STRATEGY_LIVE_UNITS_H_
