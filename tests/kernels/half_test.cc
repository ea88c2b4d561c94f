#include "kernels/half.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "tests/kernels/backend_matrix.h"
#include "tests/kernels/sample_data.h"

namespace cohort::kernels {
namespace {

constexpr int kPatterns = 1 << 16;

// The definition of a binary format of one sign bit: mantissa * 2^exponent.
double ValueByDefinition(int bits, int mantissa_bits) {
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int exponent_bits = 15 - mantissa_bits;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  const int one = exponent == 0 ? 0 : 1 << mantissa_bits;
  return sign * std::ldexp(mantissa + one,
                           std::max(exponent, 1) - bias - mantissa_bits);
}

template <typename T>
T FromBits(int bits) {
  T value;
  value.bits = static_cast<uint16_t>(bits);
  return value;
}

template <typename T>
void ExpectValuesByDefinition(int mantissa_bits) {
  for (int bits = 0; bits < kPatterns; ++bits) {
    const double want = ValueByDefinition(bits, mantissa_bits);
    const auto got = static_cast<double>(FromBits<T>(bits));
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got)) << bits;
    } else {
      ASSERT_EQ(got, want) << bits;
      ASSERT_EQ(std::signbit(got), std::signbit(want)) << bits;
    }
  }
}

TEST(HalfTest, EveryPatternHasTheValueOfItsDefinition) {
  ExpectValuesByDefinition<Float16>(10);
  ExpectValuesByDefinition<BFloat16>(7);
}

// The float32 numbers at, just below and just above the middle of each two
// neighbours, whose lower one is even or odd.
template <typename T>
void ExpectTiesToEven(int infinity) {
  for (int bits = 0; bits < infinity; ++bits) {
    const auto lower = static_cast<double>(FromBits<T>(bits));
    const auto next = static_cast<double>(FromBits<T>(bits + 1));
    // The number that would follow the largest one without an infinity.
    const double upper =
        std::isinf(next)
            ? 2 * lower - static_cast<double>(FromBits<T>(bits - 1))
            : next;
    const auto middle = static_cast<float>((lower + upper) / 2);
    ASSERT_EQ(T(middle).bits, bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(T(std::nextafter(middle, 0.0F)).bits, bits);
    ASSERT_EQ(T(std::nextafter(middle, HUGE_VALF)).bits, bits + 1);
    ASSERT_EQ(T(-middle).bits, 0x8000 + (bits % 2 == 0 ? bits : bits + 1));
    ASSERT_EQ(T(lower).bits, bits);
  }
}

TEST(HalfTest, RoundsToNearestAndTiesToEven) {
  ExpectTiesToEven<Float16>(0x7c00);
  ExpectTiesToEven<BFloat16>(0x7f80);
}

TEST(HalfTest, WhatIsTooLargeIsInfiniteAndNanStaysNan) {
  EXPECT_EQ(Float16(65519).bits, 0x7bff);
  EXPECT_EQ(Float16(65520).bits, 0x7c00);
  EXPECT_EQ(Float16(-1e30).bits, 0xfc00);
  EXPECT_EQ(BFloat16(3.4e38).bits, 0x7f80);
  EXPECT_EQ(BFloat16(-HUGE_VAL).bits, 0xff80);
  for (const uint32_t payload : {1U, 0x12345U, 0x3fffffU, 0x400000U}) {
    const auto nan = std::bit_cast<float>(0x7f800000U | payload);
    EXPECT_TRUE(std::isnan(static_cast<double>(Float16(nan)))) << payload;
    EXPECT_TRUE(std::isnan(static_cast<double>(BFloat16(nan)))) << payload;
  }
}

class HalfLanesTest : public BackendTest {
 protected:
  // scale * x for every pattern of T as x, in one channel.
  template <typename T>
  std::vector<T> Scaled(const Backend& backend, double scale) {
    std::vector<T> x(kPatterns);
    for (int bits = 0; bits < kPatterns; ++bits) x[bits] = FromBits<T>(bits);
    std::vector<T> y(kPatterns);
    const double zero = 0;
    backend.Normalize({.shape = {.outer = 1, .channels = 1, .inner = kPatterns},
                       .type = TypeOf<T>(),
                       .x = x.data(),
                       .mean = &zero,
                       .invstd = &scale,
                       .y = y.data()});
    return y;
  }

  template <typename T>
  void ExpectLikeElements() {
    // Exact, subnormal answers, ties, infinity, and all bits of the mantissa.
    for (const double scale : {1.0, 0x1p-9, 0.5, 3.0, 1.0 / 3}) {
      const std::vector<T> got = Scaled<T>(backend(), scale);
      for (int bits = 0; bits < kPatterns; ++bits) {
        const double x = static_cast<double>(FromBits<T>(bits));
        const T want(x * scale + 0.0);
        if (std::isnan(x)) {
          ASSERT_TRUE(std::isnan(static_cast<double>(got[bits]))) << bits;
        } else {
          ASSERT_EQ(got[bits].bits, want.bits) << bits << " by " << scale;
        }
      }
    }
  }
};

TEST_P(HalfLanesTest, VectorsConvertAsElementsDo) {
  ExpectLikeElements<Float16>();
  ExpectLikeElements<BFloat16>();
}

INSTANTIATE_TEST_SUITE_P(Backends, HalfLanesTest,
                         testing::ValuesIn(AllBackends()), BackendCaseName);

}  // namespace
}  // namespace cohort::kernels
