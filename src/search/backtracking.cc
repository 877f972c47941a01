#include "search/backtracking.h"

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>

#include "search/candidate_queue.h"
#include "search/edit_sampler.h"
#include "search/lower_bound.h"
#include "search/memory_limit.h"
#include "search/multi_start.h"
#include "search/neighbourhood.h"

namespace disco_fuse {
namespace {

/*! Generations that are rebuilt at most: a strategy that is followed up farther from the checkpoint
 * that it descends from becomes the one of its descendants. */
constexpr int32_t kMaxDistance = 32;

/*! \brief State of one search; lives for one call of Search. */
class Backtracking {
 public:
  Backtracking(const OpGraph& graph, const CostModel& model, const Cluster& cluster,
               const SearchConfig& config, uint64_t seed, const Observer& observer)
      : graph_(graph),
        config_(config),
        observer_(observer),
        near_(graph, model, cluster),
        memory_limit_(graph, config.memory_limit),
        sampler_(graph, config.limits, config.num_tries),
        rng_(seed),
        queue_(config.queue_cap, config.image_bytes),
        followed_(-1, config.image_bytes),
        lineage_(config.limits),
        parent_(graph),
        children_(config.methods.size(), Child{Grouping(graph), {}, {}, -1}) {}

  SearchResult Run(const std::vector<Strategy>& initial) {
    AddStart(Strategy::Unfused(graph_), 0);
    bool limited = config_.max_steps >= 0;
    last_candidate_ = limited && !initial.empty() ? (config_.max_steps + 1) / 2 : config_.max_steps;
    Explore();
    found_makespan_ = makespan_;
    num_found_candidates_ = num_candidates_;
    if (!initial.empty()) FollowUp(initial);
    return Result();
  }

 private:
  struct Child {
    Grouping grouping;
    std::vector<Edit> edits;
    Hash128 hash;
    int32_t slot; /*!< among the priced ones, < 0 if it was judged before */
  };

  /*! \brief The second phase: from the best so far and the initial strategies. */
  void FollowUp(const std::vector<Strategy>& initial) {
    bool goes_on = stop_reason_ != StopReason::kInterrupted;
    queue_.Clear();
    followed_.Clear();
    parent_.Load(*best_);
    PushStart(makespan_, best_node_);
    for (size_t i = 0; i < initial.size(); ++i) AddStart(initial[i], static_cast<int32_t>(i) + 1);
    if (!goes_on) return;
    phase_ = 1;
    unchanged_ = 0;
    last_candidate_ = config_.max_steps;
    stop_reason_ = StopReason::kQueueEmpty;
    Explore();
  }

  /*! \brief Follows up what is queued until a limit is reached. */
  void Explore() {
    if (IsLast()) stop_reason_ = StopReason::kMaxSteps;
    while (stop_reason_ == StopReason::kQueueEmpty && !queue_.empty()) {
      Follow(queue_.Pop());
      if (stop_reason_ == StopReason::kQueueEmpty && unchanged_ >= config_.patience) {
        stop_reason_ = StopReason::kPatience;
      }
      if (queue_.empty()) Refill();
    }
  }

  bool IsLast() const { return last_candidate_ >= 0 && num_candidates_ >= last_candidate_; }

  /*! \brief Judges the children of a strategy, and decides whether it shall have more of them. */
  void Follow(Candidate candidate) {
    ++num_steps_;
    Recall(&candidate);
    near_.Settle(parent_);
    saw_itself_ = saw_new_ = false;
    for (int32_t i = 0; i < config_.children_per_pop; ++i) Expand(candidate);
    // With no edit drawn or possible the child is the strategy itself and goes back.
    bool returns = saw_itself_ && (config_.drop_stale ? saw_new_ : IsClose(candidate.makespan));
    if (returns) {
      queue_.Push(std::move(candidate));
    } else if (config_.refill) {
      followed_.Push(std::move(candidate));
    }
  }

  /*! \brief Makes a strategy that waited the parent, from its image or its base. */
  void Recall(Candidate* candidate) {
    if (candidate->image != nullptr) {
      parent_.Restore(*candidate->image);
    } else {
      lineage_.Rebuild(*candidate->base, candidate->node, &parent_);
      candidate->image = std::make_shared<Grouping::Image>(parent_.Save());
    }
    if (lineage_.Distance(candidate->base->node, candidate->node) < kMaxDistance) return;
    Checkpoint here{*candidate->image, candidate->node};
    candidate->base = std::make_shared<Checkpoint>(std::move(here));
  }

  void AddStart(const Strategy& strategy, int32_t start) {
    parent_.Load(strategy);
    Nanoseconds time = near_.Settle(parent_);
    near_.Price({&parent_});
    const std::vector<int32_t>& order = near_.Order(0);
    Nanoseconds makespan = memory_limit_.Cost(parent_, order, time);
    visited_.emplace(parent_.Hash(), makespan);
    if (start == 0 || makespan < best_start_makespan_) {
      best_start_ = start;
      best_start_makespan_ = makespan;
    }
    int32_t node = lineage_.AddStart(start);
    if (start == 0 || makespan < makespan_) {
      SetBest(parent_.ToStrategy(order), node);
      makespan_ = makespan;
    }
    if (start == 0) initial_makespan_ = time;
    PushStart(makespan, node);
  }

  /*! \brief Queues what was loaded into parent_; it is rebuilt from nothing older. */
  void PushStart(Nanoseconds makespan, int32_t node) {
    auto base = std::make_shared<Checkpoint>(Checkpoint{parent_.Save(), node});
    auto image = std::make_shared<Grouping::Image>(base->image);
    queue_.Push({makespan, parent_.Hash(), node, std::move(base), std::move(image)});
  }

  /*! \brief Queues again what was followed up before and is still close enough to the best. */
  void Refill() {
    while (!followed_.empty()) {
      Candidate candidate = followed_.Pop();
      if (IsClose(candidate.makespan)) queue_.Push(std::move(candidate));
    }
  }

  bool IsClose(Nanoseconds makespan) const {
    return static_cast<double>(makespan.count()) <=
           config_.alpha * static_cast<double>(std::min(makespan, makespan_).count());
  }

  /*! \brief One child per method, all priced by one call of the cost model. */
  void Expand(const Candidate& parent) {
    std::vector<const Grouping*> groupings;
    for (size_t i = 0; i < children_.size(); ++i) {
      Child& child = children_[i];
      MakeChild(config_.methods[i], parent, &child);
      child.slot = -1;
      if (visited_.count(child.hash) > 0) continue;
      child.slot = static_cast<int32_t>(groupings.size());
      groupings.push_back(&child.grouping);
    }
    near_.Price(groupings);
    for (const Child& child : children_) {
      if (stop_reason_ != StopReason::kQueueEmpty) return;
      Judge(parent, child);
    }
  }

  void MakeChild(EditKind kind, const Candidate& parent, Child* child) {
    child->edits.clear();
    child->grouping.Restore(*parent.image);
    if (config_.num_chains == 0) ApplyEdits(kind, DrawNumEdits(), child);
    for (int32_t i = 0; i < config_.num_chains; ++i) {
      sampler_.ApplyChain(kind, 1 + rng_.Below(config_.beta), &rng_, &child->grouping,
                          &child->edits);
    }
    child->hash = child->grouping.Hash();
  }

  int32_t DrawNumEdits() {
    if (!config_.prefer_few) return rng_.Below(config_.beta + 1);
    return 1 + rng_.Below(1 + rng_.Below(config_.beta));
  }

  void ApplyEdits(EditKind kind, int32_t num_edits, Child* child) {
    for (int32_t i = 0; i < num_edits; ++i) {
      Edit edit;
      if (!sampler_.ApplyRandom(kind, &rng_, &child->grouping, &edit)) return;
      child->edits.push_back(edit);
    }
  }

  void Judge(const Candidate& parent, const Child& child) {
    ++num_candidates_;
    auto [entry, is_new] = visited_.emplace(child.hash, Nanoseconds(0));
    saw_new_ = saw_new_ || is_new;
    saw_itself_ = saw_itself_ || child.edits.empty();
    if (is_new) {
      entry->second = CostOf(child);
    }
    if (is_new && !child.edits.empty()) ++num_unseen_;
    Nanoseconds makespan = entry->second;
    bool improved = makespan < makespan_;
    if (!child.edits.empty() && IsClose(makespan)) {
      int32_t reached = lineage_.Add(parent.node, child.edits);
      if (improved) SetBest(child.grouping.ToStrategy(near_.Order(child.slot)), reached);
      // A strategy that was followed up before may come again: its other children are still open.
      auto image = std::make_shared<Grouping::Image>(child.grouping.Save());
      queue_.Push({makespan, child.hash, reached, parent.base, std::move(image)});
    }
    if (improved) makespan_ = makespan;
    unchanged_ = improved ? 0 : unchanged_ + 1;
    Report(improved);
  }

  Nanoseconds CostOf(const Child& child) {
    Nanoseconds time = near_.Schedule(child.slot);
    // The order of most candidates is never asked for: a second run makes it.
    if (!memory_limit_.IsSet()) return time;
    return memory_limit_.Cost(child.grouping, near_.Order(child.slot), time);
  }

  void Report(bool improved) {
    if (IsLast()) stop_reason_ = StopReason::kMaxSteps;
    if (!observer_ || (!improved && num_candidates_ % config_.report_every != 0)) return;
    Nanoseconds makespan = MemoryLimit::MakespanOf(makespan_);
    int64_t num_queued = static_cast<int64_t>(queue_.size());
    Verdict verdict =
        observer_({num_steps_, num_candidates_, makespan, improved, 0, phase_, num_queued, best_});
    if (verdict == Verdict::kTimeLimit) stop_reason_ = StopReason::kTimeLimit;
    if (verdict == Verdict::kInterrupted) stop_reason_ = StopReason::kInterrupted;
  }

  void SetBest(Strategy strategy, int32_t node) {
    best_ = std::make_shared<Strategy>(std::move(strategy));
    best_node_ = node;
  }

  SearchResult Result() const {
    SearchResult result{*best_};
    result.makespan = makespan_;
    result.initial_makespan = initial_makespan_;
    result.found_makespan = MemoryLimit::MakespanOf(found_makespan_);
    result.best_start = best_start_;
    result.best_start_makespan = MemoryLimit::MakespanOf(best_start_makespan_);
    result.num_steps = num_steps_;
    result.num_candidates = num_candidates_;
    result.num_found_candidates = num_found_candidates_;
    result.num_unseen = num_unseen_;
    result.num_looked_up = near_.num_looked_up();
    result.num_priced = near_.num_priced();
    result.stop_reason = stop_reason_;
    result.edits = lineage_.EditsBetween(-1, best_node_);
    result.start = lineage_.StartOf(best_node_);
    return result;
  }

  const OpGraph& graph_;
  const SearchConfig& config_;
  const Observer& observer_;
  Neighbourhood near_;
  MemoryLimit memory_limit_;
  EditSampler sampler_;
  Rng rng_;
  CandidateQueue queue_;
  CandidateQueue followed_; /*!< taken from the queue since it was last filled */
  Lineage lineage_;
  std::unordered_map<Hash128, Nanoseconds, Hash128Key> visited_; /*!< only grows */
  Grouping parent_;
  std::vector<Child> children_;
  std::shared_ptr<const Strategy> best_; /*!< the incumbent, once there is one */
  Nanoseconds makespan_{0};              /*!< like all of the search's: see MemoryLimit */
  Nanoseconds initial_makespan_{0};
  Nanoseconds found_makespan_{0};
  Nanoseconds best_start_makespan_{0};
  int32_t best_start_ = 0;
  int32_t best_node_ = -1;
  int32_t phase_ = 0;
  int64_t last_candidate_ = -1; /*!< the phase ends with it; < 0: no limit */
  bool saw_itself_ = false;     /*!< a child of the current strategy was no other strategy */
  bool saw_new_ = false;        /*!< a child of the current strategy had not been visited */
  int64_t unchanged_ = 0;
  int64_t num_steps_ = 0;
  int64_t num_candidates_ = 0;
  int64_t num_found_candidates_ = 0;
  int64_t num_unseen_ = 0;
  /*! Stays at kQueueEmpty, which is the reason if nothing else happens, while the search runs. */
  StopReason stop_reason_ = StopReason::kQueueEmpty;
};

}  // namespace

SearchResult Search(const OpGraph& graph, const CostModel& model, const Cluster& cluster,
                    const SearchConfig& config, const std::vector<Strategy>& initial,
                    const Observer& observer) {
  config.Check();
  auto search = [&](uint64_t seed, const Observer& observe) {
    return Backtracking(graph, model, cluster, config, seed, observe).Run(initial);
  };
  SearchResult result = MultiStart(config, model.thread_safe(), observer, search);
  MemoryLimit::CheckMet(result.makespan, config.memory_limit);
  result.lower_bound = LowerBound(graph, model, cluster);
  return result;
}

}  // namespace disco_fuse
