#ifndef DISCO_FUSE_SEARCH_EDIT_SAMPLER_H_
#define DISCO_FUSE_SEARCH_EDIT_SAMPLER_H_

#include <cstdint>
#include <vector>

#include "search/rng.h"
#include "strategy/edit.h"

namespace disco_fuse {

/*! \brief Draws random places for edits; what it draws still has to pass the rules. */
class EditSampler {
 public:
  EditSampler(const OpGraph& graph, const FusionLimits& limits, int32_t num_tries);
  /*! \brief false if no strategy of the graph has a place for an edit of `kind`. */
  bool CanDraw(EditKind kind) const;
  /*!
   * \brief Applies one edit of `kind` at a random place.
   * \return false if none of num_tries places allowed it.
   */
  bool ApplyRandom(EditKind kind, Rng* rng, Grouping* grouping, Edit* applied);
  /*!
   * \brief Fuses producers one after the other into the group of one random op.
   * \param kind kFuse or kFuseDuplicate.
   * \param applied The edits are appended; fewer than `length` where the group has no more.
   */
  void ApplyChain(EditKind kind, int32_t length, Rng* rng, Grouping* grouping,
                  std::vector<Edit>* applied);

 private:
  bool DrawInto(EditKind kind, int32_t into, Rng* rng, const Grouping& grouping, Edit* edit);
  bool Draw(EditKind kind, Rng* rng, const Grouping& grouping, Edit* edit);
  bool DrawFusion(EditKind kind, Rng* rng, const Grouping& grouping, Edit* edit);
  bool DrawMerge(Rng* rng, const Grouping& grouping, Edit* edit);
  bool DrawSplit(Rng* rng, const Grouping& grouping, Edit* edit);
  bool DrawMove(Rng* rng, const Grouping& grouping, Edit* edit);
  bool DrawTakeOut(Rng* rng, const Grouping& grouping, Edit* edit);
  bool DrawReorder(Rng* rng, const Grouping& grouping, Edit* edit);
  int32_t RunEnd(const Grouping& grouping, int32_t place, int32_t step) const;
  int32_t NextInBucket(const Grouping& grouping, int32_t place) const;
  void AddProductionNeighbours(const Grouping& grouping, int32_t place);
  void AddEquallyUrgent(const Grouping& grouping, int32_t bucket);
  void AddGradientNeighbours(const Grouping& grouping, int32_t op);
  void AddCollectivesOf(const Grouping& grouping, int32_t group, int32_t bucket);

  const OpGraph* graph_;
  FusionLimits limits_;
  int32_t num_tries_;
  /*! Ops that may be fused with at least one of their producers, as far as one op tells. */
  std::vector<int32_t> consumers_;
  std::vector<uint8_t> is_gradient_; /*!< per op: an allreduce op reads it */
  std::vector<int32_t> not_urgent_;  /*!< ops that lead to no gradient */
  // Scratch.
  std::vector<int32_t> choices_;
  std::vector<int32_t> around_;
  std::vector<Edit> places_;
  std::vector<int32_t> members_;
};

}  // namespace disco_fuse

#endif  // DISCO_FUSE_SEARCH_EDIT_SAMPLER_H_
