#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "search/candidate_queue.h"
#include "search/rng.h"

namespace disco_fuse {
namespace {

Candidate Make(int64_t makespan, int32_t label) {
  return {Nanoseconds(makespan), HashGrouping({0, label}, {}), {}, label};
}

TEST(CandidateQueue, PopsCheapestFirst) {
  CandidateQueue queue(-1);
  for (int64_t makespan : {5, 1, 4, 2, 3}) queue.Push(Make(makespan, 0));
  for (int64_t makespan = 1; makespan <= 5; ++makespan) {
    EXPECT_EQ(queue.Pop().makespan, Nanoseconds(makespan));
  }
  EXPECT_TRUE(queue.empty());
}

TEST(CandidateQueue, BreaksTiesByHashWhateverTheInsertionOrder) {
  std::vector<Candidate> candidates;
  for (int32_t label = 0; label < 20; ++label) candidates.push_back(Make(7, label));
  std::vector<std::vector<int32_t>> popped;
  Rng rng(3);
  for (int round = 0; round < 5; ++round) {
    for (int32_t i = 19; i > 0; --i) std::swap(candidates[i], candidates[rng.Below(i + 1)]);
    CandidateQueue queue(-1);
    for (const Candidate& candidate : candidates) queue.Push(candidate);
    popped.emplace_back();
    Hash128 last;
    while (!queue.empty()) {
      Candidate candidate = queue.Pop();
      EXPECT_TRUE(last < candidate.hash);
      last = candidate.hash;
      popped.back().push_back(candidate.node);
    }
    EXPECT_EQ(popped.back().size(), 20u);
    EXPECT_EQ(popped.back(), popped.front());
  }
}

TEST(CandidateQueue, TheCapDropsTheDearest) {
  CandidateQueue queue(2);
  for (int64_t makespan : {5, 1, 4, 2, 3}) queue.Push(Make(makespan, 0));
  EXPECT_EQ(queue.size(), 2u);
  EXPECT_EQ(queue.Pop().makespan, Nanoseconds(1));
  EXPECT_EQ(queue.Pop().makespan, Nanoseconds(2));
}

}  // namespace
}  // namespace disco_fuse
