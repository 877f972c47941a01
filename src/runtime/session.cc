#include "runtime/session.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

namespace disco_fuse::runtime {

namespace {

[[noreturn]] void ThrowInvalid(int64_t bucket, const std::string& reason) {
  throw std::invalid_argument("bucket " + std::to_string(bucket) + ": " + reason);
}

int64_t AlignUp(int64_t num_bytes) {
  return (num_bytes + kGradientAlignment - 1) / kGradientAlignment * kGradientAlignment;
}

int64_t Bytes(const TensorSpan& tensor) { return tensor.count * SizeOf(tensor.dtype); }

}  // namespace

Session::Session(std::shared_ptr<CommunicationThread> thread, int64_t max_events)
    : thread_(std::move(thread)),
      step_begin_(std::chrono::steady_clock::now()),
      main_log_(max_events),
      allreduce_log_(max_events) {}

Session::~Session() {
  for (const auto& [id, bucket] : buckets_) {
    // No waiting for peers here: a step that was left with buckets in flight has failed.
    if (bucket.in_flight && !thread_->IsDone(*bucket.job)) {
      thread_->Close();
      return;
    }
  }
}

void Session::BeginStep() {
  RequireNothingInFlight("begin");
  main_log_.Clear();
  allreduce_log_.Clear();
  step_begin_ = std::chrono::steady_clock::now();
}

void Session::FinishStep() {
  RequireNothingInFlight("finish");
  main_log_.Add({EventKind::kStep, 0, std::chrono::nanoseconds(0), Now()});
}

void Session::RequireNothingInFlight(const char* action) const {
  for (const auto& [id, bucket] : buckets_) {
    if (bucket.in_flight) {
      ThrowInvalid(
          id, std::string("started but not waited for; a step cannot ") + action + " before that");
    }
  }
}

Session::Bucket* Session::FindOrCreate(int64_t id) {
  if (id < 0) ThrowInvalid(id, "the number of a bucket must be at least 0");
  auto [iterator, created] = buckets_.try_emplace(id);
  Bucket* bucket = &iterator->second;
  if (created) {
    bucket->job = std::make_unique<CommunicationJob>(
        [this, id, bucket](Communicator* communicator, const ProgressControl& control) {
          const auto start = Now();
          communicator->AllReduce({"bucket", id}, bucket->data, bucket->count,
                                  bucket->tensors.front().dtype, bucket->reduction, control);
          allreduce_log_.Add({EventKind::kAllReduce, id, start, Now()});
        });
  }
  return bucket;
}

void Session::Start(int64_t id, const std::vector<TensorSpan>& tensors, Reduction reduction) {
  const auto start = Now();
  if (tensors.empty()) ThrowInvalid(id, "has no tensors; at least one is needed");
  for (const TensorSpan& tensor : tensors) {
    if (tensor.dtype != tensors.front().dtype) {
      ThrowInvalid(id, "mixes dtypes; the tensors of a bucket must have one");
    }
  }
  Bucket* bucket = FindOrCreate(id);
  if (bucket->in_flight) ThrowInvalid(id, "started twice without a wait between");
  bucket->tensors = tensors;
  bucket->reduction = reduction;
  if (thread_->world_size() > 1) {  // alone, a tensor is its own average
    Pack(bucket);
    thread_->Submit(bucket->job.get());
  }
  bucket->in_flight = true;
  main_log_.Add({EventKind::kStart, id, start, Now()});
}

void Session::Wait(int64_t id, const std::vector<TensorSpan>& tensors,
                   CheckInterrupt check_interrupt) {
  const auto start = Now();
  const auto found = buckets_.find(id);
  if (found == buckets_.end() || !found->second.in_flight) {
    ThrowInvalid(id, "waited for but not started");
  }
  Bucket* bucket = &found->second;
  if (bucket->tensors != tensors) ThrowInvalid(id, "waited for with other tensors than started");
  if (thread_->world_size() > 1) {
    try {
      thread_->Wait(bucket->job.get(), check_interrupt);
    } catch (...) {
      // An interrupted wait leaves the bucket under way; a failed AllReduce is over.
      bucket->in_flight = !thread_->IsDone(*bucket->job);
      throw;
    }
    Unpack(*bucket);
  }
  bucket->in_flight = false;
  main_log_.Add({EventKind::kWait, id, start, Now()});
}

std::shared_ptr<char> Session::BucketMemory(int64_t id, int64_t num_bytes) {
  if (num_bytes < 1) ThrowInvalid(id, "needs at least one byte of memory");
  Bucket* bucket = FindOrCreate(id);
  if (bucket->in_flight)
    ThrowInvalid(id, "is in flight; its memory cannot be written before a wait");
  Reserve(bucket, num_bytes);
  return bucket->buffer;
}

std::map<int64_t, int64_t> Session::CopiedBytes() const {
  std::map<int64_t, int64_t> copied;
  for (const auto& [id, bucket] : buckets_) copied[id] = bucket.copied_bytes;
  return copied;
}

void Session::Reserve(Bucket* bucket, int64_t num_bytes) {
  if (num_bytes <= bucket->capacity_bytes) return;
  num_bytes = AlignUp(num_bytes);
  void* memory = std::aligned_alloc(kGradientAlignment, static_cast<size_t>(num_bytes));
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0, static_cast<size_t>(num_bytes));  // what lies between gradients travels
  bucket->buffer = std::shared_ptr<char>(static_cast<char*>(memory), std::free);
  bucket->capacity_bytes = num_bytes;
}

void Session::Pack(Bucket* bucket) {
  bucket->copied_bytes = 0;
  if (bucket->tensors.size() == 1) {
    bucket->data = bucket->tensors.front().data;
    bucket->count = bucket->tensors.front().count;
    return;
  }
  int64_t num_bytes = 0;
  for (const TensorSpan& tensor : bucket->tensors) num_bytes = AlignUp(num_bytes) + Bytes(tensor);
  Reserve(bucket, num_bytes);
  bucket->data = bucket->buffer.get();
  bucket->count = num_bytes / SizeOf(bucket->tensors.front().dtype);
  int64_t offset = 0;
  for (const TensorSpan& tensor : bucket->tensors) {
    char* place = bucket->buffer.get() + AlignUp(offset);
    offset = AlignUp(offset) + Bytes(tensor);
    if (place == tensor.data) continue;
    std::memcpy(place, tensor.data, static_cast<size_t>(Bytes(tensor)));
    bucket->copied_bytes += Bytes(tensor);
  }
}

void Session::Unpack(const Bucket& bucket) {
  if (bucket.tensors.size() == 1) return;
  int64_t offset = 0;
  for (const TensorSpan& tensor : bucket.tensors) {
    const char* place = bucket.buffer.get() + AlignUp(offset);
    offset = AlignUp(offset) + Bytes(tensor);
    if (place == tensor.data) continue;
    std::memcpy(tensor.data, place, static_cast<size_t>(Bytes(tensor)));
  }
}

void Session::FinishKernel(const char* name) {
  const auto finish = Now();
  auto [iterator, created] =
      kernel_ids_.try_emplace(name, static_cast<int64_t>(kernel_names_.size()));
  if (created) kernel_names_.emplace_back(name);
  main_log_.Add({EventKind::kKernel, iterator->second, kernel_start_, finish});
}

std::vector<Event> Session::Events() const {
  RequireNothingInFlight("be read");
  std::vector<Event> events = main_log_.events();
  events.insert(events.end(), allreduce_log_.events().begin(), allreduce_log_.events().end());
  std::stable_sort(events.begin(), events.end(),
                   [](const Event& a, const Event& b) { return a.start < b.start; });
  return events;
}

}  // namespace disco_fuse::runtime
