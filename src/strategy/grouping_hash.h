#ifndef DISCO_FUSE_STRATEGY_GROUPING_HASH_H_
#define DISCO_FUSE_STRATEGY_GROUPING_HASH_H_

#include <cstdint>

#include "graph/hash.h"

namespace disco_fuse {

/*!
 * \brief Hash of a choice that follows every change in constant time.
 *
 * It sums up 128 pseudo-random bits for each fact: "op o lives in group g" unless g = o, which is
 * so for most ops, and "op o is computed once more in g". A sum does not depend on the order in
 * which the facts came, and a fact is taken back by subtraction.
 */
class GroupingHash {
 public:
  void AddHome(int32_t op, int32_t group) {
    if (op != group) Add(Key(kHome, op, group));
  }
  void DropHome(int32_t op, int32_t group) {
    if (op != group) Drop(Key(kHome, op, group));
  }
  void AddCopy(int32_t op, int32_t group) { Add(Key(kCopy, op, group)); }
  void DropCopy(int32_t op, int32_t group) { Drop(Key(kCopy, op, group)); }
  /*! \brief The hash of a graph of `num_ops` ops with the facts so far. */
  Hash128 Finish(int32_t num_ops) const {
    Hasher hasher;
    hasher.Add(static_cast<uint64_t>(num_ops));
    hasher.Add(sum_.hi);
    hasher.Add(sum_.lo);
    return hasher.Finish();
  }

 private:
  static constexpr uint64_t kHome = 0x243f6a8885a308d3ULL;
  static constexpr uint64_t kCopy = 0x13198a2e03707344ULL;

  static Hash128 Key(uint64_t role, int32_t op, int32_t group) {
    uint64_t pair =
        (static_cast<uint64_t>(static_cast<uint32_t>(op)) << 32) | static_cast<uint32_t>(group);
    return {Mix64(pair * 0x9e3779b97f4a7c15ULL + role),
            Mix64(pair * 0xd1342543de82ef95ULL + (role ^ 0x632be59bd9b4e019ULL))};
  }
  void Add(const Hash128& key) {
    sum_.hi += key.hi;
    sum_.lo += key.lo;
  }
  void Drop(const Hash128& key) {
    sum_.hi -= key.hi;
    sum_.lo -= key.lo;
  }

  Hash128 sum_;
};

}  // namespace disco_fuse

#endif  // DISCO_FUSE_STRATEGY_GROUPING_HASH_H_
