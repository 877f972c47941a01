#include "runtime/nccl_communicator.h"

#include <future>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

namespace disco_fuse::runtime {

namespace {

// cuda.h: CU_STREAM_NON_BLOCKING. Without it the stream would wait for TVM's, the legacy default.
constexpr unsigned kStreamNonBlocking = 1;

}  // namespace

NcclCommunicator::NcclCommunicator(const CudaApi& cuda, const NcclApi& nccl, const NcclUniqueId& id,
                                   const NcclPlace& place)
    : cuda_(cuda), nccl_(nccl), place_(place) {
  cuda_.Check(cuda_.init(0), "cuInit");
  cuda_.Check(cuda_.device_get(&device_, place_.device), "cuDeviceGet");
  cuda_.Check(cuda_.primary_context_retain(&context_, device_), "cuDevicePrimaryCtxRetain");
  try {
    Enter();
    int least = 0;
    int greatest = 0;  // the more urgent, the smaller
    cuda_.Check(cuda_.stream_priority_range(&least, &greatest), "cuCtxGetStreamPriorityRange");
    cuda_.Check(cuda_.stream_create(&stream_, kStreamNonBlocking, greatest),
                "cuStreamCreateWithPriority");
    Join(id);
  } catch (...) {
    if (stream_ != nullptr) cuda_.stream_destroy(stream_);
    cuda_.primary_context_release(device_);
    throw;
  }
}

NcclCommunicator::~NcclCommunicator() {
  if (handle_ != nullptr) nccl_.destroy(handle_);
  cuda_.stream_destroy(stream_);
  cuda_.primary_context_release(device_);
}

void NcclCommunicator::Join(const NcclUniqueId& id) {
  // ncclCommInitRank returns when every rank has called it, maybe never: a thread of its own calls
  // it. After a timeout that thread stays behind, and owns all it touches.
  auto joined = std::make_shared<std::promise<std::pair<int, NcclHandle>>>();
  std::future<std::pair<int, NcclHandle>> result = joined->get_future();
  std::thread([joined, id, cuda = cuda_, nccl = nccl_, place = place_, context = context_] {
    NcclHandle handle = nullptr;
    cuda.context_set_current(context);
    const int code = nccl.init_rank(&handle, place.world_size, id, place.rank);
    joined->set_value({code, handle});
  }).detach();
  if (result.wait_for(place_.timeout) != std::future_status::ready) {
    const double seconds = std::chrono::duration<double>(place_.timeout).count();
    throw std::runtime_error("rank " + std::to_string(place_.rank) + " of " +
                             std::to_string(place_.world_size) + " waited " +
                             std::to_string(seconds) + " s for the others to join NCCL");
  }
  const auto [code, handle] = result.get();
  nccl_.Check(code, "ncclCommInitRank");
  handle_ = handle;
}

void NcclCommunicator::Enter() const {
  cuda_.Check(cuda_.context_set_current(context_), "cuCtxSetCurrent");
}

void NcclCommunicator::RequireOpen() const {
  if (handle_ == nullptr) throw std::runtime_error("the NCCL communicator was closed");
}

void NcclCommunicator::AllReduce(const std::vector<DeviceSpan>& tensors, NcclOperation operation) {
  RequireOpen();
  nccl_.Check(nccl_.group_start(), "ncclGroupStart");
  int failed = kNcclSuccess;
  for (const DeviceSpan& tensor : tensors) {
    failed = nccl_.all_reduce(tensor.data, tensor.data, static_cast<size_t>(tensor.count),
                              static_cast<int>(tensor.type), static_cast<int>(operation), handle_,
                              stream_);
    if (failed != kNcclSuccess) break;
  }
  // The group is closed even if a call in it failed: an open one would swallow the next calls.
  const int ended = nccl_.group_end();
  nccl_.Check(failed, "ncclAllReduce");
  nccl_.Check(ended, "ncclGroupEnd");
}

const char* NcclCommunicator::AsyncError() const {
  if (handle_ == nullptr) return "the NCCL communicator was closed";
  int error = kNcclSuccess;
  const int code = nccl_.async_error(handle_, &error);
  if (code != kNcclSuccess) error = code;
  return error == kNcclSuccess || error == kNcclInProgress ? nullptr : nccl_.error_string(error);
}

void NcclCommunicator::Abort() {
  if (handle_ == nullptr) return;
  nccl_.abort(handle_);
  handle_ = nullptr;
}

}  // namespace disco_fuse::runtime
