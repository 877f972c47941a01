#include "ffi/device_session_ffi.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/memory.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "ffi/runtime_convert.h"
#include "runtime/device_session.h"

namespace disco_fuse::runtime {

namespace ffi = tvm::ffi;

class NcclCommunicatorObj : public ffi::Object {
 public:
  NcclCommunicatorObj(std::shared_ptr<NcclCommunicator> joined, int64_t ordinal)
      : communicator(std::move(joined)), device(ordinal) {}

  std::shared_ptr<NcclCommunicator> communicator;
  int64_t device;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("disco_fuse.runtime.NcclCommunicator", NcclCommunicatorObj,
                                    ffi::Object);
};

class NcclCommunicatorRef : public ffi::ObjectRef {
 public:
  NcclCommunicatorRef(std::shared_ptr<NcclCommunicator> communicator, int64_t device)
      : ObjectRef(ffi::make_object<NcclCommunicatorObj>(std::move(communicator), device)) {}
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NOTNULLABLE(NcclCommunicatorRef, ffi::ObjectRef,
                                                NcclCommunicatorObj);
};

class DeviceSessionObj : public ffi::Object {
 public:
  DeviceSessionObj(const NcclCommunicatorRef& joined, int64_t max_events)
      : communicator(joined), session(joined->communicator, max_events) {}

  NcclCommunicatorRef communicator;
  DeviceSession session;
  std::vector<DeviceSpan> arguments;  // of the call under way; kept for its memory

  /*! \brief The stream on which TVM runs kernels of this thread. */
  CudaStream stream() const {
    return TVMFFIEnvGetStream(kDLCUDA, static_cast<int32_t>(communicator->device));
  }

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("disco_fuse.runtime.DeviceSession", DeviceSessionObj,
                                    ffi::Object);
};

class DeviceSessionRef : public ffi::ObjectRef {
 public:
  DeviceSessionRef(const NcclCommunicatorRef& communicator, int64_t max_events)
      : ObjectRef(ffi::make_object<DeviceSessionObj>(communicator, max_events)) {}
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(DeviceSessionRef, ffi::ObjectRef, DeviceSessionObj);
};

namespace {

/*! \brief The session whose buckets this thread's compiled steps for a GPU mean. */
DeviceSessionRef& CurrentSession() {
  thread_local DeviceSessionRef session{ffi::ObjectPtr<DeviceSessionObj>(nullptr)};
  return session;
}

DeviceSessionObj* RequireSession(const char* function) {
  const DeviceSessionRef& session = CurrentSession();
  if (!session.defined()) {
    TVM_FFI_THROW(RuntimeError)
        << function << " on tensors of a GPU needs a session over NCCL on the thread that runs the "
        << "step, and there is none; create it with disco_fuse.runtime.nccl";
  }
  return session.get();
}

NcclType ToNcclType(const DLDataType& dtype) {
  if (dtype.lanes == 1) {
    if (dtype.code == kDLFloat && dtype.bits == 16) return NcclType::kFloat16;
    if (dtype.code == kDLFloat && dtype.bits == 32) return NcclType::kFloat32;
    if (dtype.code == kDLFloat && dtype.bits == 64) return NcclType::kFloat64;
    if (dtype.code == kDLBfloat && dtype.bits == 16) return NcclType::kBFloat16;
  }
  TVM_FFI_THROW(TypeError) << "a gradient is of " << ffi::DLDataTypeToString(dtype)
                           << "; allowed: float16, bfloat16, float32, float64";
  TVM_FFI_UNREACHABLE();
}

DeviceSpan ToDeviceSpan(const ffi::TensorView& tensor, int64_t device) {
  if (tensor.device().device_type != kDLCUDA || tensor.device().device_id != device) {
    TVM_FFI_THROW(ValueError) << "a tensor is on device type " << tensor.device().device_type
                              << ", number " << tensor.device().device_id
                              << "; this session moves the memory of GPU " << device << " only";
  }
  if (!tensor.IsContiguous()) {
    TVM_FFI_THROW(ValueError) << "a tensor of shape " << tensor.shape() << " is not contiguous";
  }
  return {static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset(), tensor.numel(),
          ToNcclType(tensor.dtype())};
}

int64_t ReadArguments(ffi::PackedArgs args, DeviceSessionObj* session) {
  session->arguments.clear();
  for (int i = 1; i < args.size(); ++i) {
    session->arguments.push_back(
        ToDeviceSpan(args[i].cast<ffi::TensorView>(), session->communicator->device));
  }
  return args[0].cast<int64_t>();
}

/*! \brief Rank 0's id of a new job, to be given to all ranks: 128 bytes. */
ffi::Bytes UniqueId(const ffi::String& nccl_library) {
  return Translate([&] {
    const NcclApi nccl = NcclApi::Find(nccl_library);
    NcclUniqueId id{};
    nccl.Check(nccl.get_unique_id(&id), "ncclGetUniqueId");
    return ffi::Bytes(id.bytes, NcclUniqueId::kBytes);
  });
}

NcclCommunicatorRef Join(const ffi::String& nccl_library, const ffi::String& cuda_library,
                         const ffi::Bytes& unique_id, int64_t rank, int64_t world_size,
                         int64_t device, double timeout_s) {
  return Translate([&] {
    if (unique_id.size() != NcclUniqueId::kBytes) {
      throw std::invalid_argument("an NCCL id has " + std::to_string(NcclUniqueId::kBytes) +
                                  " bytes, got " + std::to_string(unique_id.size()));
    }
    NcclUniqueId id{};
    std::memcpy(id.bytes, unique_id.data(), NcclUniqueId::kBytes);
    const NcclPlace place{static_cast<int>(rank), static_cast<int>(world_size),
                          static_cast<int>(device),
                          std::chrono::duration_cast<std::chrono::nanoseconds>(
                              std::chrono::duration<double>(timeout_s))};
    return NcclCommunicatorRef(
        std::make_shared<NcclCommunicator>(CudaApi::Find(cuda_library), NcclApi::Find(nccl_library),
                                           id, place),
        device);
  });
}

/*! \brief A Relax VM instrument: (function, name, before_run, return value, arguments...). */
void RecordKernel(ffi::PackedArgs args, ffi::Any*) {
  DeviceSessionObj* self = RequireSession("disco_fuse.runtime.device_record_kernel");
  const auto name = args[1].cast<ffi::String>();
  if (!IsKernelName({name.data(), name.size()})) return;
  Translate([&] {
    if (args[2].cast<bool>()) {
      self->session.BeginKernel(self->stream());
    } else {
      self->session.FinishKernel(name.c_str(), self->stream());
    }
  });
}

ffi::Array<ffi::String> KernelNames(const DeviceSessionRef& session) {
  ffi::Array<ffi::String> names;
  for (const std::string& name : session->session.kernel_names()) names.push_back(name);
  return names;
}

}  // namespace

bool IsDeviceCall(ffi::PackedArgs args) {
  if (args.size() < 2) return false;
  const auto tensor = args[1].try_cast<ffi::TensorView>();
  return tensor.has_value() && tensor->device().device_type == kDLCUDA;
}

void StartOnDevice(const char* function, NcclOperation operation, ffi::PackedArgs args) {
  DeviceSessionObj* self = RequireSession(function);
  const int64_t bucket = ReadArguments(args, self);
  Translate([&] { self->session.Start(bucket, self->arguments, operation, self->stream()); });
}

void WaitOnDevice(const char* function, ffi::PackedArgs args) {
  DeviceSessionObj* self = RequireSession(function);
  const int64_t bucket = ReadArguments(args, self);
  Translate([&] { self->session.Wait(bucket, self->arguments, self->stream()); });
}

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::ObjectDef<NcclCommunicatorObj>();
  refl::ObjectDef<DeviceSessionObj>();
  refl::GlobalDef()
      .def("disco_fuse.runtime.nccl_unique_id", UniqueId)
      .def("disco_fuse.runtime.nccl", Join)
      .def("disco_fuse.runtime.device_close",
           [](const NcclCommunicatorRef& self) { self->communicator->Abort(); })
      .def("disco_fuse.runtime.device_session",
           [](const NcclCommunicatorRef& communicator, int64_t max_events) {
             return DeviceSessionRef(communicator, max_events);
           })
      .def("disco_fuse.runtime.device_begin_step",
           [](const DeviceSessionRef& self) {
             Translate([&] { self->session.BeginStep(self->stream()); });
           })
      .def("disco_fuse.runtime.device_finish_step",
           [](const DeviceSessionRef& self) {
             Translate([&] { self->session.FinishStep(self->stream(), CheckInterruptOfPython); });
           })
      .def("disco_fuse.runtime.device_swap_current_session", [](DeviceSessionRef session) {
        std::swap(session, CurrentSession());
        return session;
      });
  refl::GlobalDef()
      .def("disco_fuse.runtime.device_num_events",
           [](const DeviceSessionRef& self) {
             return Translate([&] { return static_cast<int64_t>(self->session.Events().size()); });
           })
      .def("disco_fuse.runtime.device_num_dropped_events",
           [](const DeviceSessionRef& self) { return self->session.num_dropped(); })
      .def("disco_fuse.runtime.device_copy_events",
           [](const DeviceSessionRef& self, const ffi::TensorView& rows) {
             WriteEvents(Translate([&] { return self->session.Events(); }), rows);
           })
      .def("disco_fuse.runtime.device_kernel_names", KernelNames)
      .def_packed("disco_fuse.runtime.device_record_kernel", RecordKernel);
}

}  // namespace disco_fuse::runtime
