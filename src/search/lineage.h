#ifndef DISCO_FUSE_SEARCH_LINEAGE_H_
#define DISCO_FUSE_SEARCH_LINEAGE_H_

#include <cstdint>
#include <vector>

#include "strategy/edit.h"
#include "strategy/grouping.h"

namespace disco_fuse {

/*! \brief The strategy of a node as it was, so that those that came from it can be rebuilt. */
struct Checkpoint {
  Grouping::Image image;
  int32_t node;
};

/*!
 * \brief How every strategy that was worth keeping was reached: the edits from its parent.
 *
 *     start 0 --edits--> node 1 --edits--> node 3        node 3 from a checkpoint at node 1:
 *                          \-----edits--> node 4         its image, then the edits of node 3
 *
 * A node takes a few bytes an edit, an image thousands.
 */
class Lineage {
 public:
  explicit Lineage(const FusionLimits& limits) : limits_(limits) {}

  /*! \return The node of the start of that number. */
  int32_t AddStart(int32_t start) { return Add(-1 - start, {}); }
  int32_t Add(int32_t parent, std::vector<Edit> edits);
  /*! \brief The number of the start that a node descends from. */
  int32_t StartOf(int32_t node) const;
  /*! \brief What leads from `ancestor` to `node`, or from the start if `ancestor` is -1. */
  std::vector<Edit> EditsBetween(int32_t ancestor, int32_t node) const;
  /*! \brief Generations between a node and an ancestor of it. */
  int32_t Distance(int32_t ancestor, int32_t node) const;
  /*! \brief Becomes the strategy of `node`, which descends from that of the checkpoint. */
  void Rebuild(const Checkpoint& from, int32_t node, Grouping* grouping) const;

 private:
  struct Node {
    int32_t parent; /*!< < 0: start number -1 - parent */
    std::vector<Edit> edits;
  };

  FusionLimits limits_;
  std::vector<Node> nodes_;
};

}  // namespace disco_fuse

#endif  // DISCO_FUSE_SEARCH_LINEAGE_H_
