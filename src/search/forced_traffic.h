#ifndef DISCO_FUSE_SEARCH_FORCED_TRAFFIC_H_
#define DISCO_FUSE_SEARCH_FORCED_TRAFFIC_H_

#include <vector>

#include "search/forced_charges.h"
#include "search/forced_nests.h"

namespace disco_fuse {

/*!
 * \brief Traffic with the device's memory that no fusion avoids, for models with a TrafficFloor.
 *
 *      library call --> x --+--> gelu ----------> (library call) --> ... --> gelu' , column sum
 *                           y = x + bias, recomputed wherever it is cheaper than reading it
 *
 * A value x is *in memory* for all that read it if it is external or made by a barrier; if it is
 * made by an op p that cannot be duplicated, it is in memory for all nests but the one of p. The
 * family of x is x and values made by ops that can be duplicated, each from a value of the family.
 * A nest that reads a value of the family reads x, or makes the value from another value of the
 * family, and so on: so it reads one of them from memory. That takes at least the cheapest
 * TrafficFloor of all ops that read a value of the family. Families are disjoint, and TrafficFloors
 * of one op add up. Two numbers of such nests are known:
 *
 * * the longest chain of readers, as its members are in different kernels (barrier_chains.h);
 * * the sum over all regions (forced_nests.h) of the longest chain of readers that are roots there.
 *
 * If p can be fused, the chains begin with p, whose own nest does not read. All others do, so that
 * one value of the family must be written, too. If x is in memory and only one op that can be fused
 * reads it, then the floor of that op counts one reading.
 *
 * Which values join a family is free: a value joins the youngest of the families that it is made
 * from, if it is not much cheaper to read than they are.
 */
std::vector<Charge> ForcedTraffic(const OpGraph& graph, const CostModel& model,
                                  const std::vector<bool>& barrier, const NestRegions& regions);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_SEARCH_FORCED_TRAFFIC_H_
