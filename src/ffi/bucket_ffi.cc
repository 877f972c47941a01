#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <string>
#include <utility>
#include <vector>

#include "ffi/convert.h"
#include "kernels/bucket_c.h"
#include "kernels/bucket_cpu.h"
#include "kernels/bucket_cuda.h"

namespace disco_fuse {

/*! \brief A checked spec. */
class BucketSpecObj : public ffi::Object {
 public:
  explicit BucketSpecObj(BucketSpec spec) : spec(std::move(spec)) {}
  BucketSpec spec;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("disco_fuse.BucketSpec", BucketSpecObj, ffi::Object);
};

class BucketSpecRef : public ffi::ObjectRef {
 public:
  explicit BucketSpecRef(BucketSpec spec) {
    data_ = ffi::make_object<BucketSpecObj>(std::move(spec));
  }
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NOTNULLABLE(BucketSpecRef, ffi::ObjectRef, BucketSpecObj);
};

namespace {

using Tensors = ffi::Array<ffi::Tensor>;
using Passing = GeneratedEntry::Passing;

UpdateRule ToUpdateRule(const Fields& fields) {
  UpdateRule rule;
  rule.kind = ParseUpdateKind(fields.at("kind").cast<ffi::String>());
  rule.momentum = fields.at("momentum").cast<double>();
  rule.nesterov = fields.at("nesterov").cast<bool>();
  rule.beta1 = fields.at("beta1").cast<double>();
  rule.beta2 = fields.at("beta2").cast<double>();
  rule.eps = fields.at("eps").cast<double>();
  rule.weight_decay = fields.at("weight_decay").cast<double>();
  return rule;
}

/*! \brief Counts and offsets come as one int64 array of two rows, since there may be thousands. */
BucketSpecRef MakeSpec(Fields fields, ffi::TensorView places, ffi::Array<ffi::String> dtypes) {
  return Translate([&] {
    BucketSpec spec;
    spec.name = fields.at("name").cast<ffi::String>();
    spec.dtype = ParseElementType(fields.at("dtype").cast<ffi::String>());
    spec.count = fields.at("count").cast<int64_t>();
    spec.scale = fields.at("scale").cast<double>();
    spec.alignment_bytes = fields.at("alignment_bytes").cast<int64_t>();
    spec.update = ToUpdateRule(fields.at("update").cast<Fields>());
    const std::vector<int64_t> numbers = ToVector<int64_t>(places);
    const size_t num_tensors = dtypes.size();
    if (numbers.size() != 2 * num_tensors) {
      TVM_FFI_THROW(ValueError) << "a bucket of " << num_tensors << " dtypes needs as many counts "
                                << "and offsets, got " << numbers.size() << " numbers";
    }
    for (size_t i = 0; i < num_tensors; ++i) {
      spec.tensors.push_back(
          {numbers[i], ParseElementType(std::string(dtypes[i])), numbers[num_tensors + i]});
    }
    CheckBucketSpec(spec);
    return BucketSpecRef(std::move(spec));
  });
}

const char* PassingName(Passing passing) {
  switch (passing) {
    case Passing::kPointer:
      return "pointer";
    case Passing::kPointerArray:
      return "pointer_array";
    case Passing::kPointerStruct:
      return "pointer_struct";
  }
  TVM_FFI_UNREACHABLE();
}

Fields ToFields(const GeneratedEntry& entry) {
  ffi::Array<ffi::Array<ffi::String>> arguments;
  for (const GeneratedEntry::Argument& argument : entry.arguments) {
    arguments.push_back({argument.name, PassingName(argument.passing)});
  }
  return {{"name", ffi::String(entry.name)},
          {"arguments", arguments},
          {"num_blocks", entry.num_blocks},
          {"threads_per_block", entry.threads_per_block}};
}

template <GeneratedSource (*Generate)(const BucketSpec&)>
Fields MakeSource(BucketSpecRef spec) {
  const GeneratedSource source = Translate([&] { return Generate(spec->spec); });
  return {{"code", ffi::String(source.code)},
          {"pack", ToFields(source.pack)},
          {"unpack", ToFields(source.unpack)}};
}

ffi::Array<ffi::String> ToStrings(const std::vector<std::string>& values) {
  ffi::Array<ffi::String> strings;
  for (const std::string& value : values) strings.push_back(ffi::String(value));
  return strings;
}

ffi::Array<double> Scalars(BucketSpecRef spec, double learning_rate, int64_t step) {
  return Translate([&] {
    const auto scalars = StepScalars(spec->spec.update, learning_rate, step);
    return ffi::Array<double>(scalars.begin(), scalars.end());
  });
}

bool IsElementType(DLDataType got, ElementType want) {
  const DLDataType exact = want == ElementType::kBFloat16
                               ? DLDataType{kDLBfloat, 16, 1}
                               : DLDataType{kDLFloat, static_cast<uint8_t>(8 * SizeOf(want)), 1};
  // numpy cannot hand out bfloat16; its bits come as uint16.
  return got == exact || (want == ElementType::kBFloat16 && got == DLDataType{kDLUInt, 16, 1});
}

void* HostData(const std::string& name, const ffi::Tensor& tensor, int64_t count,
               ElementType dtype) {
  if (tensor.device().device_type != kDLCPU) {
    TVM_FFI_THROW(ValueError) << name << " must be on the CPU, got device type "
                              << static_cast<int>(tensor.device().device_type);
  }
  if (!IsElementType(tensor.dtype(), dtype)) {
    TVM_FFI_THROW(TypeError) << name << " must be of " << NameOf(dtype) << ", got "
                             << ffi::DLDataTypeToString(tensor.dtype());
  }
  if (tensor.numel() != count) {
    TVM_FFI_THROW(ValueError) << name << " must have " << count << " elements, got "
                              << tensor.numel();
  }
  if (!tensor.IsContiguous()) TVM_FFI_THROW(ValueError) << name << " must be contiguous";
  return static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset();
}

void* BucketData(const BucketSpec& spec, const ffi::Tensor& bucket) {
  return HostData("the bucket", bucket, spec.count, spec.dtype);
}

/*! \brief Pointers of one array for each tensor of the spec, of its dtype or as a state of it. */
std::vector<void*> HostPointers(const BucketSpec& spec, const std::string& name,
                                const Tensors& tensors, bool is_state) {
  if (tensors.size() != spec.tensors.size()) {
    TVM_FFI_THROW(ValueError) << "there must be one of " << name << " for each of the "
                              << spec.tensors.size() << " tensors of the bucket, got "
                              << tensors.size();
  }
  std::vector<void*> pointers;
  pointers.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const BucketTensor& tensor = spec.tensors[i];
    pointers.push_back(HostData(name + "[" + std::to_string(i) + "]", tensors[i], tensor.count,
                                is_state ? UpdateType(tensor) : tensor.dtype));
  }
  return pointers;
}

void Pack(BucketSpecRef handle, Tensors tensors, ffi::Tensor bucket) {
  const BucketSpec& spec = handle->spec;
  const std::vector<void*> pointers = HostPointers(spec, "tensors", tensors, false);
  PackBucket(SelectBucketLoops(), spec, pointers.data(), BucketData(spec, bucket));
}

void Unpack(BucketSpecRef handle, ffi::Tensor bucket, Tensors tensors) {
  const BucketSpec& spec = handle->spec;
  if (spec.update.kind != UpdateRule::Kind::kNone) {
    TVM_FFI_THROW(ValueError) << "the bucket '" << spec.name
                              << "' has an update rule: unpack it by unpack_update()";
  }
  const std::vector<void*> pointers = HostPointers(spec, "tensors", tensors, false);
  UnpackBucket(SelectBucketLoops(), spec, BucketData(spec, bucket), pointers.data());
}

void Update(BucketSpecRef handle, ffi::Tensor bucket, Tensors parameters,
            ffi::Array<Tensors> states, ffi::Array<double> scalars) {
  const BucketSpec& spec = handle->spec;
  if (spec.update.kind == UpdateRule::Kind::kNone) {
    TVM_FFI_THROW(ValueError) << "the bucket '" << spec.name
                              << "' has no update rule: unpack it by unpack()";
  }
  const std::vector<std::string> names = StateNames(spec.update);
  if (states.size() != names.size() || scalars.size() != ScalarNames(spec.update).size()) {
    TVM_FFI_THROW(ValueError) << "the update takes " << names.size() << " states and "
                              << ScalarNames(spec.update).size() << " scalars, got "
                              << states.size() << " and " << scalars.size();
  }
  const std::vector<void*> pointers = HostPointers(spec, "parameters", parameters, false);
  std::vector<std::vector<void*>> owned;
  for (size_t i = 0; i < names.size(); ++i) {
    owned.push_back(HostPointers(spec, names[i], states[i], true));
  }
  std::vector<void* const*> arrays;
  for (const auto& array : owned) arrays.push_back(array.data());
  const std::vector<double> values(scalars.begin(), scalars.end());
  UpdateFromBucket(SelectBucketLoops(), spec, BucketData(spec, bucket), pointers.data(), arrays,
                   values.data());
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::ObjectDef<BucketSpecObj>();
  refl::GlobalDef()
      .def("disco_fuse.kernels.bucket_spec", MakeSpec)
      .def("disco_fuse.kernels.bucket_cuda_source", MakeSource<GenerateBucketCuda>)
      .def("disco_fuse.kernels.bucket_c_source", MakeSource<GenerateBucketC>)
      .def("disco_fuse.kernels.bucket_state_names",
           [](BucketSpecRef spec) { return ToStrings(StateNames(spec->spec.update)); })
      .def("disco_fuse.kernels.bucket_scalar_names",
           [](BucketSpecRef spec) { return ToStrings(ScalarNames(spec->spec.update)); })
      .def("disco_fuse.kernels.bucket_step_scalars", Scalars)
      .def("disco_fuse.kernels.bucket_pack", Pack)
      .def("disco_fuse.kernels.bucket_unpack", Unpack)
      .def("disco_fuse.kernels.bucket_update", Update);
}

}  // namespace disco_fuse
