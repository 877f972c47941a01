#ifndef DISCO_FUSE_KERNELS_BUCKET_LOOPS_H_
#define DISCO_FUSE_KERNELS_BUCKET_LOOPS_H_

#include <cstdint>

#include "kernels/bucket_spec.h"

namespace disco_fuse {

/*! \brief to[i] = from[i] * scale; computed in double if one side is float64, else in float. */
using ConvertLoop = void (*)(const void* from, void* to, int64_t count, double scale);

/*! \brief One update of `count` elements, all float or all double; states may be null if unused. */
using UpdateLoop = void (*)(const UpdateRule& rule, const double* scalars, const void* gradients,
                            void* parameters, void* first, void* second, int64_t count);

/*!
 * \brief The loops of one instruction set.
 *
 * bucket_loops_impl.h is compiled once for each set, without contraction of products and sums, so
 * that all give the same bits.
 */
struct BucketLoops {
  ConvertLoop convert[kNumElementTypes][kNumElementTypes];  // [from][to], in order of ElementType
  UpdateLoop update_float;
  UpdateLoop update_double;
};

/*! \brief For every processor that the build targets. */
const BucketLoops& BaselineBucketLoops();
/*! \brief With AVX2 and F16C; null where the build is not for x86-64. */
const BucketLoops* Avx2BucketLoops();

}  // namespace disco_fuse

#endif  // DISCO_FUSE_KERNELS_BUCKET_LOOPS_H_
