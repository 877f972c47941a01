#ifndef DISCO_FUSE_COST_ALLREDUCE_MODEL_H_
#define DISCO_FUSE_COST_ALLREDUCE_MODEL_H_

#include <cstdint>

#include "cost/cost_model.h"

namespace disco_fuse {

/*!
 * \brief Time of one AllReduce: a line for small and a line for large messages.
 *
 *     time = latency_us + us_per_byte * bytes, "small" below threshold_bytes, "large" from there on
 */
struct AllReduceModel {
  double small_latency_us = 0;
  double small_us_per_byte = 0;
  double large_latency_us = 0;
  double large_us_per_byte = 0;
  int64_t threshold_bytes = 0;

  /*! \throws std::invalid_argument unless every number is finite and >= 0. */
  void Check() const;
  Nanoseconds Time(int64_t bytes) const;
  /*!
   * \brief A time below which no partition of `total_bytes` into messages can get.
   *
   * Both lines have latency >= 0, so that time / bytes falls with the size on each of them: the
   * best small message is just below the threshold, the best large one is everything.
   */
  Nanoseconds PartitionFloor(int64_t total_bytes) const;
};

}  // namespace disco_fuse

#endif  // DISCO_FUSE_COST_ALLREDUCE_MODEL_H_
