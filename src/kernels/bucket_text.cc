#include "kernels/bucket_text.h"

#include <charconv>

namespace disco_fuse {
namespace {

template <typename T>
std::string Shortest(T value) {
  char digits[64];
  const auto result = std::to_chars(digits, digits + sizeof(digits), value);
  return std::string(digits, result.ptr);
}

/*! \brief The statements of one update, written with literals of one type. */
class UpdateWriter {
 public:
  UpdateWriter(const UpdateRule& rule, ElementType type, const std::string& indent)
      : rule_(rule), type_(type), indent_(indent) {}

  std::string Write() {
    if (rule_.kind == UpdateRule::Kind::kSgd) {
      WriteSgd();
    } else {
      WriteAdam();
    }
    return text_;
  }

 private:
  std::string Literal(double value) const { return LiteralText(value, type_); }
  void Line(const std::string& statement) { text_ += indent_ + statement + "\n"; }

  void DecayIntoGradient() {
    if (rule_.weight_decay != 0.0) Line("g = g + p * " + Literal(rule_.weight_decay) + ";");
  }

  void WriteSgd() {
    DecayIntoGradient();
    if (rule_.momentum != 0.0) {
      const std::string momentum = Literal(rule_.momentum);
      Line("s0 = s0 * " + momentum + " + g;");
      Line(rule_.nesterov ? "g = g + s0 * " + momentum + ";" : "g = s0;");
    }
    Line("p = p - g * k[0];");
  }

  void WriteAdam() {
    const bool is_decoupled = rule_.kind == UpdateRule::Kind::kAdamW;
    if (!is_decoupled) DecayIntoGradient();
    if (is_decoupled && rule_.weight_decay != 0.0) Line("p = p * k[2];");
    const char* root = type_ == ElementType::kFloat64 ? "sqrt" : "sqrtf";
    Line("s0 = s0 * " + Literal(rule_.beta1) + " + g * " + Literal(1.0 - rule_.beta1) + ";");
    Line("s1 = s1 * " + Literal(rule_.beta2) + " + g * g * " + Literal(1.0 - rule_.beta2) + ";");
    Line("p = p - s0 / (" + std::string(root) + "(s1) / k[1] + " + Literal(rule_.eps) +
         ") * k[0];");
  }

  const UpdateRule& rule_;
  ElementType type_;
  std::string indent_;
  std::string text_;
};

}  // namespace

std::string NumberText(double value) { return Shortest(value); }

std::string LiteralText(double value, ElementType type) {
  const bool is_double = type == ElementType::kFloat64;
  std::string digits = is_double ? Shortest(value) : Shortest(static_cast<float>(value));
  if (digits.find_first_of(".e") == std::string::npos) digits += ".0";
  return is_double ? digits : digits + "f";
}

const char* CTypeOf(ElementType type) { return type == ElementType::kFloat64 ? "double" : "float"; }

std::string UpdateStatements(const UpdateRule& rule, ElementType type, const std::string& indent) {
  return UpdateWriter(rule, type, indent).Write();
}

GeneratedEntry PackEntry(const BucketSpec& spec, GeneratedEntry::Passing passing) {
  GeneratedEntry entry;
  entry.name = spec.name + "_pack";
  entry.arguments = {{"tensors", passing}, {"bucket", GeneratedEntry::Passing::kPointer}};
  return entry;
}

GeneratedEntry UnpackEntry(const BucketSpec& spec, GeneratedEntry::Passing passing) {
  GeneratedEntry entry;
  entry.name = spec.name + "_unpack";
  entry.arguments.push_back({"bucket", GeneratedEntry::Passing::kPointer});
  if (spec.update.kind == UpdateRule::Kind::kNone) {
    entry.arguments.push_back({"tensors", passing});
    return entry;
  }
  entry.arguments.push_back({"parameters", passing});
  for (const std::string& state : StateNames(spec.update)) {
    entry.arguments.push_back({state, passing});
  }
  entry.arguments.push_back({"scalars", GeneratedEntry::Passing::kPointer});
  return entry;
}

std::string Substitute(std::string text,
                       const std::vector<std::pair<std::string, std::string>>& values) {
  for (const auto& [key, value] : values) {
    const std::string mark = "@" + key + "@";
    for (size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at)) {
      text.replace(at, mark.size(), value);
      at += value.size();
    }
  }
  return text;
}

}  // namespace disco_fuse
