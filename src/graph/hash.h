#ifndef DISCO_FUSE_GRAPH_HASH_H_
#define DISCO_FUSE_GRAPH_HASH_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace disco_fuse {

/*! \brief 128 bits that depend only on the hashed values: the same on every machine and run. */
struct Hash128 {
  uint64_t hi = 0;
  uint64_t lo = 0;
  bool operator==(const Hash128& other) const { return hi == other.hi && lo == other.lo; }
  bool operator!=(const Hash128& other) const { return !(*this == other); }
  bool operator<(const Hash128& other) const {
    return hi != other.hi ? hi < other.hi : lo < other.lo;
  }
};

/*! \brief For unordered containers: the bits are already mixed. */
struct Hash128Key {
  size_t operator()(const Hash128& hash) const { return static_cast<size_t>(hash.lo); }
};

/*! \brief Finaliser of splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
 * generators", OOPSLA 2014). */
inline uint64_t Mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/*! \brief Order-dependent hash of a sequence of numbers and strings. */
class Hasher {
 public:
  void Add(uint64_t value) {
    hi_ = Mix64(hi_ + value + 0x9e3779b97f4a7c15ULL);
    lo_ = Mix64((lo_ ^ value) * 0xff51afd7ed558ccdULL + 0x2545f4914f6cdd1dULL);
  }
  void AddInt(int64_t value) { Add(static_cast<uint64_t>(value)); }
  /*! \brief By bit pattern; -0.0 counts as 0.0 because they compare equal. */
  void AddDouble(double value);
  void AddString(std::string_view text);
  Hash128 Finish() const { return {Mix64(hi_ ^ (lo_ << 1)), Mix64(lo_ + hi_)}; }

 private:
  uint64_t hi_ = 0x6a09e667f3bcc908ULL;
  uint64_t lo_ = 0xbb67ae8584caa73bULL;
};

/*! \brief 32 lower-case hexadecimal digits. */
std::string ToHex(const Hash128& hash);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_GRAPH_HASH_H_
