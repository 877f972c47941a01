#ifndef DISCO_FUSE_RUNTIME_MPI_API_H_
#define DISCO_FUSE_RUNTIME_MPI_API_H_

#include <cstdint>
#include <string>

namespace disco_fuse::runtime {

/*!
 * \brief An MPI handle by value. Open MPI's are pointers and MPICH's are ints; both travel in one
 * integer register, so one declaration serves both without any MPI header.
 */
using MpiHandle = uintptr_t;

/*! \brief Room for one MPI_Request of either layout. Zero is no valid request of either. */
struct MpiRequest {
  uint64_t slot = 0;
};

/*!
 * \brief The MPI functions the transport needs, taken from a library that is already loaded.
 *
 * Nothing links MPI: the library of whoever initialised MPI (mpi4py) is used, whichever it is.
 * Tests fill the table with functions of their own.
 */
struct MpiApi {
  int (*isend)(const void*, int count, MpiHandle datatype, int peer, int tag, MpiHandle comm,
               MpiRequest*);
  int (*irecv)(void*, int count, MpiHandle datatype, int peer, int tag, MpiHandle comm,
               MpiRequest*);
  int (*test)(MpiRequest*, int* flag, void* status);
  int (*cancel)(MpiRequest*);
  int (*error_string)(int code, char* text, int* length);

  /*!
   * \brief Finds the functions in `library_path` or in what it is linked to.
   * \throws std::runtime_error if it is not loaded or lacks one.
   */
  static MpiApi Find(const std::string& library_path);

  /*! \throws std::runtime_error with MPI's own text unless `code` is MPI_SUCCESS. */
  void Check(int code, const char* function) const;
};

}  // namespace disco_fuse::runtime

#endif  // DISCO_FUSE_RUNTIME_MPI_API_H_
