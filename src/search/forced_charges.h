#ifndef DISCO_FUSE_SEARCH_FORCED_CHARGES_H_
#define DISCO_FUSE_SEARCH_FORCED_CHARGES_H_

#include <cstdint>
#include <vector>

#include "cost/cost_model.h"
#include "search/barrier_chains.h"

namespace disco_fuse {

/*! \brief As many places as the chain is longer than `less`. */
struct ChainPart {
  ChainSet chain;
  int32_t less = 0;
};

/*! \brief The places of all parts together, but `less` that other floors have counted. */
struct ChainSum {
  std::vector<ChainPart> parts;
  int32_t less = 0;
};

/*! \brief Time that is spent once in each of a number of places, besides the floors of ops. */
struct Charge {
  Nanoseconds each;
  Nanoseconds once; /*!< if there is any place */
  std::vector<ChainSum>
      sums; /*!< all of them hold: the largest counts; each has all ops that matter */
};

/*! \brief The same time, added up. */
struct ChargedTime {
  Nanoseconds total{0};
  std::vector<Nanoseconds> shared; /*!< per allreduce op, see GradientFloor */
  std::vector<Nanoseconds> own;
};

/*!
 * \brief Counts the chains of all charges.
 *
 * A chain that leads to an allreduce op lies before it. A charge is the op's own if all of its ops
 * that lead to any allreduce op lead to this one only; otherwise it is shared.
 *
 * \param only Per op: the only allreduce op that it leads to, or a negative number; kNoAllReduce
 *     if it leads to none.
 */
ChargedTime AddUp(const OpGraph& graph, const std::vector<bool>& barrier,
                  const std::vector<int32_t>& only, std::vector<Charge> charges);

constexpr int32_t kNoAllReduce = -1;
constexpr int32_t kSeveralAllReduces = -2;

}  // namespace disco_fuse

#endif  // DISCO_FUSE_SEARCH_FORCED_CHARGES_H_
