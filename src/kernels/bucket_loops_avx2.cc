// Compiled with -mavx2 -mf16c where the processor is an x86-64; see CMakeLists.txt.
#include "kernels/bucket_loops.h"

#ifdef __AVX2__
#include "kernels/bucket_loops_impl.h"
#endif

namespace disco_fuse {

const BucketLoops* Avx2BucketLoops() {
#ifdef __AVX2__
  return &kLoops;
#else
  return nullptr;
#endif
}

}  // namespace disco_fuse
