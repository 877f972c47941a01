#ifndef DISCO_FUSE_TESTS_CPP_RUNTIME_FAKE_MPI_H_
#define DISCO_FUSE_TESTS_CPP_RUNTIME_FAKE_MPI_H_

#include <chrono>
#include <functional>

#include "runtime/pipeline.h"

namespace disco_fuse::runtime::testing {

/*! \brief Messages between threads of one process, as many ranks as there are threads. */
class FakeWorld {
 public:
  explicit FakeWorld(int world_size);
  ~FakeWorld();

  /*! \brief What the transport of `rank` gets instead of MPI. */
  MpiLink Link(int rank, std::chrono::nanoseconds timeout);

  /*! \brief Makes every later MPI call of all ranks fail. */
  void Break();

  /*! \brief Messages sent so far, and the bytes of those whose (from, to) counts. */
  int64_t num_messages() const;
  int64_t num_bytes(const std::function<bool(int, int)>& counts) const;

  struct State;
  struct Endpoint;

 private:
  State* state_;
};

}  // namespace disco_fuse::runtime::testing

#endif  // DISCO_FUSE_TESTS_CPP_RUNTIME_FAKE_MPI_H_
