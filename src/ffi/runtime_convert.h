#ifndef DISCO_FUSE_FFI_RUNTIME_CONVERT_H_
#define DISCO_FUSE_FFI_RUNTIME_CONVERT_H_

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <stdexcept>
#include <string_view>
#include <vector>

#include "runtime/recorder.h"

namespace disco_fuse::runtime {

/*! \brief Runs `body`, turning the core's exceptions into those Python sees. */
template <typename Body>
auto Translate(Body&& body) {
  try {
    return body();
  } catch (const std::invalid_argument& error) {
    TVM_FFI_THROW(ValueError) << error.what();
  } catch (const std::runtime_error& error) {
    TVM_FFI_THROW(RuntimeError) << error.what();
  }
  TVM_FFI_UNREACHABLE();
}

inline void CheckInterruptOfPython() {
  if (TVMFFIEnvCheckSignals() != 0) throw tvm::ffi::EnvErrorAlreadySet();
}

/*! \brief Writes one row (kind, id, start_ns, finish_ns) per event into `rows`, int64[n, 4]. */
inline void WriteEvents(const std::vector<Event>& events, const tvm::ffi::TensorView& rows) {
  TVM_FFI_ICHECK_EQ(rows.numel(), static_cast<int64_t>(events.size()) * 4);
  auto* out = static_cast<int64_t*>(rows.data_ptr());
  for (const Event& event : events) {
    *out++ = static_cast<int64_t>(event.kind);
    *out++ = event.id;
    *out++ = event.start.count();
    *out++ = event.finish.count();
  }
}

/*! \brief Whether a function that the Relax VM runs is a kernel: neither its own nor ours. */
inline bool IsKernelName(std::string_view name) {
  for (std::string_view prefix : {"vm.builtin.", "disco_fuse.runtime."}) {
    if (name.substr(0, prefix.size()) == prefix) return false;
  }
  return true;
}

}  // namespace disco_fuse::runtime

#endif  // DISCO_FUSE_FFI_RUNTIME_CONVERT_H_
