#ifndef DISCO_FUSE_SEARCH_CANDIDATE_QUEUE_H_
#define DISCO_FUSE_SEARCH_CANDIDATE_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "cost/cost_model.h"
#include "search/lineage.h"

namespace disco_fuse {

/*! \brief A strategy that waits to be followed up, and the node that tells how it was reached. */
struct Candidate {
  Nanoseconds makespan;
  Hash128 hash;
  int32_t node;
  std::shared_ptr<const Checkpoint> base;       /*!< of an ancestor, or of the node itself */
  std::shared_ptr<const Grouping::Image> image; /*!< null: to be rebuilt from the base */
};

/*! \brief Cheapest first; equal makespans by strategy hash, so that the order is total. */
struct CheapestFirst {
  bool operator()(const Candidate& a, const Candidate& b) const {
    return std::tie(a.makespan, a.hash) < std::tie(b.makespan, b.hash);
  }
};

/*!
 * \brief Priority queue of candidates with an optional cap, beyond which the dearest go.
 *
 *     with image     o o o o o | o         the dearest of them loses its image when all images
 *     without         o    o  o   o o o    together get too large: it is followed up late or never
 *
 * A strategy that waits already is not queued once more.
 */
class CandidateQueue {
 public:
  /*!
   * \param cap Candidates to keep, < 0 for all.
   * \param image_bytes What images may take, each counted without what it shares with older ones.
   */
  CandidateQueue(int64_t cap, int64_t image_bytes) : cap_(cap), image_bytes_(image_bytes) {}
  bool empty() const { return size() == 0; }
  size_t size() const { return with_image_.size() + without_.size(); }
  void Push(Candidate candidate) {
    if (with_image_.count(candidate) + without_.count(candidate) > 0) return;
    if (candidate.image == nullptr) {
      without_.insert(std::move(candidate));
    } else {
      used_bytes_ += candidate.image->own_bytes;
      with_image_.insert(std::move(candidate));
    }
    while (used_bytes_ > image_bytes_) DropImage();
    if (cap_ >= 0 && static_cast<int64_t>(size()) > cap_) DropDearest();
  }
  void Clear() {
    with_image_.clear();
    without_.clear();
    used_bytes_ = 0;
  }
  /*! \brief Removes and returns the cheapest; the queue must not be empty. */
  Candidate Pop() {
    bool has_image = without_.empty() || (!with_image_.empty() &&
                                          CheapestFirst()(*with_image_.begin(), *without_.begin()));
    return has_image ? Take(with_image_.begin()) : Take(without_.begin());
  }

 private:
  using Set = std::set<Candidate, CheapestFirst>;

  Candidate Take(Set::iterator place) {
    if (place->image == nullptr) return std::move(without_.extract(place).value());
    used_bytes_ -= place->image->own_bytes;
    return std::move(with_image_.extract(place).value());
  }
  void DropImage() {
    Candidate candidate = Take(std::prev(with_image_.end()));
    candidate.image.reset();
    without_.insert(std::move(candidate));
  }
  void DropDearest() {
    bool has_image =
        without_.empty() ||
        (!with_image_.empty() && CheapestFirst()(*without_.rbegin(), *with_image_.rbegin()));
    Take(std::prev(has_image ? with_image_.end() : without_.end()));
  }

  int64_t cap_;
  int64_t image_bytes_;
  int64_t used_bytes_ = 0; /*!< by the images of with_image_ */
  Set with_image_;
  Set without_;
};

}  // namespace disco_fuse

#endif  // DISCO_FUSE_SEARCH_CANDIDATE_QUEUE_H_
