#include "runtime/reduce.h"

#include <cmath>
#include <cstring>

namespace disco_fuse::runtime {

namespace {

uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// binary16: 1 sign, 5 exponent (bias 15), 10 fraction bits. binary32: 1, 8 (bias 127), 23.
constexpr uint32_t kFloatInfinity = 0x7F800000U;
constexpr int kFractionShift = 23 - 10;
constexpr float kHalfScale = 0x1p112F;  // 2^(127 - 15)
constexpr float kSmallestNormalHalf = 0x1p-14F;
constexpr float kTooLargeForHalf = 65520.0F;  // halfway from the largest, 65504, to 65536

template <typename T>
void AddFull(T* __restrict__ target, const T* __restrict__ values, int64_t count, T scale) {
  if (scale == T{1}) {
    for (int64_t i = 0; i < count; ++i) target[i] += values[i];
  } else {
    for (int64_t i = 0; i < count; ++i) target[i] = (target[i] + values[i]) * scale;
  }
}

template <float (*Widen)(uint16_t), uint16_t (*Narrow)(float)>
void AddNarrow(uint16_t* __restrict__ target, const uint16_t* __restrict__ values, int64_t count,
               float scale) {
  for (int64_t i = 0; i < count; ++i) {
    target[i] = Narrow((Widen(target[i]) + Widen(values[i])) * scale);
  }
}

}  // namespace

float HalfToFloat(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000U) << 16;
  const uint32_t magnitude = bits & 0x7FFFU;
  // Read as binary32 the exponent is 112 too small; scaling mends it, for subnormals as well.
  uint32_t wide = BitsOf(FromBits(magnitude << kFractionShift) * kHalfScale);
  if (magnitude >= 0x7C00U) wide = kFloatInfinity | (magnitude << kFractionShift);
  return FromBits(sign | wide);
}

uint16_t FloatToHalf(float value) {
  const uint32_t sign = (BitsOf(value) & 0x80000000U) >> 16;
  const float magnitude = std::fabs(value);
  uint32_t narrow;
  if (std::isnan(magnitude)) {
    narrow = 0x7E00U;
  } else if (magnitude >= kTooLargeForHalf) {
    narrow = 0x7C00U;
  } else if (magnitude < kSmallestNormalHalf) {
    // One unit in the last place of 0.5 is 2^-24, that of subnormal halves: the sum is rounded to
    // it, and what it exceeds 0.5 by is counted in it.
    narrow = BitsOf(magnitude + 0.5F) - BitsOf(0.5F);
  } else {
    const uint32_t wide = BitsOf(magnitude) - (112U << 23);
    const uint32_t odd = (wide >> kFractionShift) & 1U;
    narrow = (wide + (1U << (kFractionShift - 1)) - 1U + odd) >> kFractionShift;
  }
  return static_cast<uint16_t>(sign | narrow);
}

float Bfloat16ToFloat(uint16_t bits) { return FromBits(static_cast<uint32_t>(bits) << 16); }

uint16_t FloatToBfloat16(float value) {
  const uint32_t bits = BitsOf(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x0040U);
  const uint32_t odd = (bits >> 16) & 1U;
  return static_cast<uint16_t>((bits + 0x7FFFU + odd) >> 16);
}

void AddThenScale(void* target, const void* values, int64_t count, DataType dtype, double scale) {
  const auto narrow_scale = static_cast<float>(scale);
  switch (dtype) {
    case DataType::kFloat32:
      return AddFull(static_cast<float*>(target), static_cast<const float*>(values), count,
                     narrow_scale);
    case DataType::kFloat64:
      return AddFull(static_cast<double*>(target), static_cast<const double*>(values), count,
                     scale);
    case DataType::kFloat16:
      return AddNarrow<HalfToFloat, FloatToHalf>(static_cast<uint16_t*>(target),
                                                 static_cast<const uint16_t*>(values), count,
                                                 narrow_scale);
    case DataType::kBfloat16:
      return AddNarrow<Bfloat16ToFloat, FloatToBfloat16>(static_cast<uint16_t*>(target),
                                                         static_cast<const uint16_t*>(values),
                                                         count, narrow_scale);
  }
}

}  // namespace disco_fuse::runtime
