#ifndef DISCO_FUSE_SIMULATE_SIMULATE_H_
#define DISCO_FUSE_SIMULATE_SIMULATE_H_

#include <array>
#include <cstdint>
#include <vector>

#include "simulate/timeline.h"
#include "strategy/unit_graph.h"

namespace disco_fuse {

/*!
 * \brief The rule by which units occupy streams: what the emitted program does.
 *
 *     compute        |--- k1 ---|-- k2 (slower while b1 is in flight) --|- k3 -|   k4 waits for b2
 *     communication             |------ b1 ------|           (b2 starts) |----- b2 -----|
 *
 * Units are issued in emitted order. A compute unit starts when the compute stream is free and what
 * it needs is done. A bucket starts when the compute units issued before it are done (its start
 * call stands between them), the communication stream is free, and what it needs is done.
 *
 * Contention: while the communication stream is busy a compute unit progresses at 1 / contention.
 * Buckets are issued between compute units only, and back to back, so that when a unit starts the
 * stream is busy exactly until it has worked off its queue: the finish has a closed form.
 */
class Streams {
 public:
  /*! \param contention_permille 1000 times the factor by which communication slows compute. */
  explicit Streams(int32_t contention_permille);
  /*! \brief Issues `unit`; everything before it in a topological order has been issued. */
  void Issue(const UnitGraph& units, int32_t unit, Nanoseconds duration);
  void Reset(const UnitGraph& units);

  Nanoseconds start(int32_t unit) const { return start_[unit]; }
  Nanoseconds finish(int32_t unit) const { return finish_[unit]; }
  Nanoseconds free(Stream stream) const { return free_[static_cast<int32_t>(stream)]; }

 private:
  Nanoseconds FinishOfCompute(Nanoseconds start, Nanoseconds work) const;

  int64_t contention_permille_;
  std::array<Nanoseconds, kNumStreams> free_;
  std::vector<Nanoseconds> start_;
  std::vector<Nanoseconds> finish_;
};

inline Stream StreamOf(UnitKind kind) {
  return kind == UnitKind::kBucket ? Stream::kCommunication : Stream::kCompute;
}

/*!
 * \brief Replays units in the given order.
 * \param order Every unit once, after the units it depends on.
 * \param durations One per unit.
 */
Timeline Simulate(const UnitGraph& units, const std::vector<int32_t>& order,
                  const std::vector<Nanoseconds>& durations, int32_t contention_permille);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_SIMULATE_SIMULATE_H_
