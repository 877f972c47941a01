#include "kernels/torch_library.h"

#include <dlfcn.h>

#include <type_traits>

namespace disco_fuse {

std::string LoadTorch(const std::string& path, TorchFunctions* functions) {
  // Never closed: the library's own threads and thread-local state would outlive it.
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* error = dlerror();
    return error == nullptr ? "dlopen failed" : error;
  }
  std::string missing;
  const auto find = [&](const char* name, auto* target) {
    void* symbol = dlsym(handle, name);
    if (symbol == nullptr) missing += (missing.empty() ? "" : ", ") + std::string(name);
    *target = reinterpret_cast<std::remove_pointer_t<decltype(target)>>(symbol);
  };
  TorchFunctions found;
  find("aoti_torch_dtype_float32", &found.float32);
  find("aoti_torch_dtype_float64", &found.float64);
  find("aoti_torch_device_type_cpu", &found.cpu);
  find("aoti_torch_create_tensor_from_blob", &found.from_blob);
  find("aoti_torch_delete_tensor_object", &found.destroy);
  find("aoti_torch_copy_", &found.copy);
  find("aoti_torch_cpu_convolution", &found.convolution);
  find("aoti_torch_cpu_convolution_backward", &found.convolution_backward);
  find("torch_exception_get_what_without_backtrace", &found.error_message);
  find("torch_get_num_threads", &found.get_num_threads);
  // Of the OpenMP library that torch links, which is among its dependencies.
  find("omp_set_num_threads", &found.omp_set_num_threads);
  find("MKL_Set_Num_Threads_Local", &found.mkl_set_num_threads_local);
  if (!missing.empty()) return "it lacks " + missing;
  *functions = found;
  return {};
}

}  // namespace disco_fuse
