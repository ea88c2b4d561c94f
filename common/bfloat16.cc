#include "common/bfloat16.h"

#include <cstring>

namespace cohort {

// The compiler vectorises these loops: copies of a fixed size are single
// instructions.

void RoundToBFloat16(const std::byte* floats, int64_t count,
                     std::byte* bfloats) {
  for (int64_t i = 0; i < count; ++i) {
    float value;
    std::memcpy(&value, floats + i * sizeof(value), sizeof(value));
    const uint16_t bits = BFloat16Bits(value);
    std::memcpy(bfloats + i * sizeof(bits), &bits, sizeof(bits));
  }
}

void ExpandBFloat16(const std::byte* bfloats, int64_t count, float* floats) {
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, bfloats + i * sizeof(bits), sizeof(bits));
    floats[i] = BFloat16Value(bits);
  }
}

void AddBFloat16(const std::byte* floats, const std::byte* bfloats,
                 int64_t count, float* sums) {
  for (int64_t i = 0; i < count; ++i) {
    float value;
    std::memcpy(&value, floats + i * sizeof(value), sizeof(value));
    uint16_t bits;
    std::memcpy(&bits, bfloats + i * sizeof(bits), sizeof(bits));
    sums[i] = value + BFloat16Value(bits);
  }
}

}  // namespace cohort
