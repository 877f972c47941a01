#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

#include "kernels/bucket_c.h"
#include "kernels/bucket_cpu.h"
#include "kernels/bucket_cuda.h"
#include "kernels/bucket_text.h"

namespace disco_fuse {
namespace {

constexpr int64_t kCount = 66001;  // no multiple of any vector or block

/*! \brief Finite values; in 16 bits every pattern whose exponent lacks the highest bit. */
std::vector<char> Bytes(ElementType type, uint32_t seed) {
  std::vector<char> bytes(kCount * SizeOf(type));
  for (int64_t i = 0; i < kCount; ++i) {
    const float single = static_cast<float>((i * 2654435761u + seed) % 20011u) / 1000.0f - 10.0f;
    const double wide = single / 3.0;
    const uint16_t half = static_cast<uint16_t>(i + seed) & 0xbfffu;
    const void* source = &half;
    if (type == ElementType::kFloat32) source = &single;
    if (type == ElementType::kFloat64) source = &wide;
    std::memcpy(&bytes[i * SizeOf(type)], source, SizeOf(type));
  }
  return bytes;
}

/*! \brief Loops of another instruction set than the baseline, null where there are none. */
const BucketLoops* OtherLoops() {
  const BucketLoops* selected = &SelectBucketLoops();
  return selected == &BaselineBucketLoops() ? nullptr : selected;
}

TEST(BucketLoops, EveryInstructionSetConvertsToTheSameBits) {
  if (OtherLoops() == nullptr) GTEST_SKIP() << "needs a processor with AVX2 and F16C";
  for (int from = 0; from < kNumElementTypes; ++from) {
    for (int to = 0; to < kNumElementTypes; ++to) {
      const std::vector<char> source = Bytes(static_cast<ElementType>(from), 1);
      std::vector<char> one(kCount * SizeOf(static_cast<ElementType>(to))), other(one);
      BaselineBucketLoops().convert[from][to](source.data(), one.data(), kCount, 1.0 / 3);
      OtherLoops()->convert[from][to](source.data(), other.data(), kCount, 1.0 / 3);
      EXPECT_EQ(one, other) << "from " << from << " to " << to;
    }
  }
}

TEST(BucketLoops, EveryInstructionSetUpdatesToTheSameBits) {
  if (OtherLoops() == nullptr) GTEST_SKIP() << "needs a processor with AVX2 and F16C";
  const std::vector<double> scalars = {0.1, 0.7, 0.99};
  std::vector<UpdateRule> rules(5);
  rules[0].kind = rules[1].kind = rules[2].kind = UpdateRule::Kind::kSgd;
  rules[1].momentum = rules[2].momentum = 0.9;
  rules[2].nesterov = true;
  rules[3].kind = UpdateRule::Kind::kAdam;
  rules[4].kind = UpdateRule::Kind::kAdamW;
  for (UpdateRule& rule : rules) rule.weight_decay = 0.1;
  for (ElementType type : {ElementType::kFloat32, ElementType::kFloat64}) {
    for (const UpdateRule& rule : rules) {
      const std::vector<char> gradients = Bytes(type, 1);
      std::vector<std::vector<char>> results;
      for (const BucketLoops* loops : {&BaselineBucketLoops(), OtherLoops()}) {
        std::vector<char> p = Bytes(type, 2), s0 = Bytes(type, 3), s1(gradients.size());
        const UpdateLoop update =
            type == ElementType::kFloat64 ? loops->update_double : loops->update_float;
        update(rule, scalars.data(), gradients.data(), p.data(), s0.data(), s1.data(), kCount);
        p.insert(p.end(), s0.begin(), s0.end());
        p.insert(p.end(), s1.begin(), s1.end());
        results.push_back(p);
      }
      EXPECT_EQ(results[0], results[1]) << "rule " << static_cast<int>(rule.kind);
    }
  }
}

TEST(BucketLoops, BaselineKeepsInfinityAndNaN) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> source = {inf, -inf, std::nanf(""), 1e30f};
  for (ElementType half : {ElementType::kFloat16, ElementType::kBFloat16}) {
    std::vector<uint16_t> bits(4);
    std::vector<float> back(4);
    const int h = static_cast<int>(half);
    BaselineBucketLoops().convert[0][h](source.data(), bits.data(), 4, 1.0);
    BaselineBucketLoops().convert[h][0](bits.data(), back.data(), 4, 1.0);
    EXPECT_EQ(back[0], inf);
    EXPECT_EQ(back[1], -inf);
    EXPECT_TRUE(std::isnan(back[2]));
    EXPECT_EQ(std::isinf(back[3]), half == ElementType::kFloat16);
  }
}

TEST(BucketText, LiteralsReadBackAsTheSameNumber) {
  EXPECT_EQ(LiteralText(1.0, ElementType::kFloat32), "1.0f");
  EXPECT_EQ(LiteralText(1e-8, ElementType::kFloat32), "1e-08f");
  EXPECT_EQ(LiteralText(1.0 - 0.9, ElementType::kFloat32), "0.1f");
  EXPECT_EQ(LiteralText(1.0 - 0.9, ElementType::kFloat64), "0.09999999999999998");
}

BucketSpec OneTensor() {
  BucketSpec spec;
  spec.tensors = {{5, ElementType::kFloat32, 0}};
  spec.count = 5;
  return spec;
}

TEST(BucketSpec, GeneratorsRefuseASpecThatWasNotChecked) {
  BucketSpec spec = OneTensor();
  spec.count = 4;
  EXPECT_THROW(GenerateBucketC(spec), std::invalid_argument);
  EXPECT_THROW(GenerateBucketCuda(spec), std::invalid_argument);
}

TEST(BucketSpec, SpecsAreValues) {
  BucketSpec spec = OneTensor();
  EXPECT_TRUE(spec == OneTensor());
  spec.update.kind = UpdateRule::Kind::kAdam;
  EXPECT_FALSE(spec == OneTensor());
}

}  // namespace
}  // namespace disco_fuse
