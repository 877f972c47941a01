// Large buckets go around a ring, in world_size segments (shown: 3 ranks, the sums of a, b, c):
//
//            reduce-scatter                         allgather
//   rank 0   a0 ->1            c0+c2 ->1            b   ->1           a ...
//   rank 1   b1 ->2            a0+a1 ->2            c   ->2           b ...
//   rank 2   c2 ->0            b1+b2 ->0            a   ->0           c ...
//
// A rank sends 2 (world_size - 1) / world_size of the bucket, the least possible. Segments are cut
// into chunks; chunk c of a step is sent as soon as chunk c of the step before has been added, so
// the steps overlap. Every sum is formed on one rank and copied: all ranks hold the same bits.
//
// Several ranks on each of several hosts (shown: 2 hosts of 2): the first half among the ranks of a
// host, a whole ring for each segment among the hosts, the second half among the ranks of a host.
//
//            within the host    between hosts                  within the host
//   rank 0   b: sum of 0, 1     b of 0, 1 <-> b of 2, 3        a from 1
//   rank 1   a: sum of 0, 1     a of 0, 1 <-> a of 2, 3        b from 0
//
// So a host sends 2 (hosts - 1) / hosts of the bucket; in the ring of all ranks it would be
// 2 (world_size - 1) / world_size: 1 instead of 1.5 times the bucket here.
//
// Small buckets are all latency: log2(world_size) exchanges of the whole bucket instead of
// 2 (world_size - 1) steps. Both partners add the same two numbers, so the bits agree again.

#include "runtime/mpi_communicator.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

namespace disco_fuse::runtime {

namespace {

// Measured over shared memory and 1 Gbit/s: below it a second message costs more than the bytes.
constexpr int64_t kSmallBytes = 16 * 1024;

}  // namespace

MpiCommunicator::MpiCommunicator(const MpiLink& link, HostGroups groups)
    : link_(link),
      groups_(std::move(groups)),
      all_(static_cast<size_t>(link.world_size)),
      pipeline_(link),
      outbox_(new char[kSmallBytes]) {
  std::iota(all_.begin(), all_.end(), 0);
}

void MpiCommunicator::ClearPlan(int from, int to) {
  plan_.from = from;
  plan_.to = to;
  plan_.incoming.clear();
  plan_.outgoing.clear();
}

void MpiCommunicator::AllReduce(const CollectiveName& name, void* data, int64_t count,
                                DataType dtype, Reduction reduction,
                                const ProgressControl& control) {
  if (link_.world_size == 1 || count == 0) return;
  plan_.dtype = dtype;
  plan_.scale = reduction == Reduction::kAverage ? 1.0 / link_.world_size : 1.0;
  const int64_t num_bytes = count * SizeOf(dtype);
  if (num_bytes <= kSmallBytes) {
    Doubling(name, static_cast<char*>(data), num_bytes, control);
  } else if (groups_.local.empty()) {
    const RingPart whole{all_, 0, 2 * (link_.world_size - 1), Arrival::kAddThenScale};
    Ring(name, static_cast<char*>(data), count, whole, control);
  } else {
    TwoLevels(name, static_cast<char*>(data), count, control);
  }
}

void MpiCommunicator::TwoLevels(const CollectiveName& name, char* data, int64_t count,
                                const ProgressControl& control) {
  const std::vector<int>& local = groups_.local;
  const auto n = static_cast<int64_t>(local.size());
  const auto num_hosts = static_cast<int64_t>(groups_.across.size());
  const int64_t position = std::find(local.begin(), local.end(), link_.rank) - local.begin();
  Ring(name, data, count, {local, 0, n - 1, Arrival::kAdd}, control);
  const int64_t owned = (position + 1) % n;  // the segment received in the last step
  const int64_t begin = count * owned / n;
  Ring(name, data + begin * SizeOf(plan_.dtype), count * (owned + 1) / n - begin,
       {groups_.across, 0, 2 * (num_hosts - 1), Arrival::kAddThenScale}, control);
  Ring(name, data, count, {local, n - 1, 2 * (n - 1), Arrival::kAdd}, control);
}

void MpiCommunicator::Ring(const CollectiveName& name, char* data, int64_t count,
                           const RingPart& part, const ProgressControl& control) {
  const auto n = static_cast<int64_t>(part.ranks.size());
  const int64_t position =
      std::find(part.ranks.begin(), part.ranks.end(), link_.rank) - part.ranks.begin();
  const int64_t element_bytes = SizeOf(plan_.dtype);
  const int64_t chunk_elements = kChunkBytes / element_bytes;
  const int64_t num_chunks = ((count + n - 1) / n + chunk_elements - 1) / chunk_elements;
  // Byte offset of chunk c of a segment; both ends compute the same one.
  const auto offset = [&](int64_t segment, int64_t chunk) {
    const int64_t begin = count * segment / n;
    const int64_t length = count * (segment + 1) / n - begin;
    return (begin + length * chunk / num_chunks) * element_bytes;
  };
  const auto wrap = [n](int64_t segment) { return (segment % n + n) % n; };
  ClearPlan(part.ranks[wrap(position - 1)], part.ranks[wrap(position + 1)]);
  // The message of a chunk in an earlier step, or -1: of a step before this part it is long gone.
  const auto message = [&](int64_t step, int64_t chunk) {
    return step < part.first_step ? -1 : (step - part.first_step) * num_chunks + chunk;
  };
  for (int64_t step = part.first_step; step < part.end_step; ++step) {
    // In both halves the segment sent in a step is the one received in the step before.
    const int64_t sent = wrap(position - step);
    const int64_t received = wrap(position - step - 1);
    const bool gathers = step >= n - 1;
    const Arrival arrival =
        gathers ? Arrival::kStore : (step == n - 2 ? part.last_sum : Arrival::kAdd);
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
      const int64_t out = offset(sent, chunk);
      const int64_t in = offset(received, chunk);
      plan_.outgoing.push_back(
          {data + out, offset(sent, chunk + 1) - out, message(step - 1, chunk)});
      // The gathered segment was sent as a partial sum n - 1 steps before this one: seen from
      // `received`, in step (step + 1) - n.
      plan_.incoming.push_back({data + in, offset(received, chunk + 1) - in,
                                gathers ? message(step + 1 - n, chunk) : -1, arrival});
    }
  }
  pipeline_.Run(name, plan_, control);
}

void MpiCommunicator::Doubling(const CollectiveName& name, char* data, int64_t num_bytes,
                               const ProgressControl& control) {
  int core_size = 1;
  while (2 * core_size <= link_.world_size) core_size *= 2;
  const int rank = link_.rank;
  const int num_extra = link_.world_size - core_size;
  if (rank >= core_size) {  // an extra rank leaves the work to its partner
    OneWay(name, data, num_bytes, rank, rank - core_size, Arrival::kAdd, control);
    OneWay(name, data, num_bytes, rank - core_size, rank, Arrival::kStore, control);
    return;
  }
  if (rank < num_extra) {
    OneWay(name, data, num_bytes, rank + core_size, rank, Arrival::kAdd, control);
  }
  for (int distance = 1; distance < core_size; distance *= 2) {
    const bool last = 2 * distance == core_size;
    Exchange(name, data, num_bytes, rank ^ distance, last ? Arrival::kAddThenScale : Arrival::kAdd,
             control);
  }
  if (rank < num_extra) {
    OneWay(name, data, num_bytes, rank, rank + core_size, Arrival::kStore, control);
  }
}

void MpiCommunicator::Exchange(const CollectiveName& name, char* data, int64_t num_bytes, int peer,
                               Arrival arrival, const ProgressControl& control) {
  // What is sent must not change under way, and the sum may be formed before it has left.
  std::memcpy(outbox_.get(), data, num_bytes);
  ClearPlan(peer, peer);
  plan_.outgoing.push_back({outbox_.get(), num_bytes, -1});
  plan_.incoming.push_back({data, num_bytes, -1, arrival});
  pipeline_.Run(name, plan_, control);
}

void MpiCommunicator::OneWay(const CollectiveName& name, char* data, int64_t num_bytes, int from,
                             int to, Arrival arrival, const ProgressControl& control) {
  ClearPlan(from, to);
  if (link_.rank == from) {
    plan_.outgoing.push_back({data, num_bytes, -1});
  } else {
    plan_.incoming.push_back({data, num_bytes, -1, arrival});
  }
  pipeline_.Run(name, plan_, control);
}

void MpiCommunicator::Broadcast(const CollectiveName& name, void* data, int64_t num_bytes, int root,
                                const ProgressControl& control) {
  // A chain root -> root + 1 -> ...: each chunk is passed on while the next arrives.
  const int n = link_.world_size;
  const int position = (link_.rank - root + n) % n;
  ClearPlan((link_.rank - 1 + n) % n, (link_.rank + 1) % n);
  int64_t index = 0;
  for (int64_t begin = 0; begin < num_bytes; begin += kChunkBytes, ++index) {
    char* chunk = static_cast<char*>(data) + begin;
    const int64_t chunk_bytes = std::min(kChunkBytes, num_bytes - begin);
    if (position > 0) plan_.incoming.push_back({chunk, chunk_bytes, -1, Arrival::kStore});
    if (position < n - 1) plan_.outgoing.push_back({chunk, chunk_bytes, position > 0 ? index : -1});
  }
  pipeline_.Run(name, plan_, control);
}

}  // namespace disco_fuse::runtime
