#include "kernels/torch_library.h"

#include "kernels/entry_points.h"

namespace disco_fuse {

std::string LoadTorch(const std::string& path, TorchFunctions* functions) {
  EntryPoints library(path);
  TorchFunctions found;
  library.Find("aoti_torch_dtype_float32", &found.float32);
  library.Find("aoti_torch_dtype_float64", &found.float64);
  library.Find("aoti_torch_device_type_cpu", &found.cpu);
  library.Find("aoti_torch_create_tensor_from_blob", &found.from_blob);
  library.Find("aoti_torch_delete_tensor_object", &found.destroy);
  library.Find("aoti_torch_copy_", &found.copy);
  library.Find("aoti_torch_cpu_convolution", &found.convolution);
  library.Find("aoti_torch_cpu_convolution_backward", &found.convolution_backward);
  library.Find("torch_exception_get_what_without_backtrace", &found.error_message);
  library.Find("torch_get_num_threads", &found.get_num_threads);
  // Of the OpenMP library that torch links, which is among its dependencies.
  library.Find("omp_set_num_threads", &found.omp_set_num_threads);
  library.Find("MKL_Set_Num_Threads_Local", &found.mkl_set_num_threads_local);
  if (library.reason().empty()) *functions = found;
  return library.reason();
}

}  // namespace disco_fuse
