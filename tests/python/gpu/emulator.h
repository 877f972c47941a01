// Runs the CUDA text of TVM's code generator on a CPU: the threads of a block are fibers that take
// turns at every barrier, blocks run one after the other, shared memory is a static variable.
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(n)
#define __restrict__
#define alignas(n)
#define uint unsigned int
#define uchar unsigned char
#define ushort unsigned short
#define CUDART_INF_F std::numeric_limits<float>::infinity()
#define CUDART_INF std::numeric_limits<double>::infinity()
#define CUDART_NAN_F std::numeric_limits<float>::quiet_NaN()
#define CUDART_NAN std::numeric_limits<double>::quiet_NaN()
#define __int_as_float(x) bits_as_float(x)

using std::isfinite;
using std::isinf;
using std::isnan;
template <typename A, typename B>
auto max(A a, B b) {
  return a > b ? a : b;
}
template <typename A, typename B>
auto min(A a, B b) {
  return a < b ? a : b;
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }

struct Place {
  int x = 0, y = 0, z = 0;
};
static Place threadIdx, blockIdx;

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[64 * 1024]};
  bool done = false;
};
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static size_t current;
static void (*body)();

inline void __syncthreads() { swapcontext(&fibers[current].context, &scheduler); }

static void Enter() {
  body();
  fibers[current].done = true;
  swapcontext(&fibers[current].context, &scheduler);
}

/*! \brief Whether all threads of every block met at every barrier. */
static bool Launch(Place blocks, Place threads, bool backwards, bool barriers, void (*run)()) {
  body = run;
  size_t count = static_cast<size_t>(threads.x) * threads.y * threads.z;
  auto enter_thread = [&](size_t i) {
    current = i;
    threadIdx = {static_cast<int>(i) % threads.x, static_cast<int>(i) / threads.x % threads.y,
                 static_cast<int>(i) / threads.x / threads.y};
  };
  if (barriers && fibers.size() < count) fibers.resize(count);
  for (blockIdx.z = 0; blockIdx.z < blocks.z; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < blocks.y; ++blockIdx.y)
      for (blockIdx.x = 0; blockIdx.x < blocks.x; ++blockIdx.x) {
        for (size_t i = 0; i < count && !barriers; ++i) {
          enter_thread(backwards ? count - 1 - i : i);
          body();
        }
        for (size_t i = 0; i < count && barriers; ++i) {
          fibers[i].done = false;
          getcontext(&fibers[i].context);
          fibers[i].context.uc_stack.ss_sp = fibers[i].stack.get();
          fibers[i].context.uc_stack.ss_size = 64 * 1024;
          fibers[i].context.uc_link = nullptr;
          makecontext(&fibers[i].context, Enter, 0);
        }
        for (bool going = barriers; going;) {
          size_t finished = 0;
          for (size_t i = 0; i < count; ++i) {
            enter_thread(backwards ? count - 1 - i : i);
            swapcontext(&scheduler, &fibers[current].context);
            finished += fibers[current].done;
          }
          if (finished != 0 && finished != count) return false;
          going = finished == 0;
        }
      }
  return true;
}
