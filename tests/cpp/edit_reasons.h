#ifndef DISCO_FUSE_TESTS_CPP_EDIT_REASONS_H_
#define DISCO_FUSE_TESTS_CPP_EDIT_REASONS_H_

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "strategy/edit.h"

namespace disco_fuse {

/*! \brief Why the last of `edits` is illegal, or "allowed"; the others are legal. */
inline std::string ReasonOf(const OpGraph& graph, const std::vector<Edit>& edits,
                            const FusionLimits& limits) {
  Grouping grouping(graph);
  for (size_t i = 0; i + 1 < edits.size(); ++i) {
    FusionDecision decision = ApplyEdit(limits, edits[i], &grouping);
    EXPECT_TRUE(decision.allowed()) << decision.reason();
  }
  Hash128 before = grouping.Hash();
  FusionDecision decision = ApplyEdit(limits, edits.back(), &grouping);
  EXPECT_EQ(decision.allowed(), grouping.Hash() != before);
  return decision.allowed() ? "allowed" : decision.reason();
}

/*! \brief The name of the violated rule: what stands before the first colon. */
inline std::string Rule(const std::string& reason) { return reason.substr(0, reason.find(':')); }

}  // namespace disco_fuse

#endif  // DISCO_FUSE_TESTS_CPP_EDIT_REASONS_H_
