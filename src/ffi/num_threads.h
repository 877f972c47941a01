#ifndef DISCO_FUSE_FFI_NUM_THREADS_H_
#define DISCO_FUSE_FFI_NUM_THREADS_H_

namespace disco_fuse {

/*! \brief Threads of each library call of this process; 0: the library decides. */
int NumThreads();

}  // namespace disco_fuse

#endif  // DISCO_FUSE_FFI_NUM_THREADS_H_
