#include "runtime/nccl_api.h"

#include <stdexcept>

#include "runtime/shared_library.h"

namespace disco_fuse::runtime {

NcclApi NcclApi::Find(const std::string& library_path) {
  void* library = OpenLibrary(library_path);
  NcclApi api{};
  const auto find = [&](const char* name, auto* function) {
    FindSymbol(library, "the NCCL library", name, function);
  };
  find("ncclGetVersion", &api.get_version);
  find("ncclGetUniqueId", &api.get_unique_id);
  find("ncclCommInitRank", &api.init_rank);
  find("ncclCommDestroy", &api.destroy);
  find("ncclCommAbort", &api.abort);
  find("ncclCommGetAsyncError", &api.async_error);
  find("ncclGroupStart", &api.group_start);
  find("ncclGroupEnd", &api.group_end);
  find("ncclAllReduce", &api.all_reduce);
  find("ncclGetErrorString", &api.error_string);
  int version = 0;
  api.Check(api.get_version(&version), "ncclGetVersion");
  if (version < kNcclFirstVersion) {
    throw std::runtime_error(library_path + " is NCCL " + std::to_string(version) +
                             "; averages need at least " + std::to_string(kNcclFirstVersion) +
                             " (2.10)");
  }
  return api;
}

void NcclApi::Check(int code, const char* function) const {
  if (code == kNcclSuccess) return;
  throw std::runtime_error(std::string(function) + " failed: " + error_string(code));
}

}  // namespace disco_fuse::runtime
