#include "kernels/blas.h"

#include "kernels/entry_points.h"

namespace disco_fuse {

std::string LoadBlas(const std::string& path, BlasFunctions* functions) {
  EntryPoints library(path);
  BlasFunctions found;
  library.Find("sgemm_", &found.sgemm);
  library.Find("dgemm_", &found.dgemm);
  library.Find("sgemm_batch_", &found.sgemm_batch);
  library.Find("dgemm_batch_", &found.dgemm_batch);
  library.Find("MKL_Set_Num_Threads_Local", &found.set_num_threads_local);
  if (library.reason().empty()) *functions = found;
  return library.reason();
}

}  // namespace disco_fuse
