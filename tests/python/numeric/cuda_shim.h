// Lets a C++ compiler build the generated CUDA kernels, which use no synchronisation: one thread
// after the other, in loops. Includes what a CUDA compiler knows without a header.
#include <cmath>
#include <cstdint>
#include <cstring>

#define __device__
#define __global__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(threads)

struct Index {
  unsigned int x;
};
static Index blockIdx, threadIdx;

static float __uint_as_float(unsigned int bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
static unsigned int __float_as_uint(float value) {
  unsigned int bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
// The compiler's own conversions: a check of ours as well.
static float Float16BitsToFloat(unsigned short bits) {
  _Float16 half;
  std::memcpy(&half, &bits, sizeof(half));
  return half;
}
static unsigned short FloatToFloat16Bits(float value) {
  const _Float16 half = static_cast<_Float16>(value);
  unsigned short bits;
  std::memcpy(&bits, &half, sizeof(bits));
  return bits;
}

// Called by code compiled with -fsanitize=alignment instead of the sanitizer's own runtime;
// the access follows, and faults where the host needs the alignment as well.
extern "C" {
int64_t num_misaligned = 0;
void __ubsan_handle_type_mismatch_v1(void*, void*) { ++num_misaligned; }
}

struct AnyPointer {
  void* address;
  template <typename T>
  operator T*() const {
    return static_cast<T*>(address);
  }
};

// Blocks from last to first: nothing may depend on their order.
template <typename Kernel>
void Launch(unsigned int num_blocks, unsigned int num_threads, Kernel kernel) {
  for (blockIdx.x = num_blocks; blockIdx.x-- > 0;) {
    for (threadIdx.x = 0; threadIdx.x < num_threads; ++threadIdx.x) kernel();
  }
}
