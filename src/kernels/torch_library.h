#ifndef DISCO_FUSE_KERNELS_TORCH_LIBRARY_H_
#define DISCO_FUSE_KERNELS_TORCH_LIBRARY_H_

#include <cstdint>
#include <string>

namespace disco_fuse {

/*! \brief A tensor of torch, owned by whoever was given it. */
using TorchTensor = struct TorchTensorObject*;

/*!
 * \brief The entry points of libtorch_cpu that a convolution needs.
 *
 * They are torch's stable C interface (torch/csrc/inductor/aoti_torch/c/shim.h,
 * torch/csrc/stable/c/shim.h and the generated c_shim_cpu.h of torch 2.13), so neither torch's C++
 * headers nor its Python half take part. Functions that return int32_t return 0 on success. A value
 * of plain function pointers, so that a test can pass its own functions.
 */
struct TorchFunctions {
  int32_t (*float32)() = nullptr;
  int32_t (*float64)() = nullptr;
  int32_t (*cpu)() = nullptr;
  int32_t (*from_blob)(void* data, int64_t num_dims, const int64_t* sizes, const int64_t* strides,
                       int64_t storage_offset, int32_t dtype, int32_t device_type,
                       int32_t device_index, TorchTensor* result) = nullptr;
  int32_t (*destroy)(TorchTensor tensor) = nullptr;
  int32_t (*copy)(TorchTensor to, TorchTensor from, int32_t non_blocking) = nullptr;
  int32_t (*convolution)(TorchTensor input, TorchTensor weight, TorchTensor* bias,
                         const int64_t* stride, int64_t num_stride, const int64_t* padding,
                         int64_t num_padding, const int64_t* dilation, int64_t num_dilation,
                         int32_t transposed, const int64_t* output_padding,
                         int64_t num_output_padding, int64_t groups, TorchTensor* result) = nullptr;
  int32_t (*convolution_backward)(TorchTensor gradient, TorchTensor input, TorchTensor weight,
                                  const int64_t** bias_sizes, int64_t num_bias_sizes,
                                  const int64_t* stride, int64_t num_stride, const int64_t* padding,
                                  int64_t num_padding, const int64_t* dilation,
                                  int64_t num_dilation, int32_t transposed,
                                  const int64_t* output_padding, int64_t num_output_padding,
                                  int64_t groups, const int32_t* output_mask,
                                  int64_t num_output_mask, TorchTensor* for_input,
                                  TorchTensor* for_weight, TorchTensor* for_bias) = nullptr;
  /*! \brief The message of the last failure on the calling thread. */
  const char* (*error_message)() = nullptr;
  /*! \brief Threads of the calling thread; the first call on a thread also sets torch's default. */
  int32_t (*get_num_threads)(uint32_t* num_threads) = nullptr;
  /*! \brief OpenMP's own: for the calling thread only. */
  void (*omp_set_num_threads)(int num_threads) = nullptr;
  /*! \brief MKL's, for the calling thread only; returns the former number. */
  int (*mkl_set_num_threads_local)(int num_threads) = nullptr;
};

/*!
 * \brief Opens the library at `path` and looks the entry points up.
 * \param path The libtorch_cpu.so of a torch for x86-64.
 * \param functions Receives the entry points; untouched on failure.
 * \return Empty on success, otherwise the reason.
 */
std::string LoadTorch(const std::string& path, TorchFunctions* functions);

}  // namespace disco_fuse

#endif  // DISCO_FUSE_KERNELS_TORCH_LIBRARY_H_
