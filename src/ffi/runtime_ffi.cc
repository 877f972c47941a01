#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/memory.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "ffi/device_session_ffi.h"
#include "ffi/runtime_convert.h"
#include "runtime/communication_thread.h"
#include "runtime/mpi_communicator.h"
#include "runtime/session.h"

namespace disco_fuse::runtime {

namespace ffi = tvm::ffi;

namespace {

char* HostData(const ffi::TensorView& tensor) {
  if (tensor.device().device_type != kDLCPU) {
    TVM_FFI_THROW(ValueError) << "a tensor is on device type " << tensor.device().device_type
                              << "; this transport moves host memory only (" << kDLCPU << ")";
  }
  if (!tensor.IsContiguous()) {
    TVM_FFI_THROW(ValueError) << "a tensor of shape " << tensor.shape() << " is not contiguous";
  }
  return static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset();
}

DataType ToDataType(const DLDataType& dtype) {
  if (dtype.lanes == 1) {
    if (dtype.code == kDLFloat && dtype.bits == 32) return DataType::kFloat32;
    if (dtype.code == kDLFloat && dtype.bits == 64) return DataType::kFloat64;
    if (dtype.code == kDLFloat && dtype.bits == 16) return DataType::kFloat16;
    if (dtype.code == kDLBfloat && dtype.bits == 16) return DataType::kBfloat16;
  }
  TVM_FFI_THROW(TypeError) << "a gradient is of " << ffi::DLDataTypeToString(dtype)
                           << "; allowed: float16, bfloat16, float32, float64";
  TVM_FFI_UNREACHABLE();
}

TensorSpan ToSpan(const ffi::TensorView& tensor) {
  return {HostData(tensor), tensor.numel(), ToDataType(tensor.dtype())};
}

/*! \brief A piece of a bucket's memory, which lives as long as any tensor in it. */
struct BucketPiece {
  std::shared_ptr<char> memory;
  int64_t offset_bytes;
  void AllocData(DLTensor* tensor) { tensor->data = memory.get() + offset_bytes; }
  void FreeData(DLTensor*) {}
};

}  // namespace

class CommunicatorObj : public ffi::Object {
 public:
  explicit CommunicatorObj(std::unique_ptr<Communicator> communicator)
      : thread(std::make_shared<CommunicationThread>(std::move(communicator))) {}

  std::shared_ptr<CommunicationThread> thread;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("disco_fuse.runtime.Communicator", CommunicatorObj,
                                    ffi::Object);
};

class CommunicatorRef : public ffi::ObjectRef {
 public:
  explicit CommunicatorRef(std::unique_ptr<Communicator> communicator)
      : ObjectRef(ffi::make_object<CommunicatorObj>(std::move(communicator))) {}
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NOTNULLABLE(CommunicatorRef, ffi::ObjectRef, CommunicatorObj);
};

class SessionObj : public ffi::Object {
 public:
  SessionObj(const CommunicatorRef& communicator, int64_t max_events)
      : session(communicator->thread, max_events) {}

  Session session;
  std::vector<TensorSpan> arguments;  // of the call under way; kept for its memory

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("disco_fuse.runtime.Session", SessionObj, ffi::Object);
};

class SessionRef : public ffi::ObjectRef {
 public:
  SessionRef(const CommunicatorRef& communicator, int64_t max_events)
      : ObjectRef(ffi::make_object<SessionObj>(communicator, max_events)) {}
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(SessionRef, ffi::ObjectRef, SessionObj);
};

namespace {

/*! \brief The session whose buckets this thread's compiled steps mean. */
SessionRef& CurrentSession() {
  thread_local SessionRef session{ffi::ObjectPtr<SessionObj>(nullptr)};
  return session;
}

SessionObj* RequireSession(const char* function) {
  const SessionRef& session = CurrentSession();
  if (!session.defined()) {
    TVM_FFI_THROW(RuntimeError)
        << function << " needs a session on the thread that runs the step, and there is none; "
        << "run the step inside `with session.step():` of a disco_fuse.runtime.Session";
  }
  return session.get();
}

/*! \brief (bucket, tensor...) of a packed call; the spans go into the session's own vector. */
int64_t ReadArguments(const char* function, ffi::PackedArgs args, SessionObj* session) {
  if (args.size() < 2) {
    TVM_FFI_THROW(TypeError) << function << " takes a bucket and at least one tensor, got "
                             << args.size() << " arguments";
  }
  session->arguments.clear();
  for (int i = 1; i < args.size(); ++i) {
    session->arguments.push_back(ToSpan(args[i].cast<ffi::TensorView>()));
  }
  return args[0].cast<int64_t>();
}

void StartWith(const char* function, Reduction reduction, ffi::PackedArgs args) {
  if (IsDeviceCall(args)) {
    const bool is_average = reduction == Reduction::kAverage;
    StartOnDevice(function, is_average ? NcclOperation::kAverage : NcclOperation::kSum, args);
    return;
  }
  SessionObj* self = RequireSession(function);
  const int64_t bucket = ReadArguments(function, args, self);
  Translate([&] { self->session.Start(bucket, self->arguments, reduction); });
}

void AllReduceStart(ffi::PackedArgs args, ffi::Any*) {
  StartWith("disco_fuse.runtime.allreduce_start", Reduction::kAverage, args);
}

void AllReduceStartSum(ffi::PackedArgs args, ffi::Any*) {
  StartWith("disco_fuse.runtime.allreduce_start_sum", Reduction::kSum, args);
}

void AllReduceWait(ffi::PackedArgs args, ffi::Any*) {
  constexpr const char* kName = "disco_fuse.runtime.allreduce_wait";
  if (IsDeviceCall(args)) {
    WaitOnDevice(kName, args);
    return;
  }
  SessionObj* self = RequireSession(kName);
  const int64_t bucket = ReadArguments(kName, args, self);
  Translate([&] { self->session.Wait(bucket, self->arguments, CheckInterruptOfPython); });
}

/*!
 * \brief What a compiled step calls instead of allocating a gradient: (bucket, offset in bytes,
 * bytes of the whole bucket, shape, dtype) to a tensor in the memory in which the bucket travels.
 */
ffi::Tensor BucketTensor(int64_t bucket, int64_t offset_bytes, int64_t num_bytes,
                         const ffi::Shape& shape, const ffi::String& dtype) {
  SessionObj* self = RequireSession("disco_fuse.runtime.bucket_tensor");
  const DLDataType type = ffi::StringToDLDataType(dtype);
  const auto size = static_cast<int64_t>(ffi::GetDataSize(shape.Product(), type));
  if (offset_bytes < 0 || size > num_bytes - offset_bytes) {
    TVM_FFI_THROW(ValueError) << "bucket " << bucket << " of " << num_bytes
                              << " bytes has no room for " << size << " bytes at " << offset_bytes;
  }
  auto memory = Translate([&] { return self->session.BucketMemory(bucket, num_bytes); });
  return ffi::Tensor::FromNDAlloc(BucketPiece{std::move(memory), offset_bytes}, shape, type,
                                  DLDevice{kDLCPU, 0});
}

/*! \brief A Relax VM instrument: (function, name, before_run, return value, arguments...). */
void RecordKernel(ffi::PackedArgs args, ffi::Any*) {
  SessionObj* self = RequireSession("disco_fuse.runtime.record_kernel");
  const auto name = args[1].cast<ffi::String>();
  if (!IsKernelName({name.data(), name.size()})) return;
  if (args[2].cast<bool>()) {
    self->session.BeginKernel();
  } else {
    self->session.FinishKernel(name.c_str());
  }
}

CommunicatorRef CreateMpi(const ffi::String& library_path, int64_t comm, int64_t byte_type,
                          int64_t rank, int64_t world_size, double timeout_s,
                          const ffi::Array<int64_t>& local, const ffi::Array<int64_t>& across) {
  return Translate([&] {
    MpiLink link{MpiApi::Find(library_path),
                 static_cast<MpiHandle>(comm),
                 static_cast<MpiHandle>(byte_type),
                 static_cast<int>(rank),
                 static_cast<int>(world_size),
                 std::chrono::duration_cast<std::chrono::nanoseconds>(
                     std::chrono::duration<double>(timeout_s))};
    HostGroups groups{{local.begin(), local.end()}, {across.begin(), across.end()}};
    return CommunicatorRef(std::make_unique<MpiCommunicator>(link, std::move(groups)));
  });
}

void Broadcast(const CommunicatorRef& communicator, const ffi::TensorView& tensor, int64_t index,
               int64_t root) {
  char* data = HostData(tensor);
  const int64_t num_bytes =
      static_cast<int64_t>(ffi::GetDataSize(static_cast<size_t>(tensor.numel()), tensor.dtype()));
  CommunicationJob job([=](Communicator* run, const ProgressControl& control) {
    run->Broadcast({"broadcast of array", index}, data, num_bytes, static_cast<int>(root), control);
  });
  // Not interruptible: the job lives in this frame.
  Translate([&] {
    communicator->thread->Submit(&job);
    communicator->thread->Wait(&job, [] {});
  });
}

void CopyEvents(const SessionRef& session, const ffi::TensorView& rows) {
  WriteEvents(Translate([&] { return session->session.Events(); }), rows);
}

/*! \brief Bytes that were copied into each bucket in the last step, by bucket. */
ffi::Map<int64_t, int64_t> CopiedBytes(const SessionRef& session) {
  ffi::Map<int64_t, int64_t> copied;
  for (const auto& [bucket, bytes] : session->session.CopiedBytes()) copied.Set(bucket, bytes);
  return copied;
}

ffi::Array<ffi::String> KernelNames(const SessionRef& session) {
  ffi::Array<ffi::String> names;
  for (const std::string& name : session->session.kernel_names()) names.push_back(name);
  return names;
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::ObjectDef<CommunicatorObj>();
  refl::ObjectDef<SessionObj>();
  refl::GlobalDef()
      .def("disco_fuse.runtime.loopback",
           [] { return CommunicatorRef(std::make_unique<LoopbackCommunicator>()); })
      .def("disco_fuse.runtime.mpi", CreateMpi)
      .def("disco_fuse.runtime.close", [](const CommunicatorRef& self) { self->thread->Close(); })
      .def("disco_fuse.runtime.broadcast", Broadcast)
      .def("disco_fuse.runtime.helper_cpu_ns",
           [](const CommunicatorRef& self) { return self->thread->cpu_time().count(); });
  refl::GlobalDef()
      .def("disco_fuse.runtime.session",
           [](const CommunicatorRef& communicator, int64_t max_events) {
             return SessionRef(communicator, max_events);
           })
      .def("disco_fuse.runtime.begin_step",
           [](const SessionRef& self) { Translate([&] { self->session.BeginStep(); }); })
      .def("disco_fuse.runtime.finish_step",
           [](const SessionRef& self) { Translate([&] { self->session.FinishStep(); }); })
      .def("disco_fuse.runtime.swap_current_session",
           [](SessionRef session) {
             std::swap(session, CurrentSession());
             return session;
           })
      .def("disco_fuse.runtime.num_events",
           [](const SessionRef& self) {
             return Translate([&] { return static_cast<int64_t>(self->session.Events().size()); });
           })
      .def("disco_fuse.runtime.num_dropped_events",
           [](const SessionRef& self) { return self->session.num_dropped(); })
      .def("disco_fuse.runtime.copy_events", CopyEvents)
      .def("disco_fuse.runtime.kernel_names", KernelNames)
      .def("disco_fuse.runtime.copied_bytes", CopiedBytes);
  refl::GlobalDef()
      .def("disco_fuse.runtime.bucket_tensor", BucketTensor)
      .def_packed("disco_fuse.runtime.allreduce_start", AllReduceStart)
      .def_packed("disco_fuse.runtime.allreduce_start_sum", AllReduceStartSum)
      .def_packed("disco_fuse.runtime.allreduce_wait", AllReduceWait)
      .def_packed("disco_fuse.runtime.record_kernel", RecordKernel);
}

}  // namespace disco_fuse::runtime
