#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <atomic>
#include <string>

#include "ffi/num_threads.h"
#include "kernels/blas.h"
#include "kernels/gemm.h"

namespace disco_fuse {
namespace {

namespace ffi = tvm::ffi;

// One BLAS a process. Published once by LoadBlas and never freed, since a VM may be inside it.
std::atomic<const BlasFunctions*> g_blas{nullptr};
// One thread a rank is the normal case: ranks share the cores of a machine.
std::atomic<int> g_num_threads{1};

void LoadBlasFromPath(const ffi::String& path) {
  auto* functions = new BlasFunctions;
  const std::string reason = LoadBlas(path, functions);
  if (!reason.empty()) {
    delete functions;
    TVM_FFI_THROW(ValueError) << "cannot use " << path << " as BLAS library: " << reason
                              << "; pass the path of MKL or of the libtorch_cpu.so of an x86-64 "
                                 "torch, or do not dispatch matmul to a library";
  }
  g_blas.store(functions, std::memory_order_release);
}

void SetNumThreads(int64_t num_threads) {
  if (num_threads < 0 || num_threads > 4096) {
    TVM_FFI_THROW(ValueError) << "num_threads must be 0 (the library decides) to 4096, got "
                              << num_threads;
  }
  g_num_threads.store(static_cast<int>(num_threads), std::memory_order_relaxed);
}

void CheckTensor(const char* name, const ffi::TensorView& tensor, DLDataType dtype) {
  if (tensor.device().device_type != kDLCPU) {
    TVM_FFI_THROW(ValueError) << "matmul: " << name << " must be on the CPU, got device type "
                              << static_cast<int>(tensor.device().device_type);
  }
  if (tensor.dtype() != dtype) {
    TVM_FFI_THROW(TypeError) << "matmul: " << name << " must be " << ffi::DLDataTypeToString(dtype)
                             << " as the first operand, got "
                             << ffi::DLDataTypeToString(tensor.dtype());
  }
  if (!tensor.IsContiguous()) {
    TVM_FFI_THROW(ValueError) << "matmul: " << name << " must be contiguous";
  }
}

template <typename T>
T* Data(const ffi::TensorView& tensor) {
  return reinterpret_cast<T*>(static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset());
}

void Matmul(const ffi::TensorView& a, const ffi::TensorView& b, const ffi::Shape& ints,
            const ffi::TensorView& out) {
  const BlasFunctions* blas = g_blas.load(std::memory_order_acquire);
  if (blas == nullptr) {
    TVM_FFI_THROW(RuntimeError) << "matmul: no BLAS library is loaded; call "
                                   "disco_fuse.kernels.library.load_library() in this process";
  }
  const DLDataType dtype = a.dtype();
  const bool is_double = dtype == DLDataType{kDLFloat, 64, 1};
  if (!is_double && dtype != DLDataType{kDLFloat, 32, 1}) {
    TVM_FFI_THROW(TypeError) << "matmul: operands must be float32 or float64, got "
                             << ffi::DLDataTypeToString(dtype);
  }
  CheckTensor("first operand", a, dtype);
  CheckTensor("second operand", b, dtype);
  CheckTensor("output", out, dtype);
  GemmProblem problem;
  std::string reason = ParseGemm(ints.data(), ints.size(), &problem);
  if (reason.empty()) reason = CheckGemm(problem, {a.numel(), b.numel(), out.numel()});
  if (!reason.empty()) TVM_FFI_THROW(ValueError) << "matmul: " << reason;
  const int num_threads = NumThreads();
  if (is_double) {
    RunGemm(*blas, problem, Data<const double>(a), Data<const double>(b), Data<double>(out),
            num_threads);
  } else {
    RunGemm(*blas, problem, Data<const float>(a), Data<const float>(b), Data<float>(out),
            num_threads);
  }
}

}  // namespace

int NumThreads() { return g_num_threads.load(std::memory_order_relaxed); }

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef()
      .def("disco_fuse.kernels.load_blas", LoadBlasFromPath)
      .def("disco_fuse.kernels.set_num_threads", SetNumThreads)
      .def("disco_fuse.kernels.matmul", Matmul);
}

}  // namespace disco_fuse
