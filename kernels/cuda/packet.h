#pragma once

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

#include <cstdint>
#include <cstring>

#include "kernels/cuda/device.h"
#include "kernels/data_type.h"
#include "kernels/half.h"

// One access of a thread: 16 bytes, or one element where tensors do not lie
// alike, and the conversions between its elements and float32.
namespace cohort::kernels::cuda {

template <typename T, int kWidth>
struct Packet {
  static_assert(kWidth * sizeof(T) == 16);
  uint32_t words[4];
};

template <typename T>
struct Packet<T, 1> {
  T value;
};

// -- Conversions.

#if defined(__CUDACC__)
COHORT_DEVICE float HalfToFloat(uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
}
COHORT_DEVICE uint16_t FloatToHalf(float x) {
  return __half_as_ushort(__float2half_rn(x));
}
COHORT_DEVICE uint16_t FloatToBrain(float x) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}
#else
COHORT_DEVICE float HalfToFloat(uint32_t bits) {
  return Float16Value(static_cast<uint16_t>(bits));
}
COHORT_DEVICE uint16_t FloatToHalf(float x) { return Float16Bits(x); }
COHORT_DEVICE uint16_t FloatToBrain(float x) { return BFloat16Bits(x); }
#endif

COHORT_DEVICE float ToFloat(float x) { return x; }
COHORT_DEVICE float ToFloat(Float16 x) { return HalfToFloat(x.bits); }
COHORT_DEVICE float ToFloat(BFloat16 x) {
  return FloatOfBits(static_cast<uint32_t>(x.bits) << 16);
}

COHORT_DEVICE void SetFrom(float value, float& to) { to = value; }
COHORT_DEVICE void SetFrom(float value, Float16& to) {
  to.bits = FloatToHalf(value);
}
COHORT_DEVICE void SetFrom(float value, BFloat16& to) {
  to.bits = FloatToBrain(value);
}

// Two elements of a word.
COHORT_DEVICE void Unpack(uint32_t word, Float16 /*type*/, float& low,
                          float& high) {
  low = HalfToFloat(word & 0xffff);
  high = HalfToFloat(word >> 16);
}
COHORT_DEVICE void Unpack(uint32_t word, BFloat16 /*type*/, float& low,
                          float& high) {
  low = FloatOfBits(word << 16);
  high = FloatOfBits(word & 0xffff0000);
}
COHORT_DEVICE uint32_t Join(float low, float high, Float16 /*type*/) {
  return FloatToHalf(low) | static_cast<uint32_t>(FloatToHalf(high)) << 16;
}
COHORT_DEVICE uint32_t Join(float low, float high, BFloat16 /*type*/) {
#if defined(__CUDA_ARCH__)
  // One instruction for both.
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return __bfloat16_as_ushort(both.x) |
         static_cast<uint32_t>(__bfloat16_as_ushort(both.y)) << 16;
#else
  return FloatToBrain(low) | static_cast<uint32_t>(FloatToBrain(high)) << 16;
#endif
}

template <typename T, int kWidth>
COHORT_DEVICE void ToFloats(const Packet<T, kWidth>& packet,
                            float (&values)[kWidth]) {
  if constexpr (kWidth == 1) {
    values[0] = ToFloat(packet.value);
  } else if constexpr (sizeof(T) == sizeof(float)) {
    COHORT_UNROLL
    for (int j = 0; j < kWidth; ++j) values[j] = FloatOfBits(packet.words[j]);
  } else {
    COHORT_UNROLL
    for (int j = 0; j < kWidth; j += 2) {
      Unpack(packet.words[j / 2], T(), values[j], values[j + 1]);
    }
  }
}

template <typename T, int kWidth>
COHORT_DEVICE void FromFloats(const float (&values)[kWidth],
                              Packet<T, kWidth>& packet) {
  if constexpr (kWidth == 1) {
    SetFrom(values[0], packet.value);
  } else if constexpr (sizeof(T) == sizeof(float)) {
    COHORT_UNROLL
    for (int j = 0; j < kWidth; ++j) packet.words[j] = BitsOfFloat(values[j]);
  } else {
    COHORT_UNROLL
    for (int j = 0; j < kWidth; j += 2) {
      packet.words[j / 2] = Join(values[j], values[j + 1], T());
    }
  }
}

// -- Memory. Never the read-only path: an output may be an input.

// kOnce: the data is not needed again soon and gives way first in the caches.
enum class Reuse { kSoon, kOnce };

template <Reuse kReuse, int kWidth, typename T>
COHORT_DEVICE Packet<T, kWidth> Load(const T* from) {
  Packet<T, kWidth> packet;
  if constexpr (kWidth == 1) {
    packet.value = *from;
  } else {
#if defined(__CUDACC__)
    const uint4* at = reinterpret_cast<const uint4*>(from);
    const uint4 four = kReuse == Reuse::kOnce ? __ldcs(at) : *at;
    packet.words[0] = four.x;
    packet.words[1] = four.y;
    packet.words[2] = four.z;
    packet.words[3] = four.w;
#else
    std::memcpy(&packet, static_cast<const void*>(from), sizeof(packet));
#endif
  }
  return packet;
}

template <Reuse kReuse, int kWidth, typename T>
COHORT_DEVICE void Store(const Packet<T, kWidth>& packet, T* to) {
  if constexpr (kWidth == 1) {
    *to = packet.value;
  } else {
#if defined(__CUDACC__)
    const uint4 four = make_uint4(packet.words[0], packet.words[1],
                                  packet.words[2], packet.words[3]);
    uint4* at = reinterpret_cast<uint4*>(to);
    if constexpr (kReuse == Reuse::kOnce) {
      __stcs(at, four);
    } else {
      *at = four;
    }
#else
    std::memcpy(static_cast<void*>(to), &packet, sizeof(packet));
#endif
  }
}

// Written by another block of this launch: not through the cache of this
// multiprocessor, which may hold what was there before.
COHORT_DEVICE Pair LoadShared(const Pair* from) {
#if defined(__CUDACC__)
  const double2 two = __ldcg(reinterpret_cast<const double2*>(from));
  return {two.x, two.y};
#else
  return *from;
#endif
}

// Element `index` of gamma or beta; `absent` if there is none.
COHORT_DEVICE double ReadParameter(DataType type, const void* values,
                                   int64_t index, double absent) {
  if (values == nullptr) return absent;
  switch (type) {
    case DataType::kFloat64:
      return static_cast<const double*>(values)[index];
    case DataType::kFloat16:
      return ToFloat(static_cast<const Float16*>(values)[index]);
    case DataType::kBFloat16:
      return ToFloat(static_cast<const BFloat16*>(values)[index]);
    case DataType::kFloat32:
      break;
  }
  return static_cast<const float*>(values)[index];
}

}  // namespace cohort::kernels::cuda
