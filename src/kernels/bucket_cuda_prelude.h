#ifndef DISCO_FUSE_KERNELS_BUCKET_CUDA_PRELUDE_H_
#define DISCO_FUSE_KERNELS_BUCKET_CUDA_PRELUDE_H_

namespace disco_fuse {

/*!
 * \brief Text that stands before every generated CUDA kernel: element types and tiles.
 *
 * It needs no header, since NVRTC comes without any. Accesses of `width` elements are one load or
 * store of up to 16 bytes. Marks: @size@ (type of counts), @threads@, @items@.
 */
constexpr char kBucketCudaPrelude[] = R"CUDA(
typedef @size@ Size;
constexpr Size kThreads = @threads@;
constexpr int kItems = @items@;  // accesses of one thread, so that several are under way

// Values that C++ has no arithmetic for; their bits travel.
struct Float16 { unsigned short bits; };
struct BFloat16 { unsigned short bits; };

#ifdef __CUDACC__
__device__ __forceinline__ float Float16BitsToFloat(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
__device__ __forceinline__ unsigned short FloatToFloat16Bits(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
#endif

__device__ __forceinline__ float Widen(float value) { return value; }
__device__ __forceinline__ double Widen(double value) { return value; }
__device__ __forceinline__ float Widen(Float16 value) { return Float16BitsToFloat(value.bits); }
__device__ __forceinline__ float Widen(BFloat16 value) {
  return __uint_as_float(static_cast<unsigned int>(value.bits) << 16);
}

// To 16 bits by way of float, to nearest, ties to even.
template <typename C>
__device__ __forceinline__ void Assign(float* to, C value) { *to = static_cast<float>(value); }
template <typename C>
__device__ __forceinline__ void Assign(double* to, C value) { *to = value; }
template <typename C>
__device__ __forceinline__ void Assign(Float16* to, C value) {
  to->bits = FloatToFloat16Bits(static_cast<float>(value));
}
template <typename C>
__device__ __forceinline__ void Assign(BFloat16* to, C value) {
  const unsigned int bits = __float_as_uint(static_cast<float>(value));
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const unsigned int rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  to->bits = static_cast<unsigned short>((is_nan ? bits | 0x400000u : rounded) >> 16);
}

template <typename T, int width>
struct alignas(sizeof(T) * width) Vector {
  T values[width];
};
template <int width, typename T>
__device__ __forceinline__ Vector<T, width> Load(const T* from) {
  return *reinterpret_cast<const Vector<T, width>*>(from);
}
template <int width, typename T>
__device__ __forceinline__ void Store(T* to, const Vector<T, width>& vector) {
  *reinterpret_cast<Vector<T, width>*>(to) = vector;
}

// First element of this thread's access number `item` in the tile that starts at `begin`.
template <int width>
__device__ __forceinline__ Size Position(Size begin, int item) {
  return begin + (item * kThreads + threadIdx.x) * width;
}

// to[i] = from[i] * factor for the tile at `begin`, computed in C.
template <typename C, int width, bool is_scaled, typename From, typename To>
__device__ __forceinline__ void ConvertTile(const From* __restrict__ from, To* __restrict__ to,
                                            Size count, Size begin, C factor) {
  Vector<From, width> loaded[kItems];
#pragma unroll
  for (int item = 0; item < kItems; ++item) {
    const Size i = Position<width>(begin, item);
    if (i + width <= count) loaded[item] = Load<width>(from + i);
  }
#pragma unroll
  for (int item = 0; item < kItems; ++item) {
    Size i = Position<width>(begin, item);
    if (i + width <= count) {
      Vector<To, width> result;
#pragma unroll
      for (int k = 0; k < width; ++k) {
        const C value = Widen(loaded[item].values[k]);
        Assign(&result.values[k], is_scaled ? value * factor : value);
      }
      Store<width>(to + i, result);
    } else {
#pragma unroll 1
      for (; i < count; ++i) {
        const C value = Widen(from[i]);
        Assign(&to[i], is_scaled ? value * factor : value);
      }
    }
  }
}

// Updates parameters and states by the gradients of the tile at `begin`, computed in C. The
// function Update, which knows the rule, stands before this text.
template <typename C, int width, int num_states, int num_scalars, typename Bucket, typename Tensor>
__device__ __forceinline__ void UpdateTile(const Bucket* __restrict__ gradients,
                                           Tensor* __restrict__ parameters, C* __restrict__ first,
                                           C* __restrict__ second,
                                           const double* __restrict__ scalars, Size count,
                                           Size begin) {
  C k[num_scalars];
#pragma unroll
  for (int i = 0; i < num_scalars; ++i) k[i] = static_cast<C>(scalars[i]);
  // Up to four arrays are read in one round: enough loads under way without unrolling.
#pragma unroll 1
  for (int item = 0; item < kItems; ++item) {
    Size i = Position<width>(begin, item);
    if (i + width <= count) {
      const Vector<Bucket, width> g = Load<width>(gradients + i);
      Vector<Tensor, width> p = Load<width>(parameters + i);
      Vector<C, width> s0, s1;
      if (num_states > 0) s0 = Load<width>(first + i);
      if (num_states > 1) s1 = Load<width>(second + i);
#pragma unroll
      for (int e = 0; e < width; ++e) {
        C parameter = Widen(p.values[e]);
        Update(static_cast<C>(Widen(g.values[e])), parameter, s0.values[e], s1.values[e], k);
        Assign(&p.values[e], parameter);
      }
      Store<width>(parameters + i, p);
      if (num_states > 0) Store<width>(first + i, s0);
      if (num_states > 1) Store<width>(second + i, s1);
    } else {
#pragma unroll 1
      for (; i < count; ++i) {
        C parameter = Widen(parameters[i]);
        C s0 = num_states > 0 ? first[i] : C(0);
        C s1 = num_states > 1 ? second[i] : C(0);
        Update(static_cast<C>(Widen(gradients[i])), parameter, s0, s1, k);
        Assign(&parameters[i], parameter);
        if (num_states > 0) first[i] = s0;
        if (num_states > 1) second[i] = s1;
      }
    }
  }
}
)CUDA";

}  // namespace disco_fuse

#endif  // DISCO_FUSE_KERNELS_BUCKET_CUDA_PRELUDE_H_
