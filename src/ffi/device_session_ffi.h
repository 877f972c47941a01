#ifndef DISCO_FUSE_FFI_DEVICE_SESSION_FFI_H_
#define DISCO_FUSE_FFI_DEVICE_SESSION_FFI_H_

#include <tvm/ffi/function.h>

#include "runtime/nccl_api.h"

namespace disco_fuse::runtime {

/*! \brief Whether (bucket, tensor, ...) of a packed call are tensors on a GPU. */
bool IsDeviceCall(tvm::ffi::PackedArgs args);

/*! \brief What a compiled step for a GPU means by starting a bucket and by waiting for it. */
void StartOnDevice(const char* function, NcclOperation operation, tvm::ffi::PackedArgs args);
void WaitOnDevice(const char* function, tvm::ffi::PackedArgs args);

}  // namespace disco_fuse::runtime

#endif  // DISCO_FUSE_FFI_DEVICE_SESSION_FFI_H_
