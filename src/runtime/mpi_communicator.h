#ifndef DISCO_FUSE_RUNTIME_MPI_COMMUNICATOR_H_
#define DISCO_FUSE_RUNTIME_MPI_COMMUNICATOR_H_

#include <memory>
#include <vector>

#include "runtime/communicator.h"
#include "runtime/pipeline.h"

namespace disco_fuse::runtime {

/*!
 * \brief The ranks of this host, and those that have the same position on each host; both
 * ascending, both with this rank among them. Empty where one ring through all ranks is as good:
 * on one host, with one rank a host, or with unlike numbers of ranks.
 */
struct HostGroups {
  std::vector<int> local;
  std::vector<int> across;
};

/*!
 * \brief Collectives of our own over MPI's non-blocking messages.
 *
 * MPI's own collectives progress only inside blocking calls, which spin on a core the kernels
 * need. The algorithms are in mpi_communicator.cc.
 */
class MpiCommunicator final : public Communicator {
 public:
  /*!
   * \param link its communicator must belong to this object alone (a duplicate).
   * \param groups of this rank, if large buckets shall be added within hosts first.
   */
  explicit MpiCommunicator(const MpiLink& link, HostGroups groups = {});

  int rank() const final { return link_.rank; }
  int world_size() const final { return link_.world_size; }
  void AllReduce(const CollectiveName& name, void* data, int64_t count, DataType dtype,
                 Reduction reduction, const ProgressControl& control) final;
  void Broadcast(const CollectiveName& name, void* data, int64_t num_bytes, int root,
                 const ProgressControl& control) final;

 private:
  /*! \brief Some of the ranks in a ring, and which of its 2 (n - 1) steps to run. */
  struct RingPart {
    const std::vector<int>& ranks;
    int64_t first_step;
    int64_t end_step;
    Arrival last_sum;
  };

  void Ring(const CollectiveName& name, char* data, int64_t count, const RingPart& part,
            const ProgressControl& control);
  void TwoLevels(const CollectiveName& name, char* data, int64_t count,
                 const ProgressControl& control);
  void Doubling(const CollectiveName& name, char* data, int64_t num_bytes,
                const ProgressControl& control);
  void Exchange(const CollectiveName& name, char* data, int64_t num_bytes, int peer,
                Arrival arrival, const ProgressControl& control);
  void OneWay(const CollectiveName& name, char* data, int64_t num_bytes, int from, int to,
              Arrival arrival, const ProgressControl& control);
  void ClearPlan(int from, int to);

  MpiLink link_;
  HostGroups groups_;
  std::vector<int> all_;
  Pipeline pipeline_;
  MessagePlan plan_;  // kept for its memory
  std::unique_ptr<char[]> outbox_;
};

}  // namespace disco_fuse::runtime

#endif  // DISCO_FUSE_RUNTIME_MPI_COMMUNICATOR_H_
