#ifndef DISCO_FUSE_RUNTIME_NCCL_API_H_
#define DISCO_FUSE_RUNTIME_NCCL_API_H_

#include <cstddef>
#include <string>

#include "runtime/cuda_api.h"

namespace disco_fuse::runtime {

/*! \brief What rank 0 makes and every rank needs to join: ncclUniqueId of nccl.h. */
struct NcclUniqueId {
  static constexpr size_t kBytes = 128;
  char bytes[kBytes];
};

using NcclHandle = void*;

/*! \brief ncclDataType_t of nccl.h. */
enum class NcclType : int { kFloat16 = 6, kFloat32 = 7, kFloat64 = 8, kBFloat16 = 9 };

/*! \brief ncclRedOp_t of nccl.h. The average is NCCL's own: no pass of ours divides. */
enum class NcclOperation : int { kSum = 0, kAverage = 4 };

/*! \brief ncclSuccess and ncclInProgress of nccl.h. */
constexpr int kNcclSuccess = 0;
constexpr int kNcclInProgress = 7;

/*! \brief First version with ncclAvg, as ncclGetVersion counts it: 2.10.0. */
constexpr int kNcclFirstVersion = 21000;

/*!
 * \brief The functions of NCCL (libnccl.so.2), names and signatures as in NCCL's API reference.
 *
 * Found at run time; tests fill the table with functions of their own.
 */
struct NcclApi {
  int (*get_version)(int* version);
  int (*get_unique_id)(NcclUniqueId* id);
  int (*init_rank)(NcclHandle* handle, int world_size, NcclUniqueId id, int rank);
  int (*destroy)(NcclHandle handle);
  int (*abort)(NcclHandle handle);
  int (*async_error)(NcclHandle handle, int* error);
  int (*group_start)();
  int (*group_end)();
  int (*all_reduce)(const void* from, void* to, size_t count, int type, int operation,
                    NcclHandle handle, CudaStream stream);
  const char* (*error_string)(int code);

  /*! \throws std::runtime_error if it cannot be loaded, lacks a function or is older than 2.10. */
  static NcclApi Find(const std::string& library_path);

  /*! \throws std::runtime_error with NCCL's own text unless `code` is ncclSuccess. */
  void Check(int code, const char* function) const;
};

}  // namespace disco_fuse::runtime

#endif  // DISCO_FUSE_RUNTIME_NCCL_API_H_
