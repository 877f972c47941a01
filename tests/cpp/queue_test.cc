#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "search/candidate_queue.h"
#include "search/rng.h"

namespace disco_fuse {
namespace {

Candidate Make(int64_t makespan, int32_t label) {
  return {Nanoseconds(makespan), HashGrouping({0, label}, {}), label, nullptr, nullptr};
}

TEST(CandidateQueue, PopsCheapestFirst) {
  CandidateQueue queue(-1, 0);
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
    CandidateQueue queue(-1, 0);
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
  CandidateQueue queue(2, 0);
  for (int64_t makespan : {5, 1, 4, 2, 3}) queue.Push(Make(makespan, 0));
  EXPECT_EQ(queue.size(), 2u);
  EXPECT_EQ(queue.Pop().makespan, Nanoseconds(1));
  EXPECT_EQ(queue.Pop().makespan, Nanoseconds(2));
}

/*! \brief The same with an image of that size. */
Candidate MakeWithImage(int64_t makespan, int64_t own_bytes) {
  Candidate candidate = Make(makespan, 0);
  Grouping::Image image;
  image.own_bytes = own_bytes;
  candidate.image = std::make_shared<Grouping::Image>(image);
  return candidate;
}

TEST(CandidateQueue, TheDearestLoseTheirImagesAndKeepTheirPlaces) {
  CandidateQueue queue(-1, 250);
  for (int64_t makespan : {5, 1, 4}) queue.Push(MakeWithImage(makespan, 100));
  queue.Push(Make(2, 0));
  queue.Push(MakeWithImage(3, 100));
  std::vector<bool> has_image;
  for (int64_t makespan = 1; makespan <= 5; ++makespan) {
    Candidate candidate = queue.Pop();
    EXPECT_EQ(candidate.makespan, Nanoseconds(makespan));
    has_image.push_back(candidate.image != nullptr);
    // Room for one more: what lost its image before does not get it back.
    if (makespan == 1) queue.Push(MakeWithImage(6, 100));
  }
  EXPECT_EQ(has_image, (std::vector<bool>{true, false, true, false, false}));
  EXPECT_NE(queue.Pop().image, nullptr);
}

TEST(CandidateQueue, TheCapDropsTheDearestWithOrWithoutAnImage) {
  CandidateQueue queue(2, 1000);
  queue.Push(MakeWithImage(1, 1));
  queue.Push(Make(3, 0));
  queue.Push(MakeWithImage(2, 1));
  EXPECT_EQ(queue.size(), 2u);
  queue.Push(Make(0, 0));
  EXPECT_EQ(queue.size(), 2u);
  EXPECT_EQ(queue.Pop().makespan, Nanoseconds(0));
  EXPECT_EQ(queue.Pop().makespan, Nanoseconds(1));
}

TEST(CandidateQueue, WhatWaitsIsNotQueuedOnceMore) {
  CandidateQueue queue(-1, 50);
  for (int32_t node : {7, 8}) {
    Candidate candidate = MakeWithImage(1, 100);  // it loses the image at once
    candidate.node = node;
    queue.Push(candidate);
  }
  EXPECT_EQ(queue.size(), 1u);
  EXPECT_EQ(queue.Pop().node, 7);
  EXPECT_TRUE(queue.empty());
}

}  // namespace
}  // namespace disco_fuse
