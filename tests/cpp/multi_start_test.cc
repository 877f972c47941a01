#include "search/multi_start.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cost/roofline.h"
#include "search/backtracking.h"
#include "test_graphs.h"

namespace disco_fuse {
namespace {

/*! \brief Layers that share values, so that starts from different seeds differ. */
OpGraph Layers() {
  GraphBuilder builder;
  std::vector<int32_t> values{builder.Elemwise({})};
  for (int i = 0; i < 12; ++i) {
    int32_t call = builder.Library({values.back()});
    values.push_back(builder.Elemwise({call, values[values.size() / 2]}));
    builder.Elemwise({builder.AllReduce(builder.Reduce({values.back(), call}))});
  }
  return builder.Build();
}

SearchResult RunSearch(int32_t num_starts, int32_t num_threads, const Observer& observer = {},
                       const std::vector<Strategy>& initial = {}) {
  OpGraph graph = Layers();
  RooflineCostModel model(graph, {"test", 1.0, 0.4, 10.0, 2.0}, {});
  SearchConfig config;
  config.max_steps = 300;
  config.report_every = 10;
  config.num_starts = num_starts;
  config.num_threads = num_threads;
  return Search(graph, model, {AllReduceModel{5, 0.01, 5, 0.01, 0}, 1200}, config, initial,
                observer);
}

void ExpectEqual(const SearchResult& a, const SearchResult& b) {
  EXPECT_EQ(a.best, b.best);
  EXPECT_EQ(a.edits, b.edits);
  EXPECT_EQ(a.makespan, b.makespan);
  EXPECT_EQ(a.found_makespan, b.found_makespan);
  EXPECT_EQ(a.num_candidates, b.num_candidates);
  EXPECT_EQ(a.num_unseen, b.num_unseen);
  EXPECT_EQ(a.num_steps, b.num_steps);
  EXPECT_EQ(a.stop_reason, b.stop_reason);
}

TEST(MultiStart, TheNumberOfThreadsDoesNotMatter) {
  OpGraph graph = Layers();
  std::vector<Strategy> initial{Strategy::Unfused(graph)};
  SearchResult one = RunSearch(5, 1, {}, initial);
  EXPECT_EQ(one.num_candidates, 5 * 300);
  for (int32_t num_threads : {2, 3, 8}) {
    SCOPED_TRACE(num_threads);
    ExpectEqual(RunSearch(5, num_threads, {}, initial), one);
    ExpectEqual(RunSearch(
                    5, num_threads, [](const Progress&) { return Verdict::kContinue; }, initial),
                one);
  }
}

TEST(MultiStart, MoreStartsAreNeverWorseAndTheFirstIsThePlainSearch) {
  SearchResult one = RunSearch(1, 1);
  SearchResult many = RunSearch(8, 2);
  EXPECT_LT(many.makespan, one.makespan);
  EXPECT_EQ(one.num_candidates, 300);
}

TEST(MultiStart, ReportsComeFromTheCallerAndCountEverything) {
  for (int32_t num_threads : {1, 4}) {
    SCOPED_TRACE(num_threads);
    std::thread::id caller = std::this_thread::get_id();
    int64_t last = 0;
    Nanoseconds makespan{0};
    SearchResult result = RunSearch(4, num_threads, [&](const Progress& progress) {
      EXPECT_EQ(std::this_thread::get_id(), caller);
      EXPECT_GE(progress.num_candidates, last);
      if (last > 0) {
        EXPECT_EQ(progress.improved, progress.makespan < makespan);
        EXPECT_LE(progress.makespan, makespan);
      }
      last = progress.num_candidates;
      makespan = progress.makespan;
      EXPECT_NE(progress.best, nullptr);
      EXPECT_GE(progress.num_queued, 0);
      return Verdict::kContinue;
    });
    EXPECT_EQ(last, result.num_candidates);
    EXPECT_EQ(makespan, result.makespan);
  }
}

TEST(MultiStart, AnInterruptEndsAllSearches) {
  for (int32_t num_threads : {1, 2}) {
    SCOPED_TRACE(num_threads);
    SearchResult result = RunSearch(50, num_threads, [](const Progress& progress) {
      return progress.num_candidates >= 20 ? Verdict::kInterrupted : Verdict::kContinue;
    });
    EXPECT_EQ(result.stop_reason, StopReason::kInterrupted);
    EXPECT_LT(result.num_candidates, num_threads == 1 ? 40 : 50 * 300);
    EXPECT_LE(result.makespan, result.initial_makespan);
  }
}

TEST(MultiStart, ALimitOfTimeEndsOneSearch) {
  SearchResult result = RunSearch(3, 1, [](const Progress& progress) {
    return progress.run == 1 ? Verdict::kTimeLimit : Verdict::kContinue;
  });
  EXPECT_EQ(result.stop_reason, StopReason::kTimeLimit);
  EXPECT_GT(result.num_candidates, 600);
  EXPECT_LT(result.num_candidates, 700);
}

TEST(MultiStart, ErrorsOfSearchesAndObserversAreThrownOn) {
  for (int32_t num_threads : {1, 2}) {
    SCOPED_TRACE(num_threads);
    auto fail = [](const Progress&) -> Verdict { throw std::runtime_error("observer"); };
    EXPECT_THROW(RunSearch(3, num_threads, fail), std::runtime_error);
    SearchConfig config;
    config.num_starts = 3;
    config.num_threads = num_threads;
    auto search = [](uint64_t, const Observer&) -> SearchResult {
      throw std::invalid_argument("search");
    };
    EXPECT_THROW(MultiStart(config, true, {}, search), std::invalid_argument);
  }
}

TEST(MultiStart, ModelsThatAreNotThreadSafeAreAskedByOneThread) {
  OpGraph graph = Layers();
  std::thread::id caller = std::this_thread::get_id();
  CallbackCostModel model("shy", [&](const OpGraph&, const std::vector<Group>& groups) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    return std::vector<double>(groups.size(), 1.0);
  });
  SearchConfig config;
  config.num_starts = config.num_threads = 2;
  config.max_steps = 20;
  SearchResult result =
      Search(graph, model, {AllReduceModel{5, 0.01, 5, 0.01, 0}, 1000}, config, {}, {});
  EXPECT_EQ(result.num_candidates, 40);
}

}  // namespace
}  // namespace disco_fuse
