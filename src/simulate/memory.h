#ifndef DISCO_FUSE_SIMULATE_MEMORY_H_
#define DISCO_FUSE_SIMULATE_MEMORY_H_

#include <cstdint>
#include <vector>

#include "cost/loop_nests.h"
#include "strategy/unit_graph.h"

namespace disco_fuse {

/*! \brief Bytes that one rank needs for a step. */
struct StepMemory {
  int64_t external = 0; /*!< parameters, state, batch and constants: always there */
  int64_t buckets = 0;  /*!< buffers into which buckets of several gradients are packed: kept */
  int64_t peak = 0;     /*!< both, plus the most that is alive at one time */
  bool operator==(const StepMemory& other) const {
    return external == other.external && buckets == other.buckets && peak == other.peak;
  }
};

/*!
 * \brief Sums up what is alive while the units run in emitted order.
 *
 *     unit            0      1      2       3             value of unit 0: alive in 0..2
 *     reads           -      0      0, 1    2             value of unit 2: alive in 2..3
 *     alive           a0     a0 b1  a0 b1 c2   c2 d3      peak = max over units of their sum
 *
 * A value is alive from the unit that writes it to the last unit that reads it, or to the end if
 * the step returns it. An AllReduce works in the buffer of its gradient, and an op that is donated
 * overwrites an external value: neither takes memory of its own. While a kernel runs, it also needs
 * what one of its loop nests leaves for a later one (see LoopNests).
 *
 * The sum is what a planner without fragmentation would reach. Reuses buffers between calls.
 */
class MemoryModel {
 public:
  explicit MemoryModel(const OpGraph& graph);
  /*! \param order Every unit once, after the units it depends on. */
  StepMemory Measure(const UnitGraph& units, const std::vector<int32_t>& order);

 private:
  void FindLastReads(const UnitGraph& units, const std::vector<int32_t>& order);
  int64_t Workspace(const UnitGraph& units, int32_t unit);
  int64_t BucketBuffers(const UnitGraph& units) const;

  const OpGraph* graph_;
  int64_t external_ = 0;
  LoopNests nests_;
  Group group_;
  std::vector<int32_t> last_read_; /*!< per op: the last place in the order that needs its value */
  std::vector<int64_t> released_;  /*!< per place in the order: bytes that die after it */
};

}  // namespace disco_fuse

#endif  // DISCO_FUSE_SIMULATE_MEMORY_H_
