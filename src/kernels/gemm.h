#ifndef DISCO_FUSE_KERNELS_GEMM_H_
#define DISCO_FUSE_KERNELS_GEMM_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/blas.h"

namespace disco_fuse {

/*! \brief Where one matrix of a batched GEMM lies in its tensor; everything counts elements. */
struct GemmOperand {
  int64_t offset = 0;
  int64_t row_stride = 0;
  int64_t col_stride = 0;
  const int64_t* batch_strides = nullptr;
};

/*!
 * \brief C[i] = A[i] x B[i] for every index i of a batch of any number of dimensions.
 *
 * A is m x k, B is k x n, C is m x n. Batch strides of 0 repeat a matrix of A or B.
 */
struct GemmProblem {
  static constexpr int kMaxBatchDims = 8;

  int num_batch_dims = 0;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  const int64_t* batch_shape = nullptr;
  GemmOperand a;
  GemmOperand b;
  GemmOperand c;
};

/*!
 * \brief Reads a problem from its integer form; the batch arrays keep pointing into `ints`.
 *
 *     num_batch_dims, m, n, k, batch_shape...,
 *     a.offset, a.row_stride, a.col_stride, a.batch_strides...,  then the same for b and for c
 *
 * \return Empty on success, otherwise the reason.
 */
std::string ParseGemm(const int64_t* ints, size_t num_ints, GemmProblem* problem);

/*!
 * \brief Says why a problem must not be run on tensors with that many elements.
 *
 * Checked are: no access outside a tensor, C written completely and every element once, and each
 * matrix a row-major or column-major one that BLAS can express.
 *
 * \return Empty when all is well, otherwise the reason.
 */
std::string CheckGemm(const GemmProblem& problem, const std::array<int64_t, 3>& num_elements);

/*!
 * \brief Runs a problem that CheckGemm accepts, on `num_threads` threads (0: the library decides).
 */
template <typename T>
void RunGemm(const BlasFunctions& blas, const GemmProblem& problem, const T* a, const T* b, T* c,
             int num_threads);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_KERNELS_GEMM_H_
