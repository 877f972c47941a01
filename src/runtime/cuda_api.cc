#include "runtime/cuda_api.h"

#include <stdexcept>

#include "runtime/shared_library.h"

namespace disco_fuse::runtime {

CudaApi CudaApi::Find(const std::string& library_path) {
  void* library = OpenLibrary(library_path);
  CudaApi api{};
  const auto find = [&](const char* name, auto* function) {
    FindSymbol(library, "the CUDA driver", name, function);
  };
  // The suffix _v2 is part of the name that cuda.h's macros give today's version of a function.
  find("cuInit", &api.init);
  find("cuDeviceGet", &api.device_get);
  find("cuDevicePrimaryCtxRetain", &api.primary_context_retain);
  find("cuDevicePrimaryCtxRelease_v2", &api.primary_context_release);
  find("cuCtxSetCurrent", &api.context_set_current);
  find("cuCtxGetStreamPriorityRange", &api.stream_priority_range);
  find("cuStreamCreateWithPriority", &api.stream_create);
  find("cuStreamDestroy_v2", &api.stream_destroy);
  find("cuStreamWaitEvent", &api.stream_wait_event);
  find("cuEventCreate", &api.event_create);
  find("cuEventDestroy_v2", &api.event_destroy);
  find("cuEventRecord", &api.event_record);
  find("cuEventQuery", &api.event_query);
  find("cuEventElapsedTime", &api.event_elapsed_ms);
  find("cuGetErrorString", &api.error_string);
  return api;
}

void CudaApi::Check(int code, const char* function) const {
  if (code == kCudaSuccess) return;
  const char* text = nullptr;
  error_string(code, &text);
  throw std::runtime_error(std::string(function) +
                           " failed: " + (text == nullptr ? "code " + std::to_string(code) : text));
}

}  // namespace disco_fuse::runtime
