#ifndef DISCO_FUSE_KERNELS_BUCKET_CPU_H_
#define DISCO_FUSE_KERNELS_BUCKET_CPU_H_

#include "kernels/bucket_loops.h"
#include "kernels/bucket_spec.h"

namespace disco_fuse {

/*! \brief The fastest loops that this processor runs. */
const BucketLoops& SelectBucketLoops();

/*!
 * \brief Runs a spec that CheckBucketSpec accepts on host memory, on the calling thread.
 *
 * Pointer arrays have one entry for each tensor of the spec, in order; those of empty tensors are
 * not read. Pointers are aligned to their elements, and no two arrays overlap.
 */
void PackBucket(const BucketLoops& loops, const BucketSpec& spec, void* const* tensors,
                void* bucket);

/*! \brief Writes the bucket's values into the tensors. */
void UnpackBucket(const BucketLoops& loops, const BucketSpec& spec, const void* bucket,
                  void* const* tensors);

/*!
 * \brief Updates parameters and states by the gradients in the bucket; see UpdateRule.
 * \param states One pointer array for each of StateNames(spec.update); elements of UpdateType.
 * \param scalars Of StepScalars.
 */
void UpdateFromBucket(const BucketLoops& loops, const BucketSpec& spec, const void* bucket,
                      void* const* parameters, const std::vector<void* const*>& states,
                      const double* scalars);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_KERNELS_BUCKET_CPU_H_
