#ifndef DISCO_FUSE_KERNELS_BLAS_H_
#define DISCO_FUSE_KERNELS_BLAS_H_

#include <string>

namespace disco_fuse {

/*!
 * \brief The entry points of a BLAS library that a GEMM needs (32-bit integers, Fortran ABI).
 *
 * A value of plain function pointers, so that a test can pass its own functions.
 */
struct BlasFunctions {
  template <typename T>
  using Gemm = void (*)(const char* trans_a, const char* trans_b, const int* m, const int* n,
                        const int* k, const T* alpha, const T* a, const int* lda, const T* b,
                        const int* ldb, const T* beta, T* c, const int* ldc);
  template <typename T>
  using GemmBatch = void (*)(const char* trans_a, const char* trans_b, const int* m, const int* n,
                             const int* k, const T* alpha, const T** a, const int* lda, const T** b,
                             const int* ldb, const T* beta, T** c, const int* ldc,
                             const int* num_groups, const int* group_sizes);

  Gemm<float> sgemm = nullptr;
  Gemm<double> dgemm = nullptr;
  GemmBatch<float> sgemm_batch = nullptr;
  GemmBatch<double> dgemm_batch = nullptr;
  /*! \brief Sets the number of threads for the calling thread only; returns the former number. */
  int (*set_num_threads_local)(int num_threads) = nullptr;
};

/*!
 * \brief Opens the library at `path` and looks the entry points up.
 * \param path A library with sgemm_, dgemm_, sgemm_batch_, dgemm_batch_ and
 *   MKL_Set_Num_Threads_Local: MKL, or the libtorch_cpu.so of a torch for x86-64.
 * \param functions Receives the entry points; untouched on failure.
 * \return Empty on success, otherwise the reason.
 */
std::string LoadBlas(const std::string& path, BlasFunctions* functions);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_KERNELS_BLAS_H_
