#ifndef DISCO_FUSE_STRATEGY_GROUPING_H_
#define DISCO_FUSE_STRATEGY_GROUPING_H_

#include <cstdint>
#include <vector>

#include "graph/op_graph.h"
#include "strategy/block_array.h"
#include "strategy/grouping_hash.h"
#include "strategy/strategy.h"

namespace disco_fuse {

/*!
 * \brief The working copy of a strategy that edits are applied to.
 *
 * Always canonical and acyclic (see Strategy). A group is named by its representative.
 */
class Grouping {
 public:
  /*! \brief A strategy that waits; shares what is equal with those it came from. */
  struct Image {
    std::vector<std::vector<BlockArray::Image>> arrays;
    std::vector<Copy> copies;
    std::vector<Copy> copies_by_group;
    std::vector<Priority> priorities;
    GroupingHash hash;
    int64_t own_bytes = 0; /*!< without blocks that were saved, or restored, before */
  };

  explicit Grouping(const OpGraph& graph);
  Image Save() const;
  /*! \brief Becomes what was saved, of this or another grouping of the same graph. */
  void Restore(const Image& image);
  /*! \brief Becomes `strategy`; reuses the buffers. */
  void Load(const Strategy& strategy);
  /*!
   * \brief Becomes the choice given by any labels and copies, pruned to canonical form.
   * \return false if its groups depend on each other in a cycle.
   */
  bool Assign(const std::vector<int32_t>& labels, const std::vector<Copy>& copies);

  const OpGraph& graph() const { return *graph_; }
  int32_t home(int32_t op) const { return home_[op]; }
  const std::vector<int32_t>& homes() const { return home_.values(); }
  /*! \brief Sorted by op. */
  const std::vector<Copy>& copies() const { return copies_; }
  /*! \brief By representative, ascending. */
  const std::vector<Priority>& priorities() const { return priorities_; }
  /*! \brief The given rank of `group`, or kNoPriority. */
  int32_t PriorityOf(int32_t group) const;
  /*! \brief Gives the group that is home of `op` a rank; kNoPriority takes it away. */
  void SetPriority(int32_t op, int32_t rank);
  /*! \brief The next home op of the group of `op`, round and round. */
  int32_t next(int32_t op) const { return next_[op]; }
  /*! \brief Groups in a topological order, one place for each op; -1 where there is none. */
  const std::vector<int32_t>& order() const { return order_.values(); }
  bool Holds(int32_t group, int32_t op) const {
    return home_[op] == group ||
           (num_copies_of_[op] > 0 && group_copies_[group] > 0 && HoldsCopy(group, op));
  }
  /*! \brief Members including copies, ascending. */
  void Members(int32_t group, std::vector<int32_t>* members) const;
  /*! \brief The same in any order; valid until the next call. */
  const std::vector<int32_t>& MembersUnordered(int32_t group) const;
  /*! \brief Calls visit(group) for every group that computes `op`. */
  template <typename Visit>
  void ForEachHolder(int32_t op, Visit visit) const {
    visit(home_[op]);
    if (num_copies_of_[op] == 0) return;
    for (size_t i = FirstCopy(op); i < copies_.size() && copies_[i].op == op; ++i) {
      visit(copies_[i].group);
    }
  }
  /*! \brief Calls visit(predecessor) for every group that must run before `group`; may repeat. */
  template <typename Visit>
  void ForEachPredecessor(int32_t group, Visit visit) const {
    for (int32_t op : MembersUnordered(group)) {
      for (const DataEnd& end : graph_->producers(op)) {
        if (!Holds(group, end.op)) visit(home_[end.op]);
      }
      if (home_[op] != group) continue;
      for (int32_t reader : graph_->order_before(op)) {
        ForEachHolder(reader, [&](int32_t holder) {
          if (holder != group) visit(holder);
        });
      }
    }
  }
  /*!
   * \brief Whether a path leads from `first` to `last`, of more than one edge if `allow_direct`.
   *
   * Looks only between the two in the topological order; `first` must come earlier there.
   * Remembers what it found for the Merge or MoveBefore that follows.
   */
  bool Reaches(int32_t first, int32_t last, bool allow_direct);
  bool Precedes(int32_t a, int32_t b) const { return position_[a] < position_[b]; }
  /*! \brief Of a group in order(). */
  int32_t position(int32_t group) const { return position_[group]; }

  /*!
   * \brief Unites two groups; Reaches(first, last) must have been asked last, and be false.
   *
   * Like AddCopies it then drops what nobody reads: copies, and homes whose every reader has a copy
   * of its own.
   */
  void Merge(int32_t first, int32_t last);
  /*! \brief Puts `last` before `first`, under the same condition. */
  void MoveBefore(int32_t first, int32_t last);
  /*! \brief Adds copies of `ops` to `group`. */
  void AddCopies(const std::vector<int32_t>& ops, int32_t group);
  /*!
   * \brief Home ops of one group, but not all of them, become a group of their own.
   *
   * It stands next to what is left, which keeps the priority. Like RemoveCopy this then drops what
   * nobody reads.
   *
   * \param ops Ascending.
   * \param copies What both parts need of the copies that the group holds; the rest stays.
   * \param before Whether the new group comes first; no edge may lead the other way.
   */
  void TakeOut(const std::vector<int32_t>& ops, const std::vector<int32_t>& copies, bool before);
  /*! \brief The home of `op`, which must precede `group`, takes the place of the copy there. */
  void RemoveCopy(int32_t op, int32_t group);

  Strategy ToStrategy(std::vector<int32_t> order) const;
  /*! \brief The hash that ToStrategy would have. */
  Hash128 Hash() const { return WithPriorities(hash_.Finish(graph_->num_ops()), priorities_); }
  /*! \brief The groups in the current topological order. */
  std::vector<int32_t> Order() const;
  /*! \brief The topological order that prefers small representatives. */
  std::vector<int32_t> CanonicalOrder() const;

 private:
  bool HoldsCopy(int32_t group, int32_t op) const;
  size_t FirstCopy(int32_t op) const;
  size_t FirstCopyIn(int32_t group) const;
  void Relabel(int32_t group);
  void Rename(int32_t from, int32_t to);
  void RenamePriority(int32_t from, int32_t to);
  void Prune(std::vector<int32_t> ops);
  bool PruneOp(int32_t op);
  void MoveHome(int32_t op, int32_t to, bool leave_copy);
  void Reorder(int32_t first, int32_t last, bool merge);
  void IndexCopies();
  void Count(const Copy& copy, int32_t change);
  void SetHome(int32_t op, int32_t group);
  void AddCopy(Copy copy);
  void DropCopy(Copy copy);
  std::vector<int32_t> CopiesIn(int32_t group) const;
  std::vector<int32_t> Copied(int32_t group) const;
  void Link(const std::vector<int32_t>& ops);
  void SetOrder(const std::vector<int32_t>& groups);
  void InsertAt(int32_t place, int32_t group);
  void LinkHomes();

  const OpGraph* graph_;
  BlockArray home_;
  BlockArray next_; /*!< circular list of the ops of one home */
  std::vector<Copy> copies_;
  BlockArray num_copies_of_; /*!< per op */
  BlockArray group_copies_;  /*!< per group: how many copies it holds */
  std::vector<Priority> priorities_;
  std::vector<Copy> copies_by_group_; /*!< copies_, sorted by group, then op */
  BlockArray order_;
  BlockArray position_; /*!< per group: its place in order_ */
  GroupingHash hash_;
  // Scratch.
  mutable std::vector<int32_t> members_;
  std::vector<int32_t> stack_;
  std::vector<uint32_t> mark_; /*!< per group: == epoch_ if the last Reaches visited it */
  uint32_t epoch_ = 0;
  std::vector<int32_t> tail_;
  std::vector<int32_t> users_;
  std::vector<int32_t> dropped_; /*!< copies that went with the home they were there for */
};

}  // namespace disco_fuse

#endif  // DISCO_FUSE_STRATEGY_GROUPING_H_
