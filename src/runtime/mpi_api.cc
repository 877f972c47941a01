#include "runtime/mpi_api.h"

#include <dlfcn.h>

#include <stdexcept>

#include "runtime/shared_library.h"

namespace disco_fuse::runtime {

namespace {

// MPI_MAX_ERROR_STRING is 256 in Open MPI and 512 in MPICH.
constexpr int kMaxErrorString = 1024;

}  // namespace

MpiApi MpiApi::Find(const std::string& library_path) {
  void* library = dlopen(library_path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) {
    throw std::runtime_error("not a loaded library: " + library_path);
  }
  MpiApi api{};
  FindSymbol(library, "the MPI library", "MPI_Isend", &api.isend);
  FindSymbol(library, "the MPI library", "MPI_Irecv", &api.irecv);
  FindSymbol(library, "the MPI library", "MPI_Test", &api.test);
  FindSymbol(library, "the MPI library", "MPI_Cancel", &api.cancel);
  FindSymbol(library, "the MPI library", "MPI_Error_string", &api.error_string);
  // Never closed: the addresses must outlive every communicator, as mpi4py's own do.
  return api;
}

void MpiApi::Check(int code, const char* function) const {
  if (code == 0) return;
  char text[kMaxErrorString] = "";
  int length = 0;
  error_string(code, text, &length);
  throw std::runtime_error(std::string(function) + " failed: " + text);
}

}  // namespace disco_fuse::runtime
