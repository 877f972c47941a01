#ifndef DISCO_FUSE_KERNELS_BUCKET_C_H_
#define DISCO_FUSE_KERNELS_BUCKET_C_H_

#include "kernels/bucket_spec.h"

namespace disco_fuse {

/*!
 * \brief C99 source of a bucket's pack and unpack, for one thread of a CPU.
 *
 *     void NAME_pack(void* const* tensors, void* bucket);
 *     void NAME_unpack(const void* bucket, void* const* tensors);                   no update
 *     void NAME_unpack(const void* bucket, void* const* parameters,
 *                      void* const* STATE..., const double* scalars);               with one
 *
 * One loop for every dtype that occurs, without branches so that compilers vectorise it; below 65
 * tensors the counts and offsets stand in the calls, above in one table a dtype. Nothing is assumed
 * of alignment beyond that of the elements. Compile without contraction (-ffp-contract=off) for the
 * same bits as the compiled loops of bucket_cpu.h.
 *
 * \throws std::invalid_argument if CheckBucketSpec does.
 */
GeneratedSource GenerateBucketC(const BucketSpec& spec);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_KERNELS_BUCKET_C_H_
