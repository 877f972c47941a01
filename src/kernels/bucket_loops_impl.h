// No include guard and no header with inline functions of its own: this text is compiled once for
// each instruction set, and a function that the linker could share would bring instructions of one
// set into the other's callers. Everything here has internal linkage.
#include <math.h>
#include <string.h>

#ifdef __F16C__
#include <immintrin.h>
#endif

#include <type_traits>

#include "kernels/bucket_loops.h"

namespace disco_fuse {
namespace {

struct Float16 {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// Elements that are converted at a time: two blocks of double stay in the first-level cache.
constexpr int64_t kBlock = 512;

template <typename T>
constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

float FromBits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

uint32_t ToBits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

/*! \brief Widens by a multiplication that moves the exponent and makes subnormals normal. */
inline float Widen(Float16 half) {
  const uint32_t magnitude = half.bits & 0x7fffu;
  const uint32_t finite = ToBits(FromBits(magnitude << 13) * 0x1p112f);
  const uint32_t special = (magnitude << 13) | 0x7f800000u;
  const uint32_t sign = static_cast<uint32_t>(half.bits & 0x8000u) << 16;
  return FromBits((magnitude >= 0x7c00u ? special : finite) | sign);
}

/*!
 * \brief Rounds to nearest, ties to even.
 *
 * Below 2^-14 the addition of 0.5, whose last bit is 2^-24, rounds to a subnormal; from 65520 on
 * the result is infinity.
 */
inline void Narrow(float value, Float16* to) {
  const uint32_t bits = ToBits(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t subnormal = ToBits(FromBits(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
  const uint32_t result = magnitude >= 0x477ff000u ? special : finite;
  to->bits = static_cast<uint16_t>(result | ((bits >> 16) & 0x8000u));
}

inline float Widen(BFloat16 half) { return FromBits(static_cast<uint32_t>(half.bits) << 16); }

inline void Narrow(float value, BFloat16* to) {
  const uint32_t bits = ToBits(value);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  to->bits = static_cast<uint16_t>((is_nan ? bits | 0x400000u : rounded) >> 16);
}

inline float Widen(float value) { return value; }
inline double Widen(double value) { return value; }
inline void Narrow(float value, float* to) { *to = value; }
inline void Narrow(float value, double* to) { *to = value; }
inline void Narrow(double value, float* to) { *to = static_cast<float>(value); }
inline void Narrow(double value, double* to) { *to = value; }

template <typename T, typename C>
void WidenBlock(const T* __restrict__ from, C* __restrict__ to, int64_t count) {
  int64_t i = 0;
#ifdef __F16C__
  if constexpr (std::is_same_v<T, Float16> && std::is_same_v<C, float>) {
    for (; i + 8 <= count; i += 8) {
      const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(bits));
    }
  }
#endif
  for (; i < count; ++i) to[i] = static_cast<C>(Widen(from[i]));
}

/*! \brief 16-bit types are reached by way of float. */
template <typename C, typename T>
void NarrowBlock(const C* __restrict__ from, T* __restrict__ to, int64_t count) {
  int64_t i = 0;
#ifdef __F16C__
  if constexpr (std::is_same_v<T, Float16> && std::is_same_v<C, float>) {
    for (; i + 8 <= count; i += 8) {
      const __m128i bits = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), bits);
    }
  }
#endif
  for (; i < count; ++i) {
    if constexpr (kIsHalf<T>) {
      Narrow(static_cast<float>(from[i]), to + i);
    } else {
      Narrow(from[i], to + i);
    }
  }
}

template <typename C>
void ScaleBlock(const C* __restrict__ from, C* __restrict__ to, int64_t count, C scale) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i] * scale;
}

template <typename From, typename To>
void Convert(const void* source, void* target, int64_t count, double scale) {
  using C =
      std::conditional_t<std::is_same_v<From, double> || std::is_same_v<To, double>, double, float>;
  const From* from = static_cast<const From*>(source);
  To* to = static_cast<To*>(target);
  const C factor = static_cast<C>(scale);
  C widened[kBlock];
  C scaled[kBlock];
  for (int64_t i = 0; i < count; i += kBlock) {
    const int64_t length = count - i < kBlock ? count - i : kBlock;
    const C* values = widened;
    if constexpr (std::is_same_v<From, C>) {
      values = from + i;
    } else {
      WidenBlock(from + i, widened, length);
    }
    if constexpr (std::is_same_v<To, C>) {
      ScaleBlock(values, to + i, length, factor);
    } else {
      ScaleBlock(values, scaled, length, factor);
      NarrowBlock(scaled, to + i, length);
    }
  }
}

inline float SquareRoot(float value) { return sqrtf(value); }
inline double SquareRoot(double value) { return sqrt(value); }

enum class Momentum { kNone, kPlain, kNesterov };
enum class Decay { kNone, kGradient, kParameter };

/*! \brief One step of frontend/optimizer/sgd.py. */
template <typename C, Momentum kMomentum, Decay kDecay>
void SgdLoop(const UpdateRule& rule, const double* scalars, const C* __restrict__ gradients,
             C* __restrict__ parameters, C* __restrict__ buffer, int64_t count) {
  const C rate = static_cast<C>(scalars[0]);
  const C momentum = static_cast<C>(rule.momentum);
  const C decay = static_cast<C>(rule.weight_decay);
  for (int64_t i = 0; i < count; ++i) {
    C g = gradients[i];
    const C p = parameters[i];
    if constexpr (kDecay == Decay::kGradient) g = g + p * decay;
    if constexpr (kMomentum != Momentum::kNone) {
      const C b = buffer[i] * momentum + g;
      buffer[i] = b;
      g = kMomentum == Momentum::kNesterov ? g + b * momentum : b;
    }
    parameters[i] = p - g * rate;
  }
}

/*! \brief One step of frontend/optimizer/adam.py. */
template <typename C, Decay kDecay>
void AdamLoop(const UpdateRule& rule, const double* scalars, const C* __restrict__ gradients,
              C* __restrict__ parameters, C* __restrict__ mean, C* __restrict__ square,
              int64_t count) {
  const C size = static_cast<C>(scalars[0]);
  const C root = static_cast<C>(scalars[1]);
  const C kept = static_cast<C>(kDecay == Decay::kParameter ? scalars[2] : 1.0);
  const C beta1 = static_cast<C>(rule.beta1), rest1 = static_cast<C>(1.0 - rule.beta1);
  const C beta2 = static_cast<C>(rule.beta2), rest2 = static_cast<C>(1.0 - rule.beta2);
  const C eps = static_cast<C>(rule.eps);
  const C decay = static_cast<C>(rule.weight_decay);
  for (int64_t i = 0; i < count; ++i) {
    C g = gradients[i];
    C p = parameters[i];
    if constexpr (kDecay == Decay::kGradient) g = g + p * decay;
    if constexpr (kDecay == Decay::kParameter) p = p * kept;
    const C m = mean[i] * beta1 + g * rest1;
    const C v = square[i] * beta2 + g * g * rest2;
    mean[i] = m;
    square[i] = v;
    parameters[i] = p - m / (SquareRoot(v) / root + eps) * size;
  }
}

template <typename C, Decay kDecay>
void RunSgd(const UpdateRule& rule, const double* scalars, const C* g, C* p, C* s0, int64_t count) {
  if (rule.momentum == 0.0) {
    SgdLoop<C, Momentum::kNone, kDecay>(rule, scalars, g, p, s0, count);
  } else if (rule.nesterov) {
    SgdLoop<C, Momentum::kNesterov, kDecay>(rule, scalars, g, p, s0, count);
  } else {
    SgdLoop<C, Momentum::kPlain, kDecay>(rule, scalars, g, p, s0, count);
  }
}

template <typename C>
void Update(const UpdateRule& rule, const double* scalars, const void* gradients, void* parameters,
            void* first, void* second, int64_t count) {
  const C* g = static_cast<const C*>(gradients);
  C* p = static_cast<C*>(parameters);
  C* s0 = static_cast<C*>(first);
  C* s1 = static_cast<C*>(second);
  const bool has_decay = rule.weight_decay != 0.0;
  if (rule.kind == UpdateRule::Kind::kSgd) {
    if (has_decay) {
      RunSgd<C, Decay::kGradient>(rule, scalars, g, p, s0, count);
    } else {
      RunSgd<C, Decay::kNone>(rule, scalars, g, p, s0, count);
    }
  } else if (!has_decay) {
    AdamLoop<C, Decay::kNone>(rule, scalars, g, p, s0, s1, count);
  } else if (rule.kind == UpdateRule::Kind::kAdam) {
    AdamLoop<C, Decay::kGradient>(rule, scalars, g, p, s0, s1, count);
  } else {
    AdamLoop<C, Decay::kParameter>(rule, scalars, g, p, s0, s1, count);
  }
}

#define DISCO_FUSE_CONVERT_FROM(T) \
  {Convert<T, float>, Convert<T, double>, Convert<T, Float16>, Convert<T, BFloat16>}

constexpr BucketLoops kLoops = {
    {DISCO_FUSE_CONVERT_FROM(float), DISCO_FUSE_CONVERT_FROM(double),
     DISCO_FUSE_CONVERT_FROM(Float16), DISCO_FUSE_CONVERT_FROM(BFloat16)},
    Update<float>,
    Update<double>};

#undef DISCO_FUSE_CONVERT_FROM

}  // namespace
}  // namespace disco_fuse
