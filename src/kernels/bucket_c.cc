#include "kernels/bucket_c.h"

#include <array>

#include "kernels/bucket_text.h"

namespace disco_fuse {
namespace {

using Passing = GeneratedEntry::Passing;

// Straight calls up to here; a table is shorter and no slower for more, smaller tensors.
constexpr size_t kMaxStraightCalls = 64;

// 16-bit conversions to nearest, ties to even, without branches. Float16 to float: the exponent is
// moved by a multiplication, which also makes subnormals normal. Float to float16: below 2^-14 the
// addition of 0.5, whose last bit is 2^-24, rounds to a subnormal; from 65520 on it is infinity.
constexpr char kPrelude[] = R"C(#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
static inline uint32_t to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}
static inline float widen_float16(uint16_t half) {
  const uint32_t magnitude = half & 0x7fffu;
  const uint32_t finite = to_bits(from_bits(magnitude << 13) * 0x1p112f);
  const uint32_t special = (magnitude << 13) | 0x7f800000u;
  return from_bits((magnitude >= 0x7c00u ? special : finite) | (uint32_t)(half & 0x8000u) << 16);
}
static inline uint16_t narrow_float16(float value) {
  const uint32_t bits = to_bits(value), magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t small = to_bits(from_bits(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const uint32_t finite = magnitude < 0x38800000u ? small : normal;
  return (uint16_t)((magnitude >= 0x477ff000u ? special : finite) | (bits >> 16 & 0x8000u));
}
static inline float widen_bfloat16(uint16_t half) { return from_bits((uint32_t)half << 16); }
static inline uint16_t narrow_bfloat16(float value) {
  const uint32_t bits = to_bits(value);
  const uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1u);
  return (uint16_t)(((bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded) >> 16);
}
)C";

// In the order of ElementType: how elements lie in memory.
constexpr std::array<const char*, kNumElementTypes> kStored = {"float", "double", "uint16_t",
                                                               "uint16_t"};

std::string Stored(ElementType type) { return kStored[static_cast<int>(type)]; }

bool IsHalf(ElementType type) { return SizeOf(type) == 2; }

/*! \brief The expression `value`, an element of `type`, as a `compute`. */
std::string Widened(const std::string& value, ElementType type, ElementType compute) {
  if (IsHalf(type)) return std::string("widen_") + NameOf(type) + "(" + value + ")";
  return type == compute ? value : "(" + std::string(CTypeOf(compute)) + ")" + value;
}

/*! \brief The expression `value` as an element of `type`; 16-bit types go by way of float. */
std::string Narrowed(const std::string& value, ElementType type, ElementType compute) {
  if (IsHalf(type)) {
    const char* cast = compute == ElementType::kFloat64 ? "(float)" : "";
    return std::string("narrow_") + NameOf(type) + "(" + cast + "(" + value + "))";
  }
  return type == compute ? value : "(" + Stored(type) + ")(" + value + ")";
}

/*! \brief A loop that converts `count` elements, times `scale`. */
std::string ConvertFunction(const std::string& name, ElementType from, ElementType to,
                            ElementType compute, double scale) {
  std::string body;
  if (from == to && scale == 1.0) {
    body = "  memcpy(to, from, (size_t)count * sizeof(*to));\n";
  } else {
    std::string value = Widened("from[i]", from, compute);
    if (scale != 1.0) value += " * " + LiteralText(scale, compute);
    body = "  for (int64_t i = 0; i < count; ++i) to[i] = " + Narrowed(value, to, compute) + ";\n";
  }
  return "\nstatic void " + name + "(const " + Stored(from) + "* restrict from, " + Stored(to) +
         "* restrict to, int64_t count) {\n" + body + "}\n";
}

std::string PackFunction(const BucketSpec& spec, ElementType dtype) {
  return ConvertFunction(std::string("pack_") + NameOf(dtype), dtype, spec.dtype,
                         PackType(spec, {0, dtype, 0}), spec.scale);
}

std::string UpdateFunction(const BucketSpec& spec, ElementType dtype) {
  const ElementType compute = UpdateType({0, dtype, 0});
  const std::string c = CTypeOf(compute);
  std::string parameters, loads, stores;
  const std::vector<std::string> states = StateNames(spec.update);
  for (size_t i = 0; i < states.size(); ++i) {
    const std::string s = "s" + std::to_string(i);
    parameters += c + "* restrict " + states[i] + ", ";
    loads += "    " + c + " " + s + " = " + states[i] + "[i];\n";
    stores += "    " + states[i] + "[i] = " + s + ";\n";
  }
  std::string scalars;
  const size_t num_scalars = ScalarNames(spec.update).size();
  for (size_t i = 0; i < num_scalars; ++i) {
    scalars += (i == 0 ? "" : ", ") + ("(" + c + ")scalars[" + std::to_string(i)) + "]";
  }
  return Substitute(R"C(
static void unpack_@dtype@(const @bucket@* restrict gradients, @stored@* restrict parameters,
    @states@const double* restrict scalars, int64_t count) {
  const @c@ k[] = {@scalars@};
  for (int64_t i = 0; i < count; ++i) {
    @c@ g = @gradient@;
    @c@ p = @parameter@;
@loads@@statements@    parameters[i] = @result@;
@stores@  }
}
)C",
                    {{"dtype", NameOf(dtype)},
                     {"bucket", Stored(spec.dtype)},
                     {"stored", Stored(dtype)},
                     {"states", parameters},
                     {"c", c},
                     {"scalars", scalars},
                     {"gradient", Widened("gradients[i]", spec.dtype, compute)},
                     {"parameter", Widened("parameters[i]", dtype, compute)},
                     {"loads", loads},
                     {"statements", UpdateStatements(spec.update, compute, "    ")},
                     {"result", Narrowed("p", dtype, compute)},
                     {"stores", stores}});
}

std::string UnpackFunction(const BucketSpec& spec, ElementType dtype) {
  if (spec.update.kind != UpdateRule::Kind::kNone) return UpdateFunction(spec, dtype);
  return ConvertFunction(std::string("unpack_") + NameOf(dtype), spec.dtype, dtype,
                         PackType(spec, {0, dtype, 0}), 1.0);
}

/*! \brief Where a tensor lies, as C expressions. */
struct Place {
  std::string tensor;
  std::string offset;
  std::string count;
};

/*! \brief Indices of the tensors of each dtype that have elements. */
using Members = std::array<std::vector<size_t>, kNumElementTypes>;

/*! \brief The call of `call` for every tensor: in a row, or in one loop a dtype over its table. */
template <typename Call>
std::string Calls(const BucketSpec& spec, const Members& members, Call call) {
  std::string text;
  for (int t = 0; t < kNumElementTypes; ++t) {
    const ElementType dtype = static_cast<ElementType>(t);
    if (spec.tensors.size() > kMaxStraightCalls) {
      if (members[t].empty()) continue;
      text += "  for (int64_t r = 0; r < " + std::to_string(members[t].size()) + "; ++r) {\n";
      text += "    const int64_t* row = rows_" + std::string(NameOf(dtype)) + "[r];\n";
      text += "    " + call(dtype, Place{"row[0]", "row[1]", "row[2]"}) + "  }\n";
      continue;
    }
    for (size_t i : members[t]) {
      const BucketTensor& tensor = spec.tensors[i];
      text += "  " + call(dtype, Place{std::to_string(i), std::to_string(tensor.offset),
                                       std::to_string(tensor.count)});
    }
  }
  return text;
}

std::string Tables(const BucketSpec& spec, const Members& members) {
  if (spec.tensors.size() <= kMaxStraightCalls) return {};
  std::string text = "\n// Tensor, offset, count.\n";
  for (int t = 0; t < kNumElementTypes; ++t) {
    if (members[t].empty()) continue;
    text += "static const int64_t rows_" + std::string(NameOf(static_cast<ElementType>(t))) +
            "[][3] = {\n";
    for (size_t i : members[t]) {
      text += "{" + std::to_string(i) + "," + std::to_string(spec.tensors[i].offset) + "," +
              std::to_string(spec.tensors[i].count) + "},\n";
    }
    text += "};\n";
  }
  return text;
}

std::string PackText(const BucketSpec& spec, const Members& members, const std::string& name) {
  const auto call = [&](ElementType dtype, const Place& place) {
    return std::string("pack_") + NameOf(dtype) + "(tensors[" + place.tensor + "], (" +
           Stored(spec.dtype) + "*)bucket + " + place.offset + ", " + place.count + ");\n";
  };
  return "\nvoid " + name + "(void* const* tensors, void* bucket) {\n" +
         Calls(spec, members, call) + "}\n";
}

std::string UnpackText(const BucketSpec& spec, const Members& members,
                       const GeneratedEntry& entry) {
  const auto call = [&](ElementType dtype, const Place& place) {
    std::string text = std::string("unpack_") + NameOf(dtype) + "((const " + Stored(spec.dtype) +
                       "*)bucket + " + place.offset;
    for (const GeneratedEntry::Argument& argument : entry.arguments) {
      if (argument.passing != Passing::kPointerArray) continue;
      text += ", " + argument.name + "[" + place.tensor + "]";
    }
    if (entry.arguments.back().name == "scalars") text += ", scalars";
    return text + ", " + place.count + ");\n";
  };
  std::string parameters = "const void* bucket";
  for (const GeneratedEntry::Argument& argument : entry.arguments) {
    if (argument.passing == Passing::kPointerArray) {
      parameters += ", void* const* " + argument.name;
    } else if (argument.name == "scalars") {
      parameters += ", const double* scalars";
    }
  }
  return "\nvoid " + entry.name + "(" + parameters + ") {\n" + Calls(spec, members, call) + "}\n";
}

}  // namespace

GeneratedSource GenerateBucketC(const BucketSpec& spec) {
  CheckBucketSpec(spec);
  Members members;
  for (size_t i = 0; i < spec.tensors.size(); ++i) {
    const BucketTensor& tensor = spec.tensors[i];
    if (tensor.count > 0) members[static_cast<int>(tensor.dtype)].push_back(i);
  }
  GeneratedSource source;
  source.pack = PackEntry(spec, Passing::kPointerArray);
  source.unpack = UnpackEntry(spec, Passing::kPointerArray);
  source.code = "// Bucket of " + std::to_string(spec.tensors.size()) + " tensors in " +
                std::to_string(spec.count) + " elements of " + NameOf(spec.dtype) + ".\n" +
                kPrelude;
  for (int t = 0; t < kNumElementTypes; ++t) {
    if (members[t].empty()) continue;
    const ElementType dtype = static_cast<ElementType>(t);
    source.code += PackFunction(spec, dtype) + UnpackFunction(spec, dtype);
  }
  source.code += Tables(spec, members);
  source.code += PackText(spec, members, source.pack.name);
  source.code += UnpackText(spec, members, source.unpack);
  return source;
}

}  // namespace disco_fuse
