#include "kernels/bucket_cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <cstring>

namespace disco_fuse {
namespace {

// Elements of an update at a time where types differ: four blocks of double in the first-level
// cache.
constexpr int64_t kBlock = 512;

bool HasAvx2AndF16c() {
#if defined(__x86_64__)
  unsigned int eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool has_f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  return has_f16c && __builtin_cpu_supports("avx2");
#else
  return false;
#endif
}

ConvertLoop Converter(const BucketLoops& loops, ElementType from, ElementType to) {
  return loops.convert[static_cast<int>(from)][static_cast<int>(to)];
}

void Convert(const BucketLoops& loops, ElementType from_type, const void* from, ElementType to_type,
             void* to, int64_t count, double scale) {
  if (from_type == to_type && scale == 1.0) {
    std::memcpy(to, from, count * SizeOf(to_type));
  } else {
    Converter(loops, from_type, to_type)(from, to, count, scale);
  }
}

template <typename Pointer>
Pointer Advance(Pointer pointer, ElementType type, int64_t count) {
  using Byte = std::conditional_t<std::is_same_v<Pointer, void*>, char, const char>;
  return static_cast<Byte*>(pointer) + count * SizeOf(type);
}

/*! \brief One tensor's part of UpdateFromBucket, by blocks that are converted where types differ.
 */
void UpdateTensor(const BucketLoops& loops, const BucketSpec& spec, const BucketTensor& tensor,
                  const void* gradients, void* parameters, void* first, void* second,
                  const double* scalars) {
  const ElementType compute = UpdateType(tensor);
  const UpdateLoop update =
      compute == ElementType::kFloat64 ? loops.update_double : loops.update_float;
  const bool converts_gradients = spec.dtype != compute;
  const bool converts_parameters = tensor.dtype != compute;
  double gradient_block[kBlock];
  double parameter_block[kBlock];
  const int64_t step = converts_gradients || converts_parameters ? kBlock : tensor.count;
  for (int64_t i = 0; i < tensor.count; i += step) {
    const int64_t length = std::min(step, tensor.count - i);
    const void* g = Advance(gradients, spec.dtype, i);
    void* p = Advance(parameters, tensor.dtype, i);
    if (converts_gradients) {
      Converter(loops, spec.dtype, compute)(g, gradient_block, length, 1.0);
      g = gradient_block;
    }
    if (converts_parameters) {
      Converter(loops, tensor.dtype, compute)(p, parameter_block, length, 1.0);
    }
    update(spec.update, scalars, g, converts_parameters ? parameter_block : p,
           first == nullptr ? nullptr : Advance(first, compute, i),
           second == nullptr ? nullptr : Advance(second, compute, i), length);
    if (converts_parameters)
      Converter(loops, compute, tensor.dtype)(parameter_block, p, length, 1.0);
  }
}

}  // namespace

const BucketLoops& SelectBucketLoops() {
  static const bool use_avx2 = Avx2BucketLoops() != nullptr && HasAvx2AndF16c();
  return use_avx2 ? *Avx2BucketLoops() : BaselineBucketLoops();
}

void PackBucket(const BucketLoops& loops, const BucketSpec& spec, void* const* tensors,
                void* bucket) {
  for (size_t i = 0; i < spec.tensors.size(); ++i) {
    const BucketTensor& tensor = spec.tensors[i];
    if (tensor.count == 0) continue;
    Convert(loops, tensor.dtype, tensors[i], spec.dtype, Advance(bucket, spec.dtype, tensor.offset),
            tensor.count, spec.scale);
  }
}

void UnpackBucket(const BucketLoops& loops, const BucketSpec& spec, const void* bucket,
                  void* const* tensors) {
  for (size_t i = 0; i < spec.tensors.size(); ++i) {
    const BucketTensor& tensor = spec.tensors[i];
    if (tensor.count == 0) continue;
    Convert(loops, spec.dtype, Advance(bucket, spec.dtype, tensor.offset), tensor.dtype, tensors[i],
            tensor.count, 1.0);
  }
}

void UpdateFromBucket(const BucketLoops& loops, const BucketSpec& spec, const void* bucket,
                      void* const* parameters, const std::vector<void* const*>& states,
                      const double* scalars) {
  for (size_t i = 0; i < spec.tensors.size(); ++i) {
    const BucketTensor& tensor = spec.tensors[i];
    if (tensor.count == 0) continue;
    UpdateTensor(loops, spec, tensor, Advance(bucket, spec.dtype, tensor.offset), parameters[i],
                 states.size() > 0 ? states[0][i] : nullptr,
                 states.size() > 1 ? states[1][i] : nullptr, scalars);
  }
}

}  // namespace disco_fuse
