#ifndef DISCO_FUSE_SIMULATE_RESCHEDULE_H_
#define DISCO_FUSE_SIMULATE_RESCHEDULE_H_

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "cost/cost_model.h"
#include "strategy/live_units.h"

namespace disco_fuse {

/*!
 * \brief ListScheduler's order and makespan, found from those of a similar strategy, the base.
 *
 *     base   a b c d e f g h | p q ...      c is gone, e became less urgent, x is new
 *     now    a b . d . f x g . e h | ...    glide a b, merge c..h with the extras x and e, glide
 *            `glide' `-- merge --'          h to the end of the prefix, and then list scheduling
 *
 * No unit of the prefix waits for a bucket or competes with one that does (which it may once the
 * first bucket that such a unit reads is over: the alarm), so that its order does not depend on
 * time. Of units with unchanged key and predecessors, those that are ready in both strategies are
 * chosen in the base's order; all others that are ready ("extras") are in a heap. A unit that only
 * became less urgent keeps its place if it overtakes none that way. While there are no extras, and
 * both have issued the same units, the base's order is the order and only time has to be counted:
 * from one bucket that the base releases to the next. What comes behind the prefix is scheduled as
 * ListScheduler does it.
 *
 *     compute        | prefix ........ |= w0 =|   |= w1 =|     once all buckets are issued, and
 * slow communication  | b1 |    b2   |     b3      |            nothing down any more, the end
 * follows prefix ends     b3 ends      from the work that each one releases
 *
 * The compute stream idles only while nothing is ready, so that behind b3 it works off at least
 * what b3 released, whatever the order, and the end is the latest of such sums.
 */
class Rescheduler {
 public:
  Rescheduler(const OpGraph& graph, int32_t contention_permille);
  /*!
   * \brief Schedules `units`, which were moved once since the base was set (or anywhere, at first).
   * \param durations_ns One for each op that names a unit.
   * \param in_full Whether order() is asked for afterwards: the makespan is found without the end
   *     of the order.
   * \return The makespan that ListScheduler::Run returns for these units.
   */
  Nanoseconds Run(const LiveUnits& units, const std::vector<int64_t>& durations_ns, bool in_full);
  /*! \brief Makes the strategy of the last Run, with the same arguments, the base. */
  void SetBase(const LiveUnits& units, const std::vector<int64_t>& durations_ns);
  /*! \brief Units of the last Run in full, in emitted order. */
  const std::vector<int32_t>& order() const { return order_; }

 private:
  static constexpr int32_t kNever = std::numeric_limits<int32_t>::max();
  static constexpr int64_t kNoAlarm = std::numeric_limits<int64_t>::max();
  /*! \brief What is known of a unit that is not where the base has it. */
  enum State : uint32_t { kAsInBase = 0, kDeferred = 1, kExtra = 2, kIssued = 3 };
  struct Attention {
    int32_t place; /*!< in the prefix of the base */
    int32_t unit;  /*!< may be ready from there on, or -1 if the base's unit there changed */
    bool operator<(const Attention& other) const { return place < other.place; }
  };

  /*! \brief A bucket that is ready when the unit at a place of the prefix is done. */
  struct Release {
    int32_t place;
    int32_t bucket;
    bool operator<(const Release& other) const {
      return place != other.place ? place < other.place : bucket < other.bucket;
    }
  };
  /*! \brief How many predecessors of a bucket are known to be done, the first ones. */
  struct Watch {
    uint32_t epoch = 0;
    uint32_t num_done = 0;
  };

  void Begin(const LiveUnits& units, const std::vector<int64_t>& durations_ns, bool in_full);
  void SumUpWork();
  void ForgetBase();
  void SetReleases(const LiveUnits& units);
  void FindAttention();
  void FindChanged();
  void AttendUnit(int32_t unit);
  void AttendBucket(int32_t bucket);
  void FindPostponed();
  bool KeepsPlace(int32_t unit);
  void MarkChanged(int32_t unit);
  void Walk();
  bool Glide(int32_t until);
  bool Ends(uint64_t key) const { return key >= limit_ && now_ >= alarm_; }
  void Advance(int32_t stop);
  bool Merge();
  void Pass(int32_t unit);
  bool IssueExtra();
  void ReleaseFrom(int32_t unit);
  void PushExtra(int32_t unit);
  State state(int32_t unit) const;
  void SetState(int32_t unit, State state);
  bool IsChanged(int32_t unit) const { return changed_[unit] == epoch_; }
  bool IsIssued(int32_t unit) const;
  bool IsReady(int32_t unit) const;
  bool IsReadyInBase(int32_t unit) const;
  bool IsBucketReady(int32_t bucket);
  bool HasWaitingBucket(int32_t unit);
  void EnterRest();
  void CountMissing(int32_t unit);
  bool EndIsKnown() const;
  int64_t FindEnd();
  int64_t WorkBehind(int32_t bucket);
  void ScheduleRest();
  void IssueCompute(int32_t unit);
  int64_t FinishOfCompute(int64_t start, int64_t work) const;
  void Decrement(int32_t unit, int64_t time);
  void FinishBuckets();
  void SettleBuckets();
  void IssueBuckets();
  void IssueBucket(int32_t bucket);
  bool HasUrgentDependent(int32_t bucket) const;

  const LiveUnits* units_ = nullptr;
  const int64_t* durations_ = nullptr;
  int64_t contention_permille_;
  bool has_nested_buckets_ = false; /*!< a collective reads what another one made */
  // The base.
  std::vector<int32_t> prefix_;
  std::vector<int32_t> place_;       /*!< per unit: its place in prefix_ or kNever */
  std::vector<int64_t> time_before_; /*!< per place: sum of durations up to there */
  std::vector<Release> releases_;    /*!< ascending */
  std::vector<int32_t> rest_;        /*!< its other compute units */
  std::vector<int64_t> base_work_;   /*!< per unit: the duration of a compute unit, otherwise 0 */
  int64_t total_base_work_ = 0;
  std::vector<int32_t> level_;      /*!< per unit: its urgency, kNotUrgent if it is late */
  std::vector<int32_t> level_size_; /*!< per urgency: how many units that are not late have it */
  std::vector<int32_t> level_min_;  /*!< per urgency: the smallest of them */
  // The current run.
  uint32_t epoch_ = 0;
  std::vector<uint32_t> state_;           /*!< per unit: epoch and State */
  std::vector<uint32_t> changed_;         /*!< per unit: == epoch_ if not as in the base */
  int32_t last_from_ = -1, last_to_ = -1; /*!< what KeepsPlace was asked last, and the answer: */
  int32_t smallest_between_ = -1;         /*!< no unit from here on keeps its place */
  std::vector<int32_t> changed_units_;    /*!< that exist and are no buckets */
  std::vector<int32_t> changed_buckets_;  /*!< that exist and may be released otherwise */
  std::vector<Attention> attention_;
  size_t next_attention_ = 0;
  size_t next_release_ = 0;
  int32_t cursor_ = 0;         /*!< the next unit of prefix_ */
  int32_t num_deviations_ = 0; /*!< units issued here and not there, or the other way round */
  uint64_t limit_ = 0;         /*!< a unit with this key or a larger one is not in the prefix */
  int64_t alarm_ = 0;          /*!< from this time on */
  size_t num_walked_ = 0;      /*!< of order_: the prefix, with the buckets */
  bool in_full_ = false;
  int32_t num_left_ = 0;         /*!< units to be issued */
  int64_t work_left_ = 0;        /*!< sum of durations of the compute units among them */
  std::vector<uint64_t> extras_; /*!< min-heap of keys */
  std::vector<int32_t> deferred_;
  std::vector<int32_t> order_;
  int64_t now_ = 0;
  int64_t communication_free_ = 0;
  std::vector<std::pair<int64_t, int32_t>> in_flight_; /*!< (finish, bucket) in start order */
  size_t next_end_ = 0;
  std::vector<std::pair<int64_t, int32_t>> ready_buckets_; /*!< (time, bucket) */
  std::vector<uint64_t> ready_; /*!< min-heap of keys of compute units, behind the prefix */
  std::vector<int32_t> num_missing_;
  std::vector<Watch> watches_; /*!< per bucket */
  std::vector<int32_t> stack_; /*!< scratch */
};

}  // namespace disco_fuse

#endif  // DISCO_FUSE_SIMULATE_RESCHEDULE_H_
