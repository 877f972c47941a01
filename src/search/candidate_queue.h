#ifndef DISCO_FUSE_SEARCH_CANDIDATE_QUEUE_H_
#define DISCO_FUSE_SEARCH_CANDIDATE_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <tuple>
#include <utility>

#include "cost/cost_model.h"
#include "strategy/grouping.h"

namespace disco_fuse {

/*! \brief A strategy that waits to be followed up, and the node that tells how it was reached. */
struct Candidate {
  Nanoseconds makespan;
  Hash128 hash;
  Grouping::Image strategy;
  int32_t node;
};

/*! \brief Cheapest first; equal makespans by strategy hash, so that the order is total. */
struct CheapestFirst {
  bool operator()(const Candidate& a, const Candidate& b) const {
    return std::make_tuple(a.makespan, a.hash) < std::make_tuple(b.makespan, b.hash);
  }
};

/*! \brief Priority queue of candidates with an optional cap, beyond which the dearest go. */
class CandidateQueue {
 public:
  /*! \param cap Candidates to keep, < 0 for all. */
  explicit CandidateQueue(int64_t cap) : cap_(cap) {}
  bool empty() const { return candidates_.empty(); }
  size_t size() const { return candidates_.size(); }
  void Push(Candidate candidate) {
    candidates_.insert(std::move(candidate));
    if (cap_ >= 0 && static_cast<int64_t>(candidates_.size()) > cap_) {
      candidates_.erase(std::prev(candidates_.end()));
    }
  }
  void Clear() { candidates_.clear(); }
  /*! \brief Removes and returns the cheapest; the queue must not be empty. */
  Candidate Pop() { return std::move(candidates_.extract(candidates_.begin()).value()); }

 private:
  int64_t cap_;
  std::set<Candidate, CheapestFirst> candidates_;
};

}  // namespace disco_fuse

#endif  // DISCO_FUSE_SEARCH_CANDIDATE_QUEUE_H_
