#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <array>
#include <atomic>
#include <string>
#include <vector>

#include "ffi/num_threads.h"
#include "kernels/convolution.h"
#include "kernels/torch_library.h"

namespace disco_fuse {
namespace {

namespace ffi = tvm::ffi;

// One torch a process. Published once by LoadTorchFromPath and never freed: a VM may be inside it.
std::atomic<const TorchFunctions*> g_torch{nullptr};

void LoadTorchFromPath(const ffi::String& path) {
  auto* functions = new TorchFunctions;
  const std::string reason = LoadTorch(path, functions);
  if (!reason.empty()) {
    delete functions;
    TVM_FFI_THROW(ValueError) << "cannot use " << path << " for convolutions: " << reason
                              << "; pass the path of the libtorch_cpu.so of an x86-64 torch, or do "
                                 "not dispatch convolutions to a library";
  }
  g_torch.store(functions, std::memory_order_release);
}

bool IsDouble(const ffi::TensorView& tensor) {
  const DLDataType dtype = tensor.dtype();
  if (dtype == DLDataType{kDLFloat, 64, 1}) return true;
  if (dtype == DLDataType{kDLFloat, 32, 1}) return false;
  TVM_FFI_THROW(TypeError) << "convolution: operands must be float32 or float64, got "
                           << ffi::DLDataTypeToString(dtype);
}

void* Data(const ffi::TensorView& tensor, const char* name, DLDataType dtype) {
  if (tensor.device().device_type != kDLCPU) {
    TVM_FFI_THROW(ValueError) << "convolution: " << name << " must be on the CPU, got device type "
                              << static_cast<int>(tensor.device().device_type);
  }
  if (tensor.dtype() != dtype) {
    TVM_FFI_THROW(TypeError) << "convolution: " << name << " must be "
                             << ffi::DLDataTypeToString(dtype) << " as the first operand, got "
                             << ffi::DLDataTypeToString(tensor.dtype());
  }
  if (!tensor.IsContiguous()) {
    TVM_FFI_THROW(ValueError) << "convolution: " << name << " must be contiguous";
  }
  return static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset();
}

std::vector<int64_t> ShapeOf(const ffi::TensorView& tensor) {
  return {tensor.shape().begin(), tensor.shape().end()};
}

// The operands come in the order large, small, weight, the computed one left out.
void Convolution(const ffi::TensorView& a, const ffi::TensorView& b, const ffi::Shape& ints,
                 const ffi::TensorView& out) {
  const TorchFunctions* torch = g_torch.load(std::memory_order_acquire);
  if (torch == nullptr) {
    TVM_FFI_THROW(RuntimeError) << "convolution: torch's library is not loaded; call "
                                   "disco_fuse.kernels.library.load_library() in this process";
  }
  ConvolutionProblem problem;
  std::string reason = ParseConvolution(ints.data(), ints.size(), &problem);
  if (!reason.empty()) TVM_FFI_THROW(ValueError) << "convolution: " << reason;
  const bool is_double = IsDouble(a);
  void* const first = Data(a, "first operand", a.dtype());
  void* const second = Data(b, "second operand", a.dtype());
  void* const result = Data(out, "output", a.dtype());
  ConvolutionShapes shapes;
  std::array<void*, 3> data;
  if (problem.result == ConvolutionResult::kSmall) {
    shapes = {ShapeOf(a), ShapeOf(out), ShapeOf(b)};
    data = {first, result, second};
  } else if (problem.result == ConvolutionResult::kLarge) {
    shapes = {ShapeOf(out), ShapeOf(a), ShapeOf(b)};
    data = {result, first, second};
  } else {
    shapes = {ShapeOf(a), ShapeOf(b), ShapeOf(out)};
    data = {first, second, result};
  }
  reason = CheckConvolution(problem, shapes);
  if (!reason.empty()) TVM_FFI_THROW(ValueError) << "convolution: " << reason;
  reason = RunConvolution(*torch, problem, shapes, data, is_double, NumThreads());
  if (!reason.empty()) TVM_FFI_THROW(RuntimeError) << "convolution: torch refuses: " << reason;
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef()
      .def("disco_fuse.kernels.load_torch", LoadTorchFromPath)
      .def("disco_fuse.kernels.convolution", Convolution);
}

}  // namespace disco_fuse
