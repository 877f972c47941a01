#ifndef DISCO_FUSE_SEARCH_FORCED_NESTS_H_
#define DISCO_FUSE_SEARCH_FORCED_NESTS_H_

#include <cstdint>
#include <vector>

#include "graph/op_graph.h"
#include "search/forced_charges.h"

namespace disco_fuse {

/*!
 * \brief Which ops can never share a loop nest (cost/loop_nests.h), whatever kernel they are in.
 *
 *     mul (100 rows) --- exp (100 rows) | sum over columns (1 row) | sqrt (1 row)      two regions
 *
 * A root joins the nest of another root along a path on which all rows are equal and all edges keep
 * them. So the roots of one nest are connected by such edges: they are in one *region*, a connected
 * component of the ops that can be fused under these edges. An op without rows is a region itself.
 *
 * An *anchor* is a root in its home: it cannot be inlined, or a barrier reads it, or the step
 * returns it, or nobody reads it. The home of an anchor is before each barrier that it leads to if
 * it has no copies, else before the barriers that read it.
 */
class NestRegions {
 public:
  NestRegions(const OpGraph& graph, const std::vector<bool>& barrier);
  bool is_anchor(int32_t op) const { return anchor_[op]; }
  ChainOp anchor(int32_t op) const { return {op, copied_[op]}; }
  int32_t region(int32_t op) const { return region_[op]; }

 private:
  std::vector<bool> anchor_;
  std::vector<bool> copied_;
  std::vector<int32_t> region_; /*!< per op: the smallest op of its region */
};

/*!
 * \brief One charge for each region: the anchors of a chain are in different nests.
 * \param each What every nest takes besides the floors of its ops.
 */
std::vector<Charge> ForcedNests(const OpGraph& graph, const NestRegions& regions, Nanoseconds each);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_SEARCH_FORCED_NESTS_H_
