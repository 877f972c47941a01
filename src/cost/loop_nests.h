#ifndef DISCO_FUSE_COST_LOOP_NESTS_H_
#define DISCO_FUSE_COST_LOOP_NESTS_H_

#include <cstdint>
#include <vector>

#include "cost/cost_model.h"
#include "graph/op_graph.h"

namespace disco_fuse {

/*!
 * \brief How a group becomes loop nests. The kernel schedules follow the same rules.
 *
 *     scale --> mul --> sum --> sub --> exp --> sum --> div        (rows all equal)
 *     inlined  inlined  root   inlined  root    root   root
 *     \____________________________ nest 0 ____________________/
 *
 * A member is inlined if it is at most injective, no output, no operand of a matmul-like or opaque
 * member, and has one consumer in the group or is cheap; it is then recomputed in every root that
 * it reaches. A root joins the highest nest among its producer roots if all of them in that nest,
 * and the inlined members on the way, have its number of rows; else it opens a new nest.
 *
 * Members are meant by their index in Group::ops. Plan reuses the buffers of an earlier call.
 */
class LoopNests {
 public:
  void Plan(const OpGraph& graph, const Group& group);

  int32_t num_nests() const { return num_nests_; }
  /*! \brief The nest of a root, -1 for an inlined member. */
  int32_t nest(int32_t member) const { return nest_[member]; }
  bool inlined(int32_t member) const { return nest_[member] < 0; }
  bool is_output(int32_t member) const { return is_output_[member] != 0; }
  /*! \brief Index of an op in the group, -1 if it is no member. */
  int32_t IndexOf(int32_t op) const;
  /*! \brief Inlined members that a root recomputes, ascending. */
  Span<int32_t> cone(int32_t root) const { return cones_[root]; }
  /*! \brief Whether everything that reads a root inside the group lies in the root's own nest. */
  bool StaysInNest(int32_t root) const { return stays_[root] != 0; }

 private:
  bool IsInlined(int32_t member) const;
  void CollectCone(int32_t root);
  int32_t ChooseNest(int32_t root);
  void NoteReads(int32_t reader, int32_t nest);

  const OpGraph* graph_ = nullptr;
  const Group* group_ = nullptr;
  int32_t num_nests_ = 0;
  std::vector<int32_t> nest_;
  std::vector<uint8_t> is_output_;
  std::vector<uint8_t> stays_;
  std::vector<uint8_t> flag_; /*!< scratch per member */
  std::vector<int32_t> stack_;
  Csr<int32_t> cones_;
};

/*! \brief Number of loop nests of one kernel. */
int32_t CountNests(const OpGraph& graph, const Group& group);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_COST_LOOP_NESTS_H_
