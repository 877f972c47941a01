#include "kernels/bucket_spec.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "kernels/bucket_text.h"

namespace disco_fuse {
namespace {

struct TypeFacts {
  const char* name;
  int64_t num_bytes;
};
// In the order of ElementType.
constexpr TypeFacts kTypes[kNumElementTypes] = {
    {"float32", 4}, {"float64", 8}, {"float16", 2}, {"bfloat16", 2}};

// Factors are rounded to float32, where larger ones would be infinite and smaller scales zero.
constexpr double kLargestFactor = 1e30;

[[noreturn]] void Fail(const BucketSpec& spec, const std::string& reason) {
  throw std::invalid_argument("bucket '" + spec.name + "': " + reason);
}

bool IsIdentifier(const std::string& name) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  const auto is_letter_or_digit = [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); };
  return !name.empty() && is_letter(name[0]) &&
         std::all_of(name.begin(), name.end(), is_letter_or_digit);
}

void CheckPlaces(const BucketSpec& spec) {
  std::vector<size_t> order;
  for (size_t i = 0; i < spec.tensors.size(); ++i) {
    const BucketTensor& tensor = spec.tensors[i];
    const std::string which = "tensor " + std::to_string(i);
    if (tensor.count < 0) {
      Fail(spec, which + " has " + std::to_string(tensor.count) + " elements; allowed: 0 or more");
    }
    if (tensor.offset < 0 || tensor.offset > spec.count ||
        tensor.count > spec.count - tensor.offset) {
      Fail(spec, which + " of " + std::to_string(tensor.count) + " elements at offset " +
                     std::to_string(tensor.offset) + " does not fit into the bucket's " +
                     std::to_string(spec.count) + " elements");
    }
    if (tensor.count > 0) order.push_back(i);
  }
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return spec.tensors[a].offset < spec.tensors[b].offset; });
  for (size_t k = 1; k < order.size(); ++k) {
    const BucketTensor& before = spec.tensors[order[k - 1]];
    if (before.offset + before.count > spec.tensors[order[k]].offset) {
      Fail(spec, "tensors " + std::to_string(order[k - 1]) + " and " + std::to_string(order[k]) +
                     " overlap in the bucket");
    }
  }
}

void CheckUpdate(const BucketSpec& spec) {
  const UpdateRule& rule = spec.update;
  const auto require_not_negative = [&](const char* name, double value) {
    if (value >= 0.0 && value <= kLargestFactor) return;
    Fail(spec, std::string(name) + " must be from 0 to 1e30, got " + NumberText(value));
  };
  const auto require_decay = [&](const char* name, double value) {
    if (value >= 0.0 && value < 1.0) return;
    Fail(spec, std::string(name) + " must be from 0 to below 1, got " + NumberText(value));
  };
  require_not_negative("momentum", rule.momentum);
  require_not_negative("weight_decay", rule.weight_decay);
  require_not_negative("eps", rule.eps);
  require_decay("beta1", rule.beta1);
  require_decay("beta2", rule.beta2);
  if (rule.nesterov && rule.momentum == 0.0) Fail(spec, "nesterov needs momentum > 0, got 0");
  if (rule.kind != UpdateRule::Kind::kSgd && rule.momentum != 0.0) {
    Fail(spec, "momentum belongs to the update rule sgd only, got " + NumberText(rule.momentum));
  }
  if (rule.kind == UpdateRule::Kind::kNone && rule.weight_decay != 0.0) {
    Fail(spec, "weight_decay needs an update rule, got " + NumberText(rule.weight_decay));
  }
}

}  // namespace

int64_t SizeOf(ElementType type) { return kTypes[static_cast<int>(type)].num_bytes; }

const char* NameOf(ElementType type) { return kTypes[static_cast<int>(type)].name; }

ElementType ParseElementType(const std::string& name) {
  for (int i = 0; i < kNumElementTypes; ++i) {
    if (name == kTypes[i].name) return static_cast<ElementType>(i);
  }
  throw std::invalid_argument("no tensor of a bucket can be of dtype '" + name +
                              "'; allowed: float32, float64, float16, bfloat16");
}

UpdateRule::Kind ParseUpdateKind(const std::string& name) {
  if (name == "none") return UpdateRule::Kind::kNone;
  if (name == "sgd") return UpdateRule::Kind::kSgd;
  if (name == "adam") return UpdateRule::Kind::kAdam;
  if (name == "adamw") return UpdateRule::Kind::kAdamW;
  throw std::invalid_argument("there is no update rule '" + name +
                              "'; allowed: none, sgd, adam, adamw");
}

std::vector<std::string> StateNames(const UpdateRule& rule) {
  if (rule.kind == UpdateRule::Kind::kNone) return {};
  if (rule.kind != UpdateRule::Kind::kSgd) return {"exp_avg", "exp_avg_sq"};
  if (rule.momentum == 0.0) return {};
  return {"momentum_buffer"};
}

std::vector<std::string> ScalarNames(const UpdateRule& rule) {
  switch (rule.kind) {
    case UpdateRule::Kind::kNone:
      return {};
    case UpdateRule::Kind::kSgd:
      return {"learning_rate"};
    case UpdateRule::Kind::kAdam:
      return {"step_size", "root"};
    case UpdateRule::Kind::kAdamW:
      return {"step_size", "root", "kept"};
  }
  throw std::logic_error("an update rule of no kind");
}

std::vector<double> StepScalars(const UpdateRule& rule, double learning_rate, int64_t step) {
  if (!std::isfinite(learning_rate) || learning_rate < 0.0) {
    throw std::invalid_argument("learning_rate must be a finite number >= 0, got " +
                                NumberText(learning_rate));
  }
  if (step < 1) {
    throw std::invalid_argument("step must be at least 1, got " + std::to_string(step));
  }
  if (rule.kind == UpdateRule::Kind::kNone) return {};
  if (rule.kind == UpdateRule::Kind::kSgd) return {learning_rate};
  const double t = static_cast<double>(step);
  std::vector<double> scalars = {learning_rate / (1.0 - std::pow(rule.beta1, t)),
                                 std::sqrt(1.0 - std::pow(rule.beta2, t))};
  if (rule.kind == UpdateRule::Kind::kAdamW) {
    scalars.push_back(1.0 - learning_rate * rule.weight_decay);
  }
  return scalars;
}

void CheckBucketSpec(const BucketSpec& spec) {
  if (!IsIdentifier(spec.name)) {
    Fail(spec, "the name must be an identifier: letters, digits and _, no digit first");
  }
  if (spec.tensors.empty()) Fail(spec, "has no tensors; at least one is needed");
  if (spec.tensors.size() > kMaxBucketTensors) {
    Fail(spec, std::to_string(spec.tensors.size()) + " tensors; allowed: at most 2^24");
  }
  if (spec.count < 0 || spec.count > kMaxBucketElements) {
    Fail(spec, "count must be 0 to 2^40 elements, got " + std::to_string(spec.count));
  }
  if (!(spec.scale >= 1.0 / kLargestFactor && spec.scale <= kLargestFactor)) {
    Fail(spec, "scale must be positive, from 1e-30 to 1e30, got " + NumberText(spec.scale));
  }
  const int64_t alignment = spec.alignment_bytes;
  if (alignment < 8 || alignment > 4096 || (alignment & (alignment - 1)) != 0) {
    Fail(spec,
         "alignment_bytes must be a power of two from 8 to 4096, got " + std::to_string(alignment));
  }
  CheckPlaces(spec);
  CheckUpdate(spec);
}

ElementType PackType(const BucketSpec& spec, const BucketTensor& tensor) {
  const bool is_double =
      spec.dtype == ElementType::kFloat64 || tensor.dtype == ElementType::kFloat64;
  return is_double ? ElementType::kFloat64 : ElementType::kFloat32;
}

ElementType UpdateType(const BucketTensor& tensor) {
  return tensor.dtype == ElementType::kFloat64 ? ElementType::kFloat64 : ElementType::kFloat32;
}

}  // namespace disco_fuse
