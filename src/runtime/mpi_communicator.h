#ifndef DISCO_FUSE_RUNTIME_MPI_COMMUNICATOR_H_
#define DISCO_FUSE_RUNTIME_MPI_COMMUNICATOR_H_

#include <memory>

#include "runtime/communicator.h"
#include "runtime/pipeline.h"

namespace disco_fuse::runtime {

/*!
 * \brief Collectives of our own over MPI's non-blocking messages.
 *
 * MPI's own collectives progress only inside blocking calls, which spin on a core the kernels
 * need. The algorithms are in mpi_communicator.cc.
 */
class MpiCommunicator final : public Communicator {
 public:
  /*! \param link its communicator must belong to this object alone (a duplicate). */
  explicit MpiCommunicator(const MpiLink& link);

  int rank() const final { return link_.rank; }
  int world_size() const final { return link_.world_size; }
  void AllReduce(const CollectiveName& name, void* data, int64_t count, DataType dtype,
                 Reduction reduction, const ProgressControl& control) final;
  void Broadcast(const CollectiveName& name, void* data, int64_t num_bytes, int root,
                 const ProgressControl& control) final;

 private:
  void Ring(const CollectiveName& name, char* data, int64_t count, const ProgressControl& control);
  void Doubling(const CollectiveName& name, char* data, int64_t num_bytes,
                const ProgressControl& control);
  void Exchange(const CollectiveName& name, char* data, int64_t num_bytes, int peer,
                Arrival arrival, const ProgressControl& control);
  void OneWay(const CollectiveName& name, char* data, int64_t num_bytes, int from, int to,
              Arrival arrival, const ProgressControl& control);
  void ClearPlan(int from, int to);

  MpiLink link_;
  Pipeline pipeline_;
  MessagePlan plan_;  // kept for its memory
  std::unique_ptr<char[]> outbox_;
};

}  // namespace disco_fuse::runtime

#endif  // DISCO_FUSE_RUNTIME_MPI_COMMUNICATOR_H_
