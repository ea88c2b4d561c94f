#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

// bfloat16: the upper half of a float32, and so its range with 8 bits of
// precision in place of 24.
namespace cohort {

// The bits of `value` in bfloat16, rounded to nearest, ties to even. What
// exceeds the largest finite bfloat16 (3.39e38) by half an ulp or more becomes
// infinite. NaN stays NaN, made quiet, with its sign.
inline uint16_t BFloat16Bits(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (value != value) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// The value of `bits`; exact.
inline float BFloat16Value(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Many at once, little-endian. Neither pointer need be aligned; the memory must
// not overlap.
void RoundToBFloat16(const std::byte* floats, int64_t count,
                     std::byte* bfloats);
void ExpandBFloat16(const std::byte* bfloats, int64_t count, float* floats);
// sums[i] = floats[i] + bfloats[i], each rounded once.
void AddBFloat16(const std::byte* floats, const std::byte* bfloats,
                 int64_t count, float* sums);

}  // namespace cohort
