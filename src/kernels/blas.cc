#include "kernels/blas.h"

#include <dlfcn.h>

#include <type_traits>

namespace disco_fuse {

std::string LoadBlas(const std::string& path, BlasFunctions* functions) {
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
  BlasFunctions found;
  find("sgemm_", &found.sgemm);
  find("dgemm_", &found.dgemm);
  find("sgemm_batch_", &found.sgemm_batch);
  find("dgemm_batch_", &found.dgemm_batch);
  find("MKL_Set_Num_Threads_Local", &found.set_num_threads_local);
  if (!missing.empty()) return "it lacks " + missing;
  *functions = found;
  return {};
}

}  // namespace disco_fuse
