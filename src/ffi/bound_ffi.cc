#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include "ffi/convert.h"
#include "search/lower_bound.h"

namespace disco_fuse {
namespace {

int64_t RunLowerBound(OpGraphRef graph, CostModelRef model, Fields cluster) {
  return Translate([&] {
    return static_cast<int64_t>(
        LowerBound(graph->graph, *model->model, ToCluster(cluster)).count());
  });
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("disco_fuse.search.lower_bound", RunLowerBound);
}

}  // namespace disco_fuse
