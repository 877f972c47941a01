#ifndef DISCO_FUSE_SEARCH_MEMORY_LIMIT_H_
#define DISCO_FUSE_SEARCH_MEMORY_LIMIT_H_

#include <cstdint>
#include <vector>

#include "simulate/memory.h"
#include "strategy/grouping.h"

namespace disco_fuse {

/*!
 * \brief Makes strategies that need too much memory illegal, without losing the way to legal ones.
 *
 *     cost     legal: its makespan          illegal: 2^61 ns + the bytes that are too much
 *
 * Every legal strategy is cheaper than every illegal one, and of those the smaller is cheaper, so
 * that a search from an illegal start first looks for memory and then for time; once it has a legal
 * strategy, no illegal one is close to it any more.
 */
class MemoryLimit {
 public:
  /*! \param limit_bytes What a step may need, < 0: anything. */
  MemoryLimit(const OpGraph& graph, int64_t limit_bytes)
      : limit_bytes_(limit_bytes), memory_(graph) {}

  bool IsSet() const { return limit_bytes_ >= 0; }
  /*! \param order Representatives in emitted order. */
  Nanoseconds Cost(const Grouping& grouping, const std::vector<int32_t>& order,
                   Nanoseconds makespan);
  static bool IsOver(Nanoseconds cost) { return cost >= kOver; }
  /*! \brief The makespan of a legal strategy, the largest time there is for an illegal one. */
  static Nanoseconds MakespanOf(Nanoseconds cost) {
    return IsOver(cost) ? Nanoseconds::max() : cost;
  }
  /*! \throws std::invalid_argument if `cost`, the least that was found, is that of an illegal
   * strategy. */
  static void CheckMet(Nanoseconds cost, int64_t limit_bytes);

 private:
  static constexpr Nanoseconds kOver{int64_t{1} << 61};

  int64_t limit_bytes_;
  MemoryModel memory_;
  UnitGraph units_;
  std::vector<int32_t> order_;
};

}  // namespace disco_fuse

#endif  // DISCO_FUSE_SEARCH_MEMORY_LIMIT_H_
