#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include "graph/version.h"

namespace disco_fuse {

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef().def("disco_fuse.version", []() { return tvm::ffi::String(Version()); });
}

}  // namespace disco_fuse
