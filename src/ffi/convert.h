#ifndef DISCO_FUSE_FFI_CONVERT_H_
#define DISCO_FUSE_FFI_CONVERT_H_

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/object.h>
#include <tvm/ffi/string.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "cost/cost_model.h"
#include "cost/roofline.h"
#include "graph/op_graph.h"
#include "search/evaluator.h"
#include "strategy/edit.h"
#include "strategy/strategy.h"

namespace disco_fuse {

namespace ffi = tvm::ffi;

/*! \brief Handle of a C++ value; Python sees neither fields nor copies of it. */
class OpGraphObj : public ffi::Object {
 public:
  explicit OpGraphObj(OpGraph graph) : graph(std::move(graph)) {}
  OpGraph graph;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("disco_fuse.OpGraph", OpGraphObj, ffi::Object);
};

class OpGraphRef : public ffi::ObjectRef {
 public:
  explicit OpGraphRef(OpGraph graph) { data_ = ffi::make_object<OpGraphObj>(std::move(graph)); }
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NOTNULLABLE(OpGraphRef, ffi::ObjectRef, OpGraphObj);
};

class StrategyObj : public ffi::Object {
 public:
  explicit StrategyObj(Strategy strategy) : strategy(std::move(strategy)) {}
  Strategy strategy;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("disco_fuse.Strategy", StrategyObj, ffi::Object);
};

class StrategyRef : public ffi::ObjectRef {
 public:
  explicit StrategyRef(Strategy strategy) {
    data_ = ffi::make_object<StrategyObj>(std::move(strategy));
  }
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NOTNULLABLE(StrategyRef, ffi::ObjectRef, StrategyObj);
};

class CostModelObj : public ffi::Object {
 public:
  explicit CostModelObj(std::unique_ptr<CostModel> model) : model(std::move(model)) {}
  std::unique_ptr<CostModel> model;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("disco_fuse.CostModel", CostModelObj, ffi::Object);
};

class CostModelRef : public ffi::ObjectRef {
 public:
  explicit CostModelRef(std::unique_ptr<CostModel> model) {
    data_ = ffi::make_object<CostModelObj>(std::move(model));
  }
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NOTNULLABLE(CostModelRef, ffi::ObjectRef, CostModelObj);
};

/*! \brief Runs `body`; what the core rejects becomes Python's ValueError. */
template <typename Body>
auto Translate(Body body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::invalid_argument& error) {
    TVM_FFI_THROW(ValueError) << error.what();
  }
  TVM_FFI_UNREACHABLE();
}

/*! \brief Ids and enumerators are 32 bits wide; a larger number must not become another id. */
inline int32_t Narrow(int64_t value) {
  int32_t narrow = static_cast<int32_t>(value);
  if (narrow == value) return narrow;
  TVM_FFI_THROW(ValueError) << value << " must fit into 32 bits";
  TVM_FFI_UNREACHABLE();
}

template <typename T>
DLDataType NumberType() {
  uint8_t code = std::is_floating_point_v<T> ? kDLFloat : kDLInt;
  return DLDataType{code, 8 * sizeof(T), 1};
}

/*! \brief The numbers of a contiguous CPU tensor of exactly type T, row-major. */
template <typename T>
std::vector<T> ToVector(ffi::TensorView tensor) {
  DLDataType want = NumberType<T>();
  DLDataType got = tensor.dtype();
  bool ok = got.code == want.code && got.bits == want.bits && got.lanes == want.lanes &&
            tensor.device().device_type == kDLCPU && tensor.IsContiguous();
  if (!ok) TVM_FFI_THROW(TypeError) << "expected a contiguous CPU array of the right type";
  const T* data = static_cast<const T*>(tensor.data_ptr());
  return std::vector<T>(data, data + tensor.numel());
}

/*! \brief malloc, so that the tensor needs no other library. */
struct CpuAllocator {
  void AllocData(DLTensor* tensor) { tensor->data = std::malloc(ffi::GetDataSize(*tensor) + 1); }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

template <typename T>
ffi::Tensor ToTensor(const std::vector<T>& values) {
  ffi::Tensor tensor =
      ffi::Tensor::FromNDAlloc(CpuAllocator(), ffi::Shape({static_cast<int64_t>(values.size())}),
                               NumberType<T>(), DLDevice{kDLCPU, 0});
  if (!values.empty()) std::memcpy(tensor.data_ptr(), values.data(), values.size() * sizeof(T));
  return tensor;
}

using Fields = ffi::Map<ffi::String, ffi::Any>;

FusionLimits ToLimits(const Fields& fields);
/*! \brief Edits from rows of kind, producer and consumer. */
std::vector<Edit> ToEdits(ffi::TensorView rows);
AllReduceModel ToAllReduceModel(const Fields& fields);
/*! \brief Groups from offsets and values of their ops, offsets and values of their outputs. */
std::vector<Group> ToGroups(ffi::TensorView op_begin, ffi::TensorView ops,
                            ffi::TensorView output_begin, ffi::TensorView outputs);
/*!
 * \brief `device`: peak, bandwidth, launch, nest.
 * \param shares Those of flops and bandwidth of each of `op_classes`, in turn.
 */
DeviceSpec ToDevice(const ffi::String& name, ffi::TensorView device,
                    const ffi::Array<ffi::String>& op_classes, ffi::TensorView shares);
/*! \brief Fields `allreduce` and `contention_permille`. */
Cluster ToCluster(const Fields& fields);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_FFI_CONVERT_H_
