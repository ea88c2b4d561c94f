#include "common/bfloat16.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "common/permutation.h"

namespace cohort {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The definition by values, in float64: a bfloat16 of exponent e (at least
// -126) is a multiple of 2^(e-7). Scaled to whole numbers, std::nearbyint
// rounds ties to even.
float RoundedByDefinition(float value) {
  if (!std::isfinite(value) || value == 0) return value;
  const int exponent = std::max(std::ilogb(value), -126);
  const double ulp = std::ldexp(1.0, exponent - 7);
  const double rounded = std::nearbyint(value / ulp) * ulp;
  return std::abs(rounded) >= 0x1p128
             ? std::copysign(kInfinity, value)
             : std::copysign(static_cast<float>(rounded), value);
}

uint32_t BitsOf(float value) { return std::bit_cast<uint32_t>(value); }

TEST(BFloat16Test, EveryPatternSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < (1U << 16); ++bits) {
    const float value = BFloat16Value(static_cast<uint16_t>(bits));
    ASSERT_EQ(BitsOf(value), bits << 16);
    // A signalling NaN becomes quiet, all others stay as they are.
    const uint32_t want = std::isnan(value) ? bits | 0x40 : bits;
    ASSERT_EQ(BFloat16Bits(value), want) << std::hex << bits;
  }
}

TEST(BFloat16Test, RoundsAsItsDefinition) {
  SplitMix64 random(3);
  const auto check = [](uint32_t bits) {
    const auto value = std::bit_cast<float>(bits);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(BFloat16Value(BFloat16Bits(value)))) << bits;
      return;
    }
    ASSERT_EQ(BitsOf(BFloat16Value(BFloat16Bits(value))),
              BitsOf(RoundedByDefinition(value)))
        << std::hex << bits;
  };
  // Beside every bfloat16 and every tie between two of them, subnormal ones
  // included, and anywhere.
  for (uint32_t upper = 0; upper < (1U << 16); ++upper) {
    for (const uint32_t lower :
         {0x0000U, 0x0001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      check(upper << 16 | lower);
    }
    check(upper << 16 | static_cast<uint32_t>(random.Below(1 << 16)));
  }
}

TEST(BFloat16Test, RoundsTiesToEven) {
  // The ulp at 1 is 2^-7.
  EXPECT_EQ(BFloat16Value(BFloat16Bits(1 + 0x1p-8F)), 1);
  EXPECT_EQ(BFloat16Value(BFloat16Bits(1 + 0x3p-8F)), 1 + 0x4p-8F);
  EXPECT_EQ(BFloat16Value(BFloat16Bits(-1 - 0x3p-8F)), -1 - 0x4p-8F);
  // Half of the smallest subnormal.
  EXPECT_EQ(BFloat16Value(BFloat16Bits(0x1p-134F)), 0);
  EXPECT_EQ(BFloat16Value(BFloat16Bits(0x3p-134F)), 0x2p-133F);
}

TEST(BFloat16Test, LargeValuesBecomeInfiniteAndNanStays) {
  constexpr float kLargest = 0x1.fep127F;
  EXPECT_EQ(BFloat16Value(BFloat16Bits(kLargest)), kLargest);
  EXPECT_EQ(BFloat16Value(BFloat16Bits(0x1.fefffep127F)), kLargest);
  EXPECT_EQ(BFloat16Value(BFloat16Bits(0x1.ffp127F)), kInfinity);
  EXPECT_EQ(BFloat16Value(BFloat16Bits(-std::numeric_limits<float>::max())),
            -kInfinity);
  EXPECT_EQ(BFloat16Value(BFloat16Bits(-kInfinity)), -kInfinity);
  // All of its payload is in the lower half.
  EXPECT_EQ(BFloat16Bits(std::bit_cast<float>(0xff800001U)), 0xffc0);
}

// Whatever the length and the alignment, many at once are as one by one.
TEST(BFloat16Test, ManyAreRoundedAndExpandedAsOne) {
  SplitMix64 random(4);
  for (int64_t count = 0; count < 70; ++count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) {
      value = std::bit_cast<float>(static_cast<uint32_t>(random.Next()));
    }
    const auto size = static_cast<size_t>(count) * sizeof(float);
    std::vector<std::byte> from(size + 1);
    if (size > 0) std::memcpy(from.data() + 1, values.data(), size);
    std::vector<std::byte> rounded(size / 2 + 1);
    RoundToBFloat16(from.data() + 1, count, rounded.data() + 1);
    std::vector<float> expanded(static_cast<size_t>(count));
    ExpandBFloat16(rounded.data() + 1, count, expanded.data());
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(BitsOf(expanded[i]),
                BitsOf(BFloat16Value(BFloat16Bits(values[i]))))
          << count << " " << i;
    }
  }
}

TEST(BFloat16Test, SumsAreRoundedOnce) {
  SplitMix64 random(5);
  for (int64_t count = 0; count < 40; ++count) {
    const auto size = static_cast<size_t>(count);
    std::vector<std::byte> floats(4 * size + 1);
    std::vector<std::byte> halves(2 * size + 1);
    std::vector<float> wanted;
    for (size_t i = 0; i < size; ++i) {
      const auto value = static_cast<float>(random.Uniform() - 0.5);
      const uint16_t bits =
          BFloat16Bits(static_cast<float>(random.Uniform() - 0.5));
      std::memcpy(floats.data() + 1 + 4 * i, &value, sizeof(value));
      std::memcpy(halves.data() + 1 + 2 * i, &bits, sizeof(bits));
      wanted.push_back(
          static_cast<float>(static_cast<double>(value) +
                             static_cast<double>(BFloat16Value(bits))));
    }
    std::vector<float> sums(size);
    AddBFloat16(floats.data() + 1, halves.data() + 1, count, sums.data());
    ASSERT_EQ(sums, wanted);
  }
}

// What leaves every weight as it is.
TEST(BFloat16Test, MinusZeroChangesNothing) {
  const std::vector<float> weights = {0.0F, -0.0F, 1.5F, -kInfinity};
  const std::vector<uint16_t> changes(4, BFloat16Bits(-0.0F));
  std::vector<float> sums(4);
  AddBFloat16(reinterpret_cast<const std::byte*>(weights.data()),
              reinterpret_cast<const std::byte*>(changes.data()), 4,
              sums.data());
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(BitsOf(sums[i]), BitsOf(weights[i]));
}

}  // namespace
}  // namespace cohort
