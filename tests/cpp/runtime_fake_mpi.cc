#include "runtime_fake_mpi.h"

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

namespace disco_fuse::runtime::testing {

struct FakeWorld::Endpoint {
  State* state;
  int rank;
};

namespace {

/*! \brief A posted send or receive. A send is done when it has been received, as a large one is. */
struct Operation {
  FakeWorld::State* state;
  const void* source = nullptr;
  void* target = nullptr;
  int num_bytes = 0;
  bool done = false;
};

}  // namespace

struct FakeWorld::State {
  using Key = std::tuple<int, int, int>;  // from, to, tag
  mutable std::mutex mutex;
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  std::vector<std::unique_ptr<Operation>> operations;
  std::map<Key, std::deque<Operation*>> sends;
  std::map<Key, std::deque<Operation*>> receives;
  bool broken = false;
  int64_t num_messages = 0;
  std::map<std::pair<int, int>, int64_t> num_bytes;  // by (from, to)

  Operation* Create(MpiRequest* request) {
    operations.push_back(std::make_unique<Operation>());
    operations.back()->state = this;
    request->slot = reinterpret_cast<uint64_t>(operations.back().get());
    return operations.back().get();
  }

  void Match(const Key& key) {
    auto& from = sends[key];
    auto& to = receives[key];
    while (!from.empty() && !to.empty()) {
      std::memcpy(to.front()->target, from.front()->source, from.front()->num_bytes);
      from.front()->done = to.front()->done = true;
      from.pop_front();
      to.pop_front();
    }
  }
};

namespace {

constexpr int kFailure = 17;

int FakeSend(const void* data, int count, MpiHandle, int peer, int tag, MpiHandle comm,
             MpiRequest* request) {
  auto* self = reinterpret_cast<FakeWorld::Endpoint*>(comm);
  std::lock_guard<std::mutex> lock(self->state->mutex);
  if (self->state->broken) return kFailure;
  Operation* operation = self->state->Create(request);
  operation->source = data;
  operation->num_bytes = count;
  self->state->num_messages += 1;
  self->state->num_bytes[{self->rank, peer}] += count;
  self->state->sends[{self->rank, peer, tag}].push_back(operation);
  self->state->Match({self->rank, peer, tag});
  return 0;
}

int FakeReceive(void* data, int count, MpiHandle, int peer, int tag, MpiHandle comm,
                MpiRequest* request) {
  auto* self = reinterpret_cast<FakeWorld::Endpoint*>(comm);
  std::lock_guard<std::mutex> lock(self->state->mutex);
  if (self->state->broken) return kFailure;
  Operation* operation = self->state->Create(request);
  operation->target = data;
  operation->num_bytes = count;
  self->state->receives[{peer, self->rank, tag}].push_back(operation);
  self->state->Match({peer, self->rank, tag});
  return 0;
}

int FakeTest(MpiRequest* request, int* flag, void*) {
  auto* operation = reinterpret_cast<Operation*>(request->slot);
  std::lock_guard<std::mutex> lock(operation->state->mutex);
  if (operation->state->broken) return kFailure;
  *flag = operation->done ? 1 : 0;
  return 0;
}

int FakeCancel(MpiRequest* request) {
  auto* operation = reinterpret_cast<Operation*>(request->slot);
  std::lock_guard<std::mutex> lock(operation->state->mutex);
  for (auto& [key, queue] : operation->state->receives) {
    for (auto it = queue.begin(); it != queue.end(); ++it) {
      if (*it != operation) continue;
      queue.erase(it);
      operation->done = true;
      return 0;
    }
  }
  return 0;
}

int FakeErrorString(int code, char* text, int* length) {
  std::strcpy(text, code == kFailure ? "the cable was cut" : "unknown");
  *length = static_cast<int>(std::strlen(text));
  return 0;
}

}  // namespace

FakeWorld::FakeWorld(int world_size) : state_(new State) {
  for (int rank = 0; rank < world_size; ++rank) {
    state_->endpoints.push_back(std::make_unique<Endpoint>(Endpoint{state_, rank}));
  }
}

FakeWorld::~FakeWorld() { delete state_; }

MpiLink FakeWorld::Link(int rank, std::chrono::nanoseconds timeout) {
  return {{FakeSend, FakeReceive, FakeTest, FakeCancel, FakeErrorString},
          reinterpret_cast<MpiHandle>(state_->endpoints[rank].get()),
          0,
          rank,
          static_cast<int>(state_->endpoints.size()),
          timeout};
}

void FakeWorld::Break() {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->broken = true;
}

int64_t FakeWorld::num_messages() const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->num_messages;
}

int64_t FakeWorld::num_bytes(const std::function<bool(int, int)>& counts) const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  int64_t sum = 0;
  for (const auto& [ranks, bytes] : state_->num_bytes) {
    if (counts(ranks.first, ranks.second)) sum += bytes;
  }
  return sum;
}

}  // namespace disco_fuse::runtime::testing
