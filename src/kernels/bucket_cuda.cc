#include "kernels/bucket_cuda.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "kernels/bucket_cuda_prelude.h"
#include "kernels/bucket_text.h"

namespace disco_fuse {
namespace {

using Passing = GeneratedEntry::Passing;

constexpr int64_t kThreads = 256;
// 256 threads with 4 accesses of 16 bytes: 16 KiB a block, enough loads under way to hide memory
// latency and small enough for tensors of a few thousand elements.
constexpr int64_t kItems = 4;
constexpr int64_t kWidestAccessBytes = 16;
constexpr int64_t kMaxArgumentBytes = 4096;
// Of the 64 KiB of constant memory; the rest is left to the compiler's own constants.
constexpr int64_t kMaxConstantBytes = 60 * 1024;

// In the order of ElementType: the prelude's names.
constexpr const char* kTypeNames[kNumElementTypes] = {"float", "double", "Float16", "BFloat16"};

const char* TypeName(ElementType type) { return kTypeNames[static_cast<int>(type)]; }

/*! \brief A tensor in the table. */
struct Row {
  int64_t first_block;
  size_t tensor;
};

/*! \brief Tensors that share code: consecutive rows and blocks. */
struct AccessClass {
  ElementType dtype;
  int64_t width;
  int64_t end_block;
};

struct Layout {
  std::vector<Row> rows;
  std::vector<AccessClass> classes;
  int64_t num_blocks = 0;
};

/*! \brief Elements of one access to a tensor, its states and the bucket. */
int64_t AccessWidth(const BucketSpec& spec, const BucketTensor& tensor) {
  int64_t widest = std::max(SizeOf(spec.dtype), SizeOf(tensor.dtype));
  if (!StateNames(spec.update).empty()) widest = std::max(widest, SizeOf(UpdateType(tensor)));
  int64_t width = kWidestAccessBytes / widest;
  const auto is_aligned = [&](int64_t elements) {
    return tensor.offset % elements == 0 && elements * widest <= spec.alignment_bytes;
  };
  while (width > 1 && !is_aligned(width)) width /= 2;
  return width;
}

Layout MakeLayout(const BucketSpec& spec) {
  std::map<std::pair<ElementType, int64_t>, std::vector<size_t>> classes;
  for (size_t i = 0; i < spec.tensors.size(); ++i) {
    const BucketTensor& tensor = spec.tensors[i];
    if (tensor.count > 0) classes[{tensor.dtype, AccessWidth(spec, tensor)}].push_back(i);
  }
  Layout layout;
  for (const auto& [key, members] : classes) {
    const int64_t tile = kThreads * kItems * key.second;
    for (size_t i : members) {
      layout.rows.push_back({layout.num_blocks, i});
      layout.num_blocks += (spec.tensors[i].count + tile - 1) / tile;
    }
    layout.classes.push_back({key.first, key.second, layout.num_blocks});
  }
  return layout;
}

bool NeedsWideCounts(const BucketSpec& spec) {
  // A tile may reach past the end of its tensor, so leave room for one.
  return spec.count > std::numeric_limits<uint32_t>::max() - kThreads * kItems * 8;
}

/*! \brief The table and the search for a block's row. */
std::string TableText(const BucketSpec& spec, const Layout& layout) {
  const int64_t num_rows = static_cast<int64_t>(layout.rows.size());
  const int64_t row_bytes = NeedsWideCounts(spec) ? 24 : 16;
  int64_t largest_step = 1;
  while (largest_step * 2 < num_rows) largest_step *= 2;
  std::string text = Substitute(
      R"CUDA(
struct Row { unsigned int first_block, tensor; Size offset, count; };
@memory@ const Row kRows[@rows@] = {
)CUDA",
      {{"memory", num_rows * row_bytes <= kMaxConstantBytes ? "__constant__" : "__device__"},
       {"rows", std::to_string(num_rows)}});
  for (const Row& row : layout.rows) {
    const BucketTensor& tensor = spec.tensors[row.tensor];
    text += "{" + std::to_string(row.first_block) + "," + std::to_string(row.tensor) + "," +
            std::to_string(tensor.offset) + "," + std::to_string(tensor.count) + "},\n";
  }
  return text + Substitute(R"CUDA(};
__device__ __forceinline__ Row FindRow() {
  unsigned int row = 0;
#pragma unroll
  for (unsigned int step = @step@; step > 0; step /= 2) {
    if (row + step < @rows@ && kRows[row + step].first_block <= blockIdx.x) row += step;
  }
  return kRows[row];
}
)CUDA",
                           {{"step", std::to_string(num_rows > 1 ? largest_step : 0)},
                            {"rows", std::to_string(num_rows)}});
}

/*! \brief The functions Update of the compute types that occur. */
std::string UpdateText(const BucketSpec& spec, const Layout& layout) {
  std::string text;
  for (ElementType type : {ElementType::kFloat32, ElementType::kFloat64}) {
    const bool occurs =
        std::any_of(layout.classes.begin(), layout.classes.end(),
                    [&](const AccessClass& one) { return UpdateType({0, one.dtype, 0}) == type; });
    if (!occurs) continue;
    text += Substitute(
        R"CUDA(
__device__ __forceinline__ void Update(@c@ g, @c@& p, @c@& s0, @c@& s1, const @c@* k) {
@statements@}
)CUDA",
        {{"c", CTypeOf(type)}, {"statements", UpdateStatements(spec.update, type, "  ")}});
  }
  return text;
}

/*! \brief One call for every class, chosen by the number of the block. */
template <typename Call>
std::string ClassCalls(const Layout& layout, Call call) {
  std::string text;
  for (size_t i = 0; i < layout.classes.size(); ++i) {
    const AccessClass& one = layout.classes[i];
    const bool is_last = i + 1 == layout.classes.size();
    const std::string condition =
        is_last ? "{" : "if (blockIdx.x < " + std::to_string(one.end_block) + "u) {";
    text += (i == 0 ? "  " : " else ") + condition + "\n";
    text += "    const Size begin = static_cast<Size>(blockIdx.x - row.first_block) * " +
            std::to_string(kThreads * kItems * one.width) + ";\n";
    text += call(one) + "  }";
  }
  return text + "\n";
}

/*! \brief The parameter list of an entry. */
std::string Parameters(const GeneratedEntry& entry, const char* bucket_type) {
  std::string text;
  for (const GeneratedEntry::Argument& argument : entry.arguments) {
    std::string type;
    if (argument.name == "scalars") {
      type = "const double* __restrict__ ";
    } else if (argument.passing == Passing::kPointer) {
      type = std::string(bucket_type) + "* __restrict__ ";
    } else if (argument.passing == Passing::kPointerStruct) {
      // Without __grid_constant__ an index that is no constant copies the struct to local memory.
      type = "const __grid_constant__ Pointers ";
    } else {
      type = "void* const* __restrict__ ";
    }
    text += (text.empty() ? "" : ", ") + type + argument.name;
  }
  return text;
}

class CudaWriter {
 public:
  CudaWriter(const BucketSpec& spec, Passing passing)
      : spec_(spec), passing_(passing), layout_(MakeLayout(spec)) {}

  GeneratedSource Write() {
    GeneratedSource source;
    source.pack = PackEntry(spec_, passing_);
    source.unpack = UnpackEntry(spec_, passing_);
    for (GeneratedEntry* entry : {&source.pack, &source.unpack}) {
      entry->num_blocks = std::max<int64_t>(layout_.num_blocks, 1);
      entry->threads_per_block = kThreads;
    }
    source.code = Head();
    if (!layout_.rows.empty()) source.code += TableText(spec_, layout_);
    const std::string bucket = TypeName(spec_.dtype);
    source.code += Kernel(source.pack, bucket.c_str(), PackCalls());
    source.code += Kernel(source.unpack, ("const " + bucket).c_str(), UnpackCalls());
    source.code += "\n}  // namespace disco_fuse_" + spec_.name + "\n";
    return source;
  }

 private:
  std::string Head() const {
    std::string text = "// Bucket of " + std::to_string(spec_.tensors.size()) + " tensors in " +
                       std::to_string(spec_.count) + " elements of " + NameOf(spec_.dtype) +
                       ".\nnamespace disco_fuse_" + spec_.name + " {\n";
    // Before the prelude, whose templates find no function of plain numbers behind them.
    if (spec_.update.kind != UpdateRule::Kind::kNone) text += UpdateText(spec_, layout_);
    text += Substitute(kBucketCudaPrelude,
                       {{"size", NeedsWideCounts(spec_) ? "unsigned long long" : "unsigned int"},
                        {"threads", std::to_string(kThreads)},
                        {"items", std::to_string(kItems)}});
    if (passing_ == Passing::kPointerStruct) {
      text +=
          "\nstruct Pointers { void* pointers[" + std::to_string(spec_.tensors.size()) + "]; };\n";
    }
    return text;
  }

  /*! \brief The pointer of the row's tensor in argument `name`. */
  std::string Pointer(const std::string& name, const std::string& type) const {
    const std::string array = passing_ == Passing::kPointerStruct ? name + ".pointers" : name;
    return "static_cast<" + type + "*>(" + array + "[row.tensor])";
  }

  std::string Kernel(const GeneratedEntry& entry, const char* bucket_type,
                     const std::string& calls) const {
    std::string text = "\nextern \"C\" __global__ void __launch_bounds__(" +
                       std::to_string(kThreads) + ")\n" + entry.name + "(" +
                       Parameters(entry, bucket_type) + ") {\n";
    if (!layout_.rows.empty()) text += "  const Row row = FindRow();\n" + calls;
    return text + "}\n";
  }

  std::string PackCalls() const {
    return ClassCalls(layout_, [&](const AccessClass& one) {
      const ElementType compute = PackType(spec_, {0, one.dtype, 0});
      const bool is_scaled = spec_.scale != 1.0;
      return "    ConvertTile<" + std::string(CTypeOf(compute)) + ", " + std::to_string(one.width) +
             ", " + (is_scaled ? "true" : "false") + ">(" +
             Pointer("tensors", std::string("const ") + TypeName(one.dtype)) +
             ", bucket + row.offset, row.count, begin, " + LiteralText(spec_.scale, compute) +
             ");\n";
    });
  }

  std::string UnpackCalls() const {
    if (spec_.update.kind != UpdateRule::Kind::kNone) return UpdateCalls();
    return ClassCalls(layout_, [&](const AccessClass& one) {
      const ElementType compute = PackType(spec_, {0, one.dtype, 0});
      return "    ConvertTile<" + std::string(CTypeOf(compute)) + ", " + std::to_string(one.width) +
             ", false>(bucket + row.offset, " + Pointer("tensors", TypeName(one.dtype)) +
             ", row.count, begin, " + LiteralText(1.0, compute) + ");\n";
    });
  }

  std::string UpdateCalls() const {
    const std::vector<std::string> states = StateNames(spec_.update);
    const std::string num_scalars = std::to_string(ScalarNames(spec_.update).size());
    return ClassCalls(layout_, [&](const AccessClass& one) {
      const std::string compute = CTypeOf(UpdateType({0, one.dtype, 0}));
      std::string text = "    UpdateTile<" + compute + ", " + std::to_string(one.width) + ", " +
                         std::to_string(states.size()) + ", " + num_scalars +
                         ">(bucket + row.offset, " + Pointer("parameters", TypeName(one.dtype));
      for (size_t i = 0; i < 2; ++i) {
        text += ", " + (i < states.size() ? Pointer(states[i], compute)
                                          : "static_cast<" + compute + "*>(nullptr)");
      }
      return text + ", scalars, row.count, begin);\n";
    });
  }

  const BucketSpec& spec_;
  Passing passing_;
  Layout layout_;
};

}  // namespace

GeneratedSource GenerateBucketCuda(const BucketSpec& spec) {
  CheckBucketSpec(spec);
  const int64_t num_arrays = 1 + static_cast<int64_t>(StateNames(spec.update).size());
  const int64_t num_tensors = static_cast<int64_t>(spec.tensors.size());
  const int64_t bytes = 8 * num_arrays * num_tensors + 16;  // and the bucket and the scalars
  const Passing passing =
      bytes <= kMaxArgumentBytes ? Passing::kPointerStruct : Passing::kPointerArray;
  return CudaWriter(spec, passing).Write();
}

}  // namespace disco_fuse
