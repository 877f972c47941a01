#ifndef DISCO_FUSE_KERNELS_BUCKET_CUDA_H_
#define DISCO_FUSE_KERNELS_BUCKET_CUDA_H_

#include "kernels/bucket_spec.h"

namespace disco_fuse {

/*!
 * \brief CUDA source of a bucket's pack and unpack, one launch each, for any compute capability
 * from 7.5 on; it includes nothing, so NVRTC compiles it as it is.
 *
 *   blocks    |0 |1 |2 |3 |4 |5 |        a block is one tile of one tensor
 *   tensors   | t0      |t1|t2   |       table of (first block, tensor, offset, count), sorted by
 *   classes   | wide       |narrow|      class, read by a binary search of a fixed number of steps
 *
 * Classes: tensors of equal dtype and access width. The width is that of the largest accesses (16
 * bytes in the widest type that takes part) that the alignment of the tensor and its offset in the
 * bucket allow. Each class has code of its own with all constants in it; thousands of tensors are
 * rows of the table, which lies in constant memory where it fits.
 *
 * Pointers of the tensors are a kernel argument by value while all arguments fit into 4096 bytes
 * (limit of kernel parameters, CUDA C++ Programming Guide, "Function Parameters"), and an array in
 * device memory otherwise.
 *
 * The bucket is an argument of type void*, scalars a pointer to float64 values in device memory, so
 * that a captured launch can be replayed with other values.
 *
 * \throws std::invalid_argument if CheckBucketSpec does.
 */
GeneratedSource GenerateBucketCuda(const BucketSpec& spec);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_KERNELS_BUCKET_CUDA_H_
