#include "runtime/pipeline.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "runtime/reduce.h"

namespace disco_fuse::runtime {

namespace {

using std::chrono::microseconds;
using std::chrono::steady_clock;

// While kernels want the core: spin for less than a sleep costs, then sleep, as long as the link
// needs for some of the messages under way. A bucket of 12.6 MB took 59 ms from the kernels beside
// it at 1 Gbit/s with sleeps of up to 200 us, and 45 ms with sleeps of up to 600 us, at the same
// 106 ms.
constexpr auto kBusySpin = microseconds(10);
constexpr auto kBusyFirstSleep = microseconds(50);
constexpr auto kBusyLongestSleep = microseconds(600);
// While the caller only waits: its core is idle, so poll hard for as long as 1 MB takes over shared
// memory, then leave the core to the other ranks of this host.
constexpr auto kIdleSpin = microseconds(200);
constexpr auto kIdleLongestSleep = microseconds(50);

// MPI_Status: 24 bytes in Open MPI, 20 in MPICH. MPI_STATUS_IGNORE differs between them.
struct StatusRoom {
  alignas(16) char bytes[128];
};

}  // namespace

Pipeline::Pipeline(const MpiLink& link) : link_(link), staging_(new char[kWindow * kChunkBytes]) {}

void Pipeline::Run(const CollectiveName& name, const MessagePlan& plan,
                   const ProgressControl& control) {
  sent_ = Cursor();
  received_ = Cursor();
  last_progress_ = steady_clock::now();
  sleep_ = std::chrono::nanoseconds(0);
  num_done_before_sleep_ = 0;
  const int64_t num_outgoing = static_cast<int64_t>(plan.outgoing.size());
  const int64_t num_incoming = static_cast<int64_t>(plan.incoming.size());
  // Tags differ between buckets so that ranks which disagree on the order time out with names
  // instead of adding unrelated gradients. 32767 is the least upper bound MPI guarantees.
  const int tag = static_cast<int>(name.id % 32768);
  while (sent_.num_done < num_outgoing || received_.num_done < num_incoming) {
    bool progressed = PostIncoming(tag, plan);
    progressed |= PostOutgoing(tag, plan);
    progressed |= TakeIncoming(plan);
    progressed |= TakeOutgoing();
    if (progressed) {
      last_progress_ = steady_clock::now();
    } else {
      Pause(name, plan, control);
    }
  }
}

bool Pipeline::PostIncoming(int tag, const MessagePlan& plan) {
  bool progressed = false;
  while (received_.num_posted < static_cast<int64_t>(plan.incoming.size()) &&
         received_.num_posted - received_.num_done < kWindow) {
    const Incoming& message = plan.incoming[received_.num_posted];
    if (message.after >= sent_.num_done) break;
    const int64_t slot = received_.num_posted % kWindow;
    char* target =
        message.arrival == Arrival::kStore ? message.data : staging_.get() + slot * kChunkBytes;
    link_.api.Check(link_.api.irecv(target, static_cast<int>(message.num_bytes), link_.byte_type,
                                    plan.from, tag, link_.comm, &receive_requests_[slot]),
                    "MPI_Irecv");
    ++received_.num_posted;
    progressed = true;
  }
  return progressed;
}

bool Pipeline::PostOutgoing(int tag, const MessagePlan& plan) {
  bool progressed = false;
  while (sent_.num_posted < static_cast<int64_t>(plan.outgoing.size()) &&
         sent_.num_posted - sent_.num_done < kWindow) {
    const Outgoing& message = plan.outgoing[sent_.num_posted];
    if (message.after >= received_.num_done) break;
    link_.api.Check(
        link_.api.isend(message.data, static_cast<int>(message.num_bytes), link_.byte_type, plan.to,
                        tag, link_.comm, &send_requests_[sent_.num_posted % kWindow]),
        "MPI_Isend");
    ++sent_.num_posted;
    progressed = true;
  }
  return progressed;
}

bool Pipeline::IsDone(MpiRequest* request) {
  int flag = 0;
  StatusRoom status;
  link_.api.Check(link_.api.test(request, &flag, &status), "MPI_Test");
  return flag != 0;
}

bool Pipeline::TakeIncoming(const MessagePlan& plan) {
  bool progressed = false;
  while (received_.num_done < received_.num_posted) {
    const int64_t slot = received_.num_done % kWindow;
    if (!IsDone(&receive_requests_[slot])) break;
    const Incoming& message = plan.incoming[received_.num_done];
    if (message.arrival != Arrival::kStore) {
      const char* values = staging_.get() + slot * kChunkBytes;
      const double scale = message.arrival == Arrival::kAdd ? 1.0 : plan.scale;
      AddThenScale(message.data, values, message.num_bytes / SizeOf(plan.dtype), plan.dtype, scale);
    }
    ++received_.num_done;
    progressed = true;
  }
  return progressed;
}

bool Pipeline::TakeOutgoing() {
  bool progressed = false;
  while (sent_.num_done < sent_.num_posted && IsDone(&send_requests_[sent_.num_done % kWindow])) {
    ++sent_.num_done;
    progressed = true;
  }
  return progressed;
}

void Pipeline::Pause(const CollectiveName& name, const MessagePlan& plan,
                     const ProgressControl& control) {
  const bool stop = control.stopped();
  const auto idle = steady_clock::now() - last_progress_;
  if (stop || idle > link_.timeout) {
    std::ostringstream text;
    text << name.kind << " " << name.id << " on rank " << link_.rank << " of " << link_.world_size
         << ": ";
    if (stop) {
      text << "given up because the communicator was closed";
    } else {
      text << "nothing moved for "
           << std::chrono::duration_cast<std::chrono::duration<double>>(link_.timeout).count()
           << " s";
    }
    const auto missing_in = plan.incoming.size() - static_cast<size_t>(received_.num_done);
    const auto missing_out = plan.outgoing.size() - static_cast<size_t>(sent_.num_done);
    if (missing_in > 0) text << "; " << missing_in << " messages missing from rank " << plan.from;
    if (missing_out > 0) text << "; " << missing_out << " messages not taken by rank " << plan.to;
    CancelIncoming();
    throw std::runtime_error(text.str());
  }
  const bool caller_waits = control.has_waiter();
  // Spinning means returning at once. No sched_yield: Linux takes a whole time slice (3 ms) for it.
  if (idle < (caller_waits ? kIdleSpin : kBusySpin)) return;
  const int64_t num_done = sent_.num_done + received_.num_done;
  const int64_t num_moved = num_done - num_done_before_sleep_;
  num_done_before_sleep_ = num_done;
  if (num_moved == 0) sleep_ *= 2;
  if (num_moved > kWindow / 2) sleep_ /= 2;
  const auto longest = caller_waits ? kIdleLongestSleep : kBusyLongestSleep;
  sleep_ = std::clamp<std::chrono::nanoseconds>(sleep_, kBusyFirstSleep, longest);
  if (caller_waits) {
    std::this_thread::sleep_for(sleep_);
  } else {
    control.SleepUnlessAwaited(sleep_);
  }
}

void Pipeline::CancelIncoming() {
  // So that a late message does not land in memory that has been freed. Sends cannot be cancelled.
  for (int64_t i = received_.num_done; i < received_.num_posted; ++i) {
    link_.api.cancel(&receive_requests_[i % kWindow]);
    IsDone(&receive_requests_[i % kWindow]);
  }
}

}  // namespace disco_fuse::runtime
