#include "graph/hash.h"

#include <algorithm>
#include <cstring>

namespace disco_fuse {

void Hasher::AddDouble(double value) {
  if (value == 0.0) value = 0.0;
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  Add(bits);
}

void Hasher::AddString(std::string_view text) {
  Add(text.size());
  for (size_t begin = 0; begin < text.size(); begin += 8) {
    // Bytes are shifted rather than copied, so that the hash does not depend on endianness.
    uint64_t word = 0;
    for (size_t i = begin; i < std::min(begin + 8, text.size()); ++i) {
      word = (word << 8) | static_cast<unsigned char>(text[i]);
    }
    Add(word);
  }
}

std::string ToHex(const Hash128& hash) {
  static const char kDigits[] = "0123456789abcdef";
  std::string text;
  for (uint64_t word : {hash.hi, hash.lo}) {
    for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[(word >> shift) & 15];
  }
  return text;
}

}  // namespace disco_fuse
