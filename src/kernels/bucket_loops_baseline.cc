#include "kernels/bucket_loops_impl.h"

namespace disco_fuse {

const BucketLoops& BaselineBucketLoops() { return kLoops; }

}  // namespace disco_fuse
