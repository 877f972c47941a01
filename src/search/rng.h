#ifndef DISCO_FUSE_SEARCH_RNG_H_
#define DISCO_FUSE_SEARCH_RNG_H_

#include <cstdint>

#include "graph/hash.h"

namespace disco_fuse {

/*!
 * \brief splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
 *
 * Our own, because the distributions of <random> differ between standard libraries and the same
 * seed must give the same plan on every machine.
 */
class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15ULL;
    return Mix64(state_);
  }
  /*! \brief Uniform in [0, bound), bound > 0. The bias of 2^-32 * bound does not matter here. */
  int32_t Below(int32_t bound) {
    return static_cast<int32_t>(((Next() >> 32) * static_cast<uint64_t>(bound)) >> 32);
  }

 private:
  uint64_t state_;
};

}  // namespace disco_fuse

#endif  // DISCO_FUSE_SEARCH_RNG_H_
