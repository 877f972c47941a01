#ifndef DISCO_FUSE_STRATEGY_LEGALITY_H_
#define DISCO_FUSE_STRATEGY_LEGALITY_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "graph/op_graph.h"

namespace disco_fuse {

/*! \brief Empty: allowed; otherwise the reason in words. An illegal fusion is data, no error. */
class FusionDecision {
 public:
  FusionDecision() = default;
  static FusionDecision Deny(std::string reason) {
    FusionDecision decision;
    decision.reason_ = std::move(reason);
    return decision;
  }
  bool allowed() const { return reason_.empty(); }
  const std::string& reason() const { return reason_; }

 private:
  std::string reason_;
};

/*! \brief Which buckets are neighbours, that is, may be merged by one edit. */
enum class BucketNeighbours : int32_t {
  /*!
   * The paper's text: gradient ops in a producer/consumer relation after fusion, that is, two
   * gradients come from one unit or from two units joined by an edge. A library call is a unit of
   * its own that no other gradient is computed from; where weight gradients are library calls, one
   * layer's weight, bias and scale become neighbours through the kernel they share, but two layers
   * do not, because the call for the input gradient stands between them.
   */
  kProducerConsumer = 0,
  /*! The above, or their gradients follow each other in production order: our extension, which
   * makes neighbours of layers too. */
  kProductionOrder = 1,
};

/*! \brief Bounds of the search space. */
struct FusionLimits {
  int32_t max_group_ops = 64;
  /*! External inputs plus outputs of one kernel. */
  int32_t max_group_args = 64;
  BucketNeighbours bucket_neighbours = BucketNeighbours::kProducerConsumer;
};

// One function per rule. `ops` are the members of the group, ascending, copies included.

/*! \brief kind: library calls and collectives are never part of a kernel. */
FusionDecision CheckKind(const OpGraph& graph, Span<int32_t> ops);
/*! \brief pattern: opaque and tuple ops stay alone. */
FusionDecision CheckPattern(const OpGraph& graph, Span<int32_t> ops);
/*! \brief size: at most max_group_ops members. */
FusionDecision CheckSize(const OpGraph& graph, const FusionLimits& limits, Span<int32_t> ops);
/*! \brief arguments: distinct external inputs plus outputs. */
FusionDecision CheckArguments(const OpGraph& graph, const FusionLimits& limits, Span<int32_t> ops,
                              int32_t num_outputs);
/*! \brief duplicate: `op` is cheap enough to be computed twice and overwrites nothing. */
FusionDecision CheckDuplicable(const OpGraph& graph, int32_t op);
/*! \brief duplication: copies are at most as many as ops. */
FusionDecision CheckDuplication(const OpGraph& graph, int32_t num_copies);
/*! \brief donation: a kernel may overwrite in place what it reads only element by element. */
FusionDecision CheckDonation(const OpGraph& graph, Span<int32_t> ops);
/*! \brief merge class: one message has one reduction, dtype and set of ranks. */
FusionDecision CheckMergeClass(const OpGraph& graph, int32_t a, int32_t b);

/*! \brief All rules about one kernel with more than one member. */
FusionDecision CheckGroup(const OpGraph& graph, const FusionLimits& limits, Span<int32_t> ops,
                          int32_t num_outputs);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_STRATEGY_LEGALITY_H_
