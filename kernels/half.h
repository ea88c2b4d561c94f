#pragma once

#include <bit>
#include <cstdint>

#include "common/bfloat16.h"

namespace cohort::kernels {

// The bits of `value` in IEEE binary16, rounded to nearest, ties to even. What
// exceeds 65504 by half an ulp or more becomes infinite, NaN stays NaN.
inline uint16_t Float16Bits(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t size = bits & 0x7fffffff;
  uint32_t half = 0;
  if (size > 0x7f800000) {
    half = 0x7e00 | ((size >> 13) & 0x3ff);
  } else if (size >= 0x47800000) {  // 2^16
    half = 0x7c00;
  } else if (size < 0x38800000) {  // 2^-14: the answer is subnormal or 0.
    // Added to 0.5, whose ulp is 2^-24, the number is rounded by the addition.
    const float aligned = std::bit_cast<float>(size) + 0.5F;
    half = std::bit_cast<uint32_t>(aligned) - 0x3f000000;
  } else {
    // Moves the exponent's bias from 127 to 15; a carry out of the mantissa
    // raises the exponent, up to infinity.
    half = (size - (112U << 23) + 0xfff + ((size >> 13) & 1)) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

// The value of `bits` in IEEE binary16; exact.
inline float Float16Value(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t size = static_cast<uint32_t>(bits & 0x7fff) << 13;
  uint32_t value = size + (112U << 23);
  if (size >= 0x0f800000) {  // Infinity or NaN.
    value += 112U << 23;
  } else if (size < 0x00800000) {  // Subnormal or 0: no leading one.
    value = std::bit_cast<uint32_t>(std::bit_cast<float>(value + (1U << 23)) -
                                    0x1p-14F);
  }
  return std::bit_cast<float>(sign | value);
}

// Two bytes that hold an IEEE binary16. From float64 it is rounded to float32
// first, which is what every instruction set can do.
struct Float16 {
  uint16_t bits = 0;

  Float16() = default;
  explicit Float16(double value)
      : bits(Float16Bits(static_cast<float>(value))) {}
  explicit operator double() const { return Float16Value(bits); }

  friend bool operator==(Float16, Float16) = default;
};

// The upper half of a float32; rounded as Float16 is.
struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(double value)
      : bits(BFloat16Bits(static_cast<float>(value))) {}
  explicit operator double() const { return BFloat16Value(bits); }

  friend bool operator==(BFloat16, BFloat16) = default;
};

static_assert(sizeof(Float16) == 2 && sizeof(BFloat16) == 2);

}  // namespace cohort::kernels
