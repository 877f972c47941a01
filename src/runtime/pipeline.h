#ifndef DISCO_FUSE_RUNTIME_PIPELINE_H_
#define DISCO_FUSE_RUNTIME_PIPELINE_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/communicator.h"
#include "runtime/mpi_api.h"

namespace disco_fuse::runtime {

/*!
 * \brief Largest message, in bytes: what Open MPI sends over TCP at once (up to 64 KiB with its
 * header) instead of asking the peer first. A peer that sleeps between polls answers late: at 1
 * Gbit/s, 12.6 MB took 195 ms in messages of 256 KiB and 108 ms in these (105 at the rate of the
 * link). Over shared memory both cost the same.
 */
constexpr int64_t kChunkBytes = 60 * 1024;

/*! \brief What happens to an arriving message. */
enum class Arrival { kStore, kAdd, kAddThenScale };

/*! \brief One message to the next rank. */
struct Outgoing {
  const char* data;
  int64_t num_bytes;
  int64_t after;  // the arrival that must have been handled before, or -1
};

/*! \brief One message from the previous rank. */
struct Incoming {
  char* data;
  int64_t num_bytes;
  int64_t after;  // the message that must have left before `data` is overwritten, or -1
  Arrival arrival;
};

/*! \brief Two ordered streams of messages: one to a peer, one from a (maybe other) peer. */
struct MessagePlan {
  int to = 0;
  int from = 0;
  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  DataType dtype = DataType::kFloat32;
  double scale = 1.0;
};

struct MpiLink {
  MpiApi api;
  MpiHandle comm;
  MpiHandle byte_type;
  int rank;
  int world_size;
  std::chrono::nanoseconds timeout;  // without any progress
};

/*!
 * \brief Moves the messages of one plan at a time with a few of them in flight in each direction.
 *
 * MPI progresses only inside calls, so this polls; between fruitless polls it sleeps, because the
 * core belongs to the kernels: a helper that spins eats what overlapping gains.
 */
class Pipeline {
 public:
  explicit Pipeline(const MpiLink& link);

  /*!
   * \brief Returns when every message of the plan has left and has been handled.
   * \throws std::runtime_error when MPI fails, nothing moves for the link's timeout, or `control`
   * says stop. The buffers of the plan may still be in MPI's hands then.
   */
  void Run(const CollectiveName& name, const MessagePlan& plan, const ProgressControl& control);

 private:
  static constexpr int64_t kWindow = 16;  // messages in flight in each direction

  struct Cursor {
    int64_t num_posted = 0;
    int64_t num_done = 0;
  };

  bool PostIncoming(int tag, const MessagePlan& plan);
  bool PostOutgoing(int tag, const MessagePlan& plan);
  bool TakeIncoming(const MessagePlan& plan);
  bool TakeOutgoing();
  bool IsDone(MpiRequest* request);
  /*!
   * \brief Sleeps: twice as long as before if nothing moved since, half as long if half of a window
   * of messages did.
   */
  void Pause(const CollectiveName& name, const MessagePlan& plan, const ProgressControl& control);
  void CancelIncoming();

  MpiLink link_;
  Cursor sent_;
  Cursor received_;
  std::array<MpiRequest, kWindow> send_requests_;
  std::array<MpiRequest, kWindow> receive_requests_;
  std::unique_ptr<char[]> staging_;  // kWindow chunks: messages to be added
  std::chrono::steady_clock::time_point last_progress_;
  std::chrono::nanoseconds sleep_{0};
  int64_t num_done_before_sleep_ = 0;  // messages, in both directions
};

}  // namespace disco_fuse::runtime

#endif  // DISCO_FUSE_RUNTIME_PIPELINE_H_
