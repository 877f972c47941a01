#ifndef DISCO_FUSE_RUNTIME_CUDA_API_H_
#define DISCO_FUSE_RUNTIME_CUDA_API_H_

#include <string>

namespace disco_fuse::runtime {

/*! \brief Handles of the CUDA driver: pointers to structs that only it knows. */
using CudaStream = void*;
using CudaEvent = void*;
using CudaContext = void*;

/*! \brief Result codes that are no errors here (cuda.h: CUDA_SUCCESS, CUDA_ERROR_NOT_READY). */
constexpr int kCudaSuccess = 0;
constexpr int kCudaNotReady = 600;

/*!
 * \brief The functions of the CUDA driver (libcuda.so.1) that ordering communication needs.
 *
 * Nothing links CUDA: a CPU host has none. Names and signatures are those of the CUDA driver API
 * reference. Tests fill the table with functions of their own.
 */
struct CudaApi {
  int (*init)(unsigned flags);
  int (*device_get)(int* device, int ordinal);
  int (*primary_context_retain)(CudaContext* context, int device);
  int (*primary_context_release)(int device);
  int (*context_set_current)(CudaContext context);
  int (*stream_priority_range)(int* least, int* greatest);
  int (*stream_create)(CudaStream* stream, unsigned flags, int priority);
  int (*stream_destroy)(CudaStream stream);
  int (*stream_wait_event)(CudaStream stream, CudaEvent event, unsigned flags);
  int (*event_create)(CudaEvent* event, unsigned flags);
  int (*event_destroy)(CudaEvent event);
  int (*event_record)(CudaEvent event, CudaStream stream);
  int (*event_query)(CudaEvent event);
  int (*event_elapsed_ms)(float* ms, CudaEvent start, CudaEvent finish);
  int (*error_string)(int code, const char** text);

  /*! \throws std::runtime_error if `library_path` cannot be loaded or lacks a function. */
  static CudaApi Find(const std::string& library_path);

  /*! \throws std::runtime_error with CUDA's own text unless `code` is CUDA_SUCCESS. */
  void Check(int code, const char* function) const;
};

}  // namespace disco_fuse::runtime

#endif  // DISCO_FUSE_RUNTIME_CUDA_API_H_
