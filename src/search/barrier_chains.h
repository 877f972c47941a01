#ifndef DISCO_FUSE_SEARCH_BARRIER_CHAINS_H_
#define DISCO_FUSE_SEARCH_BARRIER_CHAINS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "graph/op_graph.h"

namespace disco_fuse {

/*! \brief An op that may be part of a chain. */
struct ChainOp {
  int32_t op;
  bool at_home; /*!< only its home counts, which need not come before all that the op leads to */
};

/*!
 * \brief Longest chains of ops that barriers keep apart.
 *
 *     r1 --> x --> (library call) --> r2 --> (AllReduce) --> y --> r3       a chain of three
 *
 * A *barrier* is an op that is always a unit of its own. On a path from r1 through a barrier B to
 * r2, the op before B has its home before B, hence so has some unit that computes r1: each op of
 * the path is computed where its consumer is, or read from its home, which is earlier still.
 * Likewise every unit that computes r2 needs B. So r1, ..., rk with barriers B1, ..., B(k-1)
 * between them are computed in k different units: by one of ri after B(i-1) and before Bi. An op
 * that is `at_home` continues a chain only where a barrier reads it itself, which it does from the
 * home; ops that have no copies may be taken either way, as all of their units are their homes.
 */
struct ChainSet {
  std::vector<ChainOp> ops; /*!< ascending */
  int32_t longest = 0;      /*!< result; at most 255 */
  /*! \brief Result: the longest chain that leads to each allreduce op, as in allreduce_ops(). */
  std::vector<uint8_t> before{};
};

/*!
 * \brief Fills in the results of `sets`, in passes over the graph of 64 sets each.
 * \param max_steps After so many ops and data edges no further pass begins: the sets that are left
 *     keep chains of length 0.
 * \return The number of ops and data edges followed.
 */
int64_t FindLongestChains(const OpGraph& graph, const std::vector<bool>& barrier, int64_t max_steps,
                          const std::vector<ChainSet*>& sets);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_SEARCH_BARRIER_CHAINS_H_
