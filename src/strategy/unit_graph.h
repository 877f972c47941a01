#ifndef DISCO_FUSE_STRATEGY_UNIT_GRAPH_H_
#define DISCO_FUSE_STRATEGY_UNIT_GRAPH_H_

#include <cstdint>
#include <vector>

#include "graph/hash.h"
#include "graph/op_graph.h"
#include "strategy/grouping.h"

namespace disco_fuse {

/*! \brief 128 pseudo-random bits for each op as a member of a unit (at 2 * op) and as an output of
 * one (at 2 * op + 1); the content of a unit is their sum. */
std::vector<Hash128> MemberKeys(int32_t num_ops);

enum class UnitKind : int32_t { kKernel = 0, kLibrary = 1, kBucket = 2 };

/*!
 * \brief A strategy seen as units (kernels, library calls, buckets) and what they wait for.
 *
 *     ops     0  1  2  3  4          group_of 0 0 2 0 4, copy of op 2 in group 0
 *     units   [0 1 2' 3]  [2]  [4]   members ascending, one unit per representative
 *
 * Units are numbered in a topological order. Build reuses the buffers of an earlier call.
 */
class UnitGraph {
 public:
  void Build(const Grouping& grouping);

  int32_t num_units() const { return static_cast<int32_t>(representative_.size()); }
  /*! \brief Smallest op whose home the unit is: its name in a Strategy. */
  int32_t representative(int32_t unit) const { return representative_[unit]; }
  int32_t unit_of(int32_t representative) const { return unit_of_[representative]; }
  UnitKind kind(int32_t unit) const { return kind_[unit]; }
  /*! \brief All members including copies, ascending. */
  Span<int32_t> members(int32_t unit) const { return members_[unit]; }
  /*! \brief The members whose value leaves the unit, ascending. */
  Span<int32_t> outputs(int32_t unit) const { return outputs_[unit]; }
  Span<int32_t> predecessors(int32_t unit) const { return predecessors_[unit]; }
  Span<int32_t> successors(int32_t unit) const { return successors_[unit]; }
  /*! \brief Hash of members and outputs: equal for equal kernels of one graph. */
  const Hash128& content(int32_t unit) const { return content_[unit]; }
  /*! \brief Bytes that a bucket sends; 0 for other units. */
  int64_t bucket_bytes(int32_t unit) const { return bucket_bytes_[unit]; }
  /*! \brief Largest op id among the gradient producers of a bucket. */
  int32_t production_rank(int32_t unit) const { return production_rank_[unit]; }
  /*! \brief The urgency that the strategy gives the unit, or kNoPriority. */
  int32_t priority(int32_t unit) const { return priority_[unit]; }

 private:
  void NumberUnits(const Grouping& grouping);
  void CollectMembers(const Grouping& grouping);
  void Connect(const Grouping& grouping);
  void CollectOutputs(const Grouping& grouping);
  void Transpose();

  std::vector<int32_t> representative_;
  std::vector<int32_t> unit_of_;
  std::vector<UnitKind> kind_;
  Csr<int32_t> members_;
  Csr<int32_t> outputs_;
  Csr<int32_t> predecessors_;
  Csr<int32_t> successors_;
  std::vector<Hash128> content_;
  std::vector<int64_t> bucket_bytes_;
  std::vector<int32_t> production_rank_;
  std::vector<int32_t> priority_;
  std::vector<uint8_t> leaves_; /*!< per op: its value is read outside its home */
  std::vector<Hash128> keys_;   /*!< per op: as a member, as an output */
  std::vector<int32_t> seen_;   /*!< scratch */
  std::vector<int32_t> next_;   /*!< scratch */
};

}  // namespace disco_fuse

#endif  // DISCO_FUSE_STRATEGY_UNIT_GRAPH_H_
