#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "runtime/reduce.h"

namespace disco_fuse::runtime {
namespace {

/*! \brief The value that IEEE 754 gives to binary16 bits, spelled out. */
float HalfByDefinition(uint16_t bits) {
  const float sign = (bits & 0x8000U) != 0 ? -1.0F : 1.0F;
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  if (exponent == 31) {
    return fraction == 0 ? sign * std::numeric_limits<float>::infinity()
                         : std::numeric_limits<float>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}

TEST(ReduceTest, EveryHalfHasItsValueAndComesBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float expected = HalfByDefinition(half);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(HalfToFloat(half))) << bits;
      EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(expected)))) << bits;
      continue;
    }
    ASSERT_EQ(HalfToFloat(half), expected) << bits;
    ASSERT_EQ(FloatToHalf(expected), half) << bits;
  }
}

TEST(ReduceTest, BetweenTwoHalvesTheNearestIsTakenAndOfTwoTheEven) {
  for (uint16_t half = 0; half < 0x7BFF; ++half) {  // to the largest finite one
    const float low = HalfByDefinition(half);
    const float high = HalfByDefinition(half + 1);
    const float middle = (low + high) / 2;  // exact in binary32
    const uint16_t even = half % 2 == 0 ? half : half + 1;
    ASSERT_EQ(FloatToHalf(middle), even) << half;
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, low)), half);
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, high)), half + 1);
  }
  EXPECT_EQ(FloatToHalf(65519.0F), 0x7BFF);
  EXPECT_EQ(FloatToHalf(65520.0F), 0x7C00);
  EXPECT_EQ(FloatToHalf(-1e10F), 0xFC00);
}

TEST(ReduceTest, Bfloat16IsTheUpperHalfOfAFloatRounded) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto narrow = static_cast<uint16_t>(bits);
    const float wide = Bfloat16ToFloat(narrow);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(Bfloat16ToFloat(FloatToBfloat16(wide)))) << bits;
    } else {
      ASSERT_EQ(FloatToBfloat16(wide), narrow) << bits;
    }
  }
  EXPECT_EQ(FloatToBfloat16(1.0F + 0x1p-8F), 0x3F80);            // a tie: to the even one below
  EXPECT_EQ(FloatToBfloat16(1.0F + 0x1p-7F + 0x1p-8F), 0x3F82);  // a tie: to the even one above
  EXPECT_EQ(FloatToBfloat16(1.0F + 0x1p-8F + 0x1p-20F), 0x3F81);
  EXPECT_EQ(FloatToBfloat16(3.4e38F), 0x7F80);
}

TEST(ReduceTest, NarrowNumbersAreRoundedOnce) {
  // 2048 + 2 + 1: the sum 2051 is no half, so rounding it first would give 2052 / 2 = 1026.
  std::vector<uint16_t> target{FloatToHalf(2048.0F)};
  const std::vector<uint16_t> values{FloatToHalf(3.0F)};
  AddThenScale(target.data(), values.data(), 1, DataType::kFloat16, 0.25);
  EXPECT_EQ(HalfToFloat(target[0]), 513.0F);  // of 512.75, to a multiple of 1/2
  // 256 + 2 is no bfloat16 either (multiples of 2 from 256 on are: 258 is one), 257 is not.
  std::vector<uint16_t> sum{FloatToBfloat16(256.0F)};
  const std::vector<uint16_t> one{FloatToBfloat16(2.0F)};
  AddThenScale(sum.data(), one.data(), 1, DataType::kBfloat16, 0.5);
  EXPECT_EQ(Bfloat16ToFloat(sum[0]), 129.0F);
}

}  // namespace
}  // namespace disco_fuse::runtime
