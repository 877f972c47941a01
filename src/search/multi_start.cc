#include "search/multi_start.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "graph/hash.h"

namespace disco_fuse {
namespace {

using Results = std::vector<std::optional<SearchResult>>;

uint64_t SeedOf(uint64_t seed, int32_t run) {
  return run == 0 ? seed : Mix64(seed + static_cast<uint64_t>(run) * 0x9e3779b97f4a7c15ULL);
}

/*! \brief Turns reports of single searches into reports of all. */
class Together {
 public:
  explicit Together(int32_t num_runs) : last_(num_runs, Progress{0, 0, Nanoseconds(0), false}) {}

  Progress Add(int32_t run, Progress report) {
    num_steps_ += report.num_steps - last_[run].num_steps;
    num_candidates_ += report.num_candidates - last_[run].num_candidates;
    num_queued_ += report.num_queued - last_[run].num_queued;
    last_[run] = report;
    // Not every search that improves improves on all of them.
    report.improved = report.improved && (!any_ || report.makespan < makespan_);
    if (!any_ || report.makespan < makespan_) makespan_ = report.makespan;
    any_ = true;
    report.num_steps = num_steps_;
    report.num_candidates = num_candidates_;
    report.num_queued = num_queued_;
    report.makespan = makespan_;
    report.run = run;
    return report;
  }

 private:
  std::vector<Progress> last_;
  int64_t num_steps_ = 0;
  int64_t num_candidates_ = 0;
  int64_t num_queued_ = 0;
  Nanoseconds makespan_{0};
  bool any_ = false;
};

Results RunInTurn(const SearchConfig& config, const Observer& observer,
                  const SingleSearch& search) {
  Results results(config.num_starts);
  Together together(config.num_starts);
  for (int32_t run = 0; run < config.num_starts; ++run) {
    Observer observe;
    if (observer) {
      observe = [&, run](const Progress& report) { return observer(together.Add(run, report)); };
    }
    results[run] = search(SeedOf(config.seed, run), observe);
    if (results[run]->stop_reason == StopReason::kInterrupted) break;
  }
  return results;
}

/*! \brief Worker threads and the mailbox between them and the caller; lives for one call. */
class Workers {
 public:
  Workers(const SearchConfig& config, const SingleSearch& search)
      : config_(config),
        search_(search),
        results_(config.num_starts),
        late_phases_(config.num_starts),
        num_working_(std::min(config.num_starts, config.num_threads)) {
    for (std::atomic<int32_t>& phase : late_phases_) phase = -1;
  }

  Results Run(const Observer& observer) {
    std::vector<std::thread> threads;
    for (int32_t i = num_working_; i > 0; --i) threads.emplace_back([this] { Work(); });
    Listen(observer);
    for (std::thread& thread : threads) thread.join();
    if (error_) std::rethrow_exception(error_);
    return std::move(results_);
  }

 private:
  void Work() {
    for (int32_t run = next_++; run < config_.num_starts && !interrupted_; run = next_++) {
      try {
        results_[run] = search_(SeedOf(config_.seed, run),
                                [&](const Progress& report) { return Post(run, report); });
      } catch (...) {
        Fail();
      }
    }
    std::lock_guard<std::mutex> lock(mutex_);
    --num_working_;
    changed_.notify_one();
  }

  Verdict Post(int32_t run, const Progress& report) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      reports_.emplace_back(run, report);
    }
    changed_.notify_one();
    if (interrupted_) return Verdict::kInterrupted;
    return late_phases_[run] == report.phase ? Verdict::kTimeLimit : Verdict::kContinue;
  }

  /*! \brief Remembers the exception that is being handled, and ends all searches. */
  void Fail() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!error_) error_ = std::current_exception();
    interrupted_ = true;
  }

  /*! \brief Tells the observer what the workers report, until they are done. */
  void Listen(const Observer& observer) {
    Together together(config_.num_starts);
    std::vector<std::pair<int32_t, Progress>> reports;
    std::unique_lock<std::mutex> lock(mutex_);
    while (num_working_ > 0 || !reports_.empty()) {
      changed_.wait(lock, [&] { return num_working_ == 0 || !reports_.empty(); });
      reports.swap(reports_);
      lock.unlock();
      for (const auto& [run, report] : reports) Tell(observer, together.Add(run, report));
      reports.clear();
      lock.lock();
    }
  }

  void Tell(const Observer& observer, const Progress& progress) {
    if (!observer || interrupted_) return;
    try {
      Verdict verdict = observer(progress);
      if (verdict == Verdict::kInterrupted) interrupted_ = true;
      if (verdict == Verdict::kTimeLimit) late_phases_[progress.run] = progress.phase;
    } catch (...) {
      Fail();
    }
  }

  const SearchConfig& config_;
  const SingleSearch& search_;
  Results results_;
  std::vector<std::atomic<int32_t>> late_phases_; /*!< per run: the phase that has to end, or -1 */
  std::atomic<int32_t> next_{0};
  std::atomic<bool> interrupted_{false};
  std::mutex mutex_; /*!< guards what follows */
  std::condition_variable changed_;
  std::vector<std::pair<int32_t, Progress>> reports_;
  int32_t num_working_;
  std::exception_ptr error_;
};

}  // namespace

SearchResult MultiStart(const SearchConfig& config, bool parallel, const Observer& observer,
                        const SingleSearch& search) {
  bool threads = parallel && config.num_threads > 1 && config.num_starts > 1;
  Results results =
      threads ? Workers(config, search).Run(observer) : RunInTurn(config, observer, search);
  const SearchResult* best = nullptr;
  for (const std::optional<SearchResult>& result : results) {
    auto key = [](const SearchResult& r) { return std::make_tuple(r.makespan, r.best.hash()); };
    if (result && (best == nullptr || key(*result) < key(*best))) best = &*result;
  }
  SearchResult all = *best;
  all.num_steps = all.num_candidates = all.num_found_candidates = all.num_unseen = 0;
  all.num_looked_up = all.num_priced = 0;
  for (const std::optional<SearchResult>& result : results) {
    if (!result) {
      all.stop_reason = StopReason::kInterrupted;
      continue;
    }
    all.found_makespan = std::min(all.found_makespan, result->found_makespan);
    all.num_steps += result->num_steps;
    all.num_candidates += result->num_candidates;
    all.num_found_candidates += result->num_found_candidates;
    all.num_unseen += result->num_unseen;
    all.num_looked_up += result->num_looked_up;
    all.num_priced += result->num_priced;
    bool cut = result->stop_reason == StopReason::kInterrupted;
    bool late = result->stop_reason == StopReason::kTimeLimit;
    if (cut || (late && all.stop_reason != StopReason::kInterrupted)) {
      all.stop_reason = result->stop_reason;
    }
  }
  return all;
}

}  // namespace disco_fuse
