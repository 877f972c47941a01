#include "runtime/device_session.h"

#include <algorithm>
#include <chrono>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

namespace disco_fuse::runtime {

namespace {

using std::chrono::steady_clock;

// The host has nothing to do at the end of a step: poll hard first, then leave the core to others.
constexpr auto kSpin = std::chrono::microseconds(200);
constexpr auto kSleep = std::chrono::microseconds(50);

[[noreturn]] void ThrowInvalid(int64_t bucket, const std::string& reason) {
  throw std::invalid_argument("bucket " + std::to_string(bucket) + ": " + reason);
}

}  // namespace

DeviceSession::DeviceSession(std::shared_ptr<NcclCommunicator> communicator, int64_t max_events)
    : communicator_(std::move(communicator)), log_(communicator_->cuda(), max_events) {}

DeviceSession::~DeviceSession() {
  for (const auto& [id, bucket] : buckets_) {
    if (bucket.in_flight) {
      communicator_->Abort();
      return;
    }
  }
}

void DeviceSession::BeginStep(CudaStream stream) {
  RequireNothingInFlight("begin");
  communicator_->Enter();
  log_.Clear();
  order_.clear();
  finished_ = false;
  begin_ = log_.Record(stream);
}

void DeviceSession::Start(int64_t id, const std::vector<DeviceSpan>& tensors,
                          NcclOperation operation, CudaStream stream) {
  if (id < 0) ThrowInvalid(id, "the number of a bucket must be at least 0");
  if (tensors.empty()) ThrowInvalid(id, "has no tensors; at least one is needed");
  Bucket& bucket = buckets_[id];
  if (bucket.in_flight) ThrowInvalid(id, "started twice without a wait between");
  const CudaApi& cuda = communicator_->cuda();
  CudaEvent ready = log_.Record(stream);
  cuda.Check(cuda.stream_wait_event(communicator_->stream(), ready, 0), "cuStreamWaitEvent");
  bucket.tensors = tensors;
  bucket.start = log_.Record(communicator_->stream());
  communicator_->AllReduce(tensors, operation);
  bucket.finish = log_.Record(communicator_->stream());
  bucket.in_flight = true;
  order_.push_back(id);
  log_.Add(EventKind::kAllReduce, id, bucket.start, bucket.finish);
}

void DeviceSession::Wait(int64_t id, const std::vector<DeviceSpan>& tensors, CudaStream stream) {
  const auto found = buckets_.find(id);
  if (found == buckets_.end() || !found->second.in_flight) {
    ThrowInvalid(id, "waited for but not started");
  }
  Bucket& bucket = found->second;
  if (bucket.tensors != tensors) ThrowInvalid(id, "waited for with other tensors than started");
  const CudaApi& cuda = communicator_->cuda();
  CudaEvent before = log_.Record(stream);
  cuda.Check(cuda.stream_wait_event(stream, bucket.finish, 0), "cuStreamWaitEvent");
  CudaEvent after = log_.Record(stream);
  log_.Add(EventKind::kWait, id, before, after);
  bucket.in_flight = false;
}

void DeviceSession::FinishStep(CudaStream stream, CheckInterrupt check_interrupt) {
  RequireNothingInFlight("finish");
  const CudaApi& cuda = communicator_->cuda();
  CudaEvent end = log_.Record(stream);
  log_.Add(EventKind::kStep, 0, begin_, end);
  const auto begin = steady_clock::now();
  for (;;) {
    const int code = cuda.event_query(end);
    if (code == kCudaSuccess) break;
    if (code != kCudaNotReady) cuda.Check(code, "cuEventQuery");
    const auto waited = steady_clock::now() - begin;
    const char* error = communicator_->AsyncError();
    if (error != nullptr || waited > communicator_->timeout()) {
      const std::string text = DescribePending() + (error != nullptr ? error : "timed out");
      communicator_->Abort();
      throw std::runtime_error(text);
    }
    check_interrupt();
    if (waited > kSpin) std::this_thread::sleep_for(kSleep);
  }
  events_ = log_.Read(begin_);
  std::stable_sort(events_.begin(), events_.end(),
                   [](const Event& a, const Event& b) { return a.start < b.start; });
  finished_ = true;
}

std::string DeviceSession::DescribePending() const {
  std::ostringstream text;
  text << "rank " << communicator_->rank() << " of " << communicator_->world_size() << ": ";
  for (int64_t id : order_) {
    if (communicator_->cuda().event_query(buckets_.at(id).finish) == kCudaNotReady) {
      text << "bucket " << id << " has not arrived: ";
      return text.str();
    }
  }
  text << "all buckets have arrived, kernels have not ended: ";
  return text.str();
}

void DeviceSession::RequireNothingInFlight(const char* action) const {
  for (const auto& [id, bucket] : buckets_) {
    if (bucket.in_flight) {
      ThrowInvalid(
          id, std::string("started but not waited for; a step cannot ") + action + " before that");
    }
  }
}

void DeviceSession::BeginKernel(CudaStream stream) {
  kernel_start_ = log_.HasRoom() ? log_.Record(stream) : nullptr;
}

void DeviceSession::FinishKernel(const char* name, CudaStream stream) {
  if (kernel_start_ == nullptr) {
    log_.CountDropped();
    return;
  }
  auto [iterator, created] =
      kernel_ids_.try_emplace(name, static_cast<int64_t>(kernel_names_.size()));
  if (created) kernel_names_.emplace_back(name);
  log_.Add(EventKind::kKernel, iterator->second, kernel_start_, log_.Record(stream));
}

std::vector<Event> DeviceSession::Events() const {
  if (!finished_) throw std::invalid_argument("no step has finished: there are no events to read");
  return events_;
}

}  // namespace disco_fuse::runtime
