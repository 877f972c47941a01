#include "runtime_fake_gpu.h"

#include <chrono>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

namespace disco_fuse::runtime::testing {

namespace {

struct FakeEvent {
  int64_t num_recorded = 0;  // enqueued
  int64_t num_passed = 0;    // reached by the stream
  double ms = 0;
};

struct Command {
  std::function<void()> run;
  double ms = 0;
  FakeEvent* record = nullptr;
  FakeEvent* wait = nullptr;
  int64_t wait_for = 0;  // records that must have been passed
  bool hangs = false;
};

struct FakeStream {
  std::deque<Command> commands;
  double now_ms = 0;
};

constexpr int kBroken = 5;

}  // namespace

struct FakeGpu::State {
  Prefer prefer;
  FakeStream compute;
  FakeStream communication;
  bool hang_reductions = false;
  bool fail_reductions = false;
  bool hang_joining = false;
  bool broken = false;
  bool open = false;
  bool in_group = false;
  std::vector<Command> group;
  int num_groups = 0;
  int num_live_events = 0;
  int world_size = 1;

  bool Step(FakeStream* stream) {
    if (stream->commands.empty()) return false;
    const Command command = stream->commands.front();
    if (command.hangs) return false;
    if (command.wait != nullptr && command.wait->num_passed < command.wait_for) return false;
    stream->commands.pop_front();
    if (command.wait != nullptr && command.wait->ms > stream->now_ms) {
      stream->now_ms = command.wait->ms;
    }
    stream->now_ms += command.ms;
    if (command.run) command.run();
    if (command.record != nullptr) {
      ++command.record->num_passed;
      command.record->ms = stream->now_ms;
    }
    return true;
  }

  void Progress() {
    FakeStream* first = prefer == Prefer::kCompute ? &compute : &communication;
    FakeStream* second = prefer == Prefer::kCompute ? &communication : &compute;
    if (!Step(first)) Step(second);
  }

  FakeStream* Find(CudaStream stream) {
    return stream == FakeGpu::compute_stream() ? &compute : &communication;
  }
};

namespace {

FakeGpu::State* gpu = nullptr;

template <typename T>
void Reduce(void* data, size_t count, int operation) {
  T* values = static_cast<T*>(data);
  const bool average = operation == static_cast<int>(NcclOperation::kAverage);
  for (size_t i = 0; i < count; ++i) {
    if (average) values[i] /= static_cast<T>(gpu->world_size);
  }
}

int AllReduce(const void* from, void* to, size_t count, int type, int operation, NcclHandle,
              CudaStream) {
  if (gpu->fail_reductions || from != to || !gpu->in_group) return kBroken;
  Command command;
  command.ms = 1;
  command.hangs = gpu->hang_reductions;
  command.run = [=] {
    if (type == static_cast<int>(NcclType::kFloat64)) {
      Reduce<double>(to, count, operation);
    } else {
      Reduce<float>(to, count, operation);
    }
  };
  gpu->group.push_back(command);
  return 0;
}

int GroupEnd() {
  for (Command& command : gpu->group) gpu->communication.commands.push_back(command);
  gpu->group.clear();
  gpu->in_group = false;
  ++gpu->num_groups;
  return 0;
}

int InitRank(NcclHandle* handle, int world_size, NcclUniqueId, int) {
  if (gpu->hang_joining) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return kBroken;
  }
  gpu->world_size = world_size;
  gpu->open = true;
  *handle = gpu;
  return 0;
}

int Close(NcclHandle) {
  gpu->open = false;
  return 0;
}

int Enqueue(CudaStream stream, const Command& command) {
  gpu->Find(stream)->commands.push_back(command);
  return 0;
}

}  // namespace

FakeGpu::FakeGpu(Prefer prefer) {
  gpu = new State();
  gpu->prefer = prefer;
}

FakeGpu::~FakeGpu() {
  // Left in place where a thread that hangs in joining may still look at it.
  if (!gpu->hang_joining) delete gpu;
}

CudaStream FakeGpu::compute_stream() { return nullptr; }  // TVM's is the legacy default stream

void FakeGpu::Launch(double ms, std::function<void()> kernel) {
  Command command;
  command.ms = ms;
  command.run = std::move(kernel);
  Enqueue(compute_stream(), command);
}

void FakeGpu::HangReductions() { gpu->hang_reductions = true; }
void FakeGpu::FailReductions() { gpu->fail_reductions = true; }
void FakeGpu::HangJoining() { gpu->hang_joining = true; }
void FakeGpu::BreakAsync() { gpu->broken = true; }
int FakeGpu::num_groups() const { return gpu->num_groups; }
int FakeGpu::num_live_events() const { return gpu->num_live_events; }
bool FakeGpu::is_open() const { return gpu->open; }

CudaApi FakeGpu::Cuda() {
  CudaApi api{};
  api.init = [](unsigned) { return 0; };
  api.device_get = [](int* device, int ordinal) {
    *device = ordinal;
    return ordinal == 0 ? 0 : 101;  // cuda.h: CUDA_ERROR_INVALID_DEVICE
  };
  api.primary_context_retain = [](CudaContext* context, int) {
    *context = gpu;
    return 0;
  };
  api.primary_context_release = [](int) { return 0; };
  api.context_set_current = [](CudaContext) { return 0; };
  api.stream_priority_range = [](int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return 0;
  };
  api.stream_create = [](CudaStream* stream, unsigned, int) {
    *stream = &gpu->communication;
    return 0;
  };
  api.stream_destroy = [](CudaStream) { return 0; };
  api.stream_wait_event = [](CudaStream stream, CudaEvent event, unsigned) {
    Command command;
    command.wait = static_cast<FakeEvent*>(event);
    command.wait_for = command.wait->num_recorded;
    return Enqueue(stream, command);
  };
  api.event_create = [](CudaEvent* event, unsigned) {
    *event = new FakeEvent();
    ++gpu->num_live_events;
    return 0;
  };
  api.event_destroy = [](CudaEvent event) {
    delete static_cast<FakeEvent*>(event);
    --gpu->num_live_events;
    return 0;
  };
  api.event_record = [](CudaEvent event, CudaStream stream) {
    Command command;
    command.record = static_cast<FakeEvent*>(event);
    ++command.record->num_recorded;
    return Enqueue(stream, command);
  };
  api.event_query = [](CudaEvent event) {
    const FakeEvent* fake = static_cast<FakeEvent*>(event);
    if (fake->num_passed < fake->num_recorded) gpu->Progress();
    return fake->num_passed < fake->num_recorded ? kCudaNotReady : kCudaSuccess;
  };
  api.event_elapsed_ms = [](float* ms, CudaEvent start, CudaEvent finish) {
    *ms = static_cast<float>(static_cast<FakeEvent*>(finish)->ms -
                             static_cast<FakeEvent*>(start)->ms);
    return 0;
  };
  api.error_string = [](int code, const char** text) {
    *text = code == 101 ? "invalid device ordinal" : "broken";
    return 0;
  };
  return api;
}

NcclApi FakeGpu::Nccl() {
  NcclApi api{};
  api.init_rank = InitRank;
  api.destroy = Close;
  api.abort = Close;
  api.async_error = [](NcclHandle, int* error) {
    *error = gpu->broken ? kBroken : 0;
    return 0;
  };
  api.group_start = [] {
    gpu->in_group = true;
    return 0;
  };
  api.group_end = GroupEnd;
  api.all_reduce = AllReduce;
  api.error_string = [](int) { return "remote process exited"; };
  return api;
}

}  // namespace disco_fuse::runtime::testing
