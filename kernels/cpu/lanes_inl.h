// Loads, stores and conversions shared by the CPU kernels. Included once for
// every instruction set of a translation unit, hence Highway's toggled guard
// in place of `#pragma once`.
#if defined(COHORT_KERNELS_CPU_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COHORT_KERNELS_CPU_LANES_INL_H_
#undef COHORT_KERNELS_CPU_LANES_INL_H_
#else
#define COHORT_KERNELS_CPU_LANES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/half.h"

HWY_BEFORE_NAMESPACE();
namespace cohort::kernels::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// All arithmetic on activations is float64: the memory is the bottleneck, and
// x - mean is then exact enough for any mean (float32 has an ulp of 1e-3 at
// 1e4).
using WideTag = hn::ScalableTag<double>;
using Wide = hn::Vec<WideTag>;
// As many float32 as a vector holds float64.
using NarrowTag = hn::Rebind<float, WideTag>;
using Narrow = hn::Vec<NarrowTag>;

// Vectors of float32 only, twice as many lanes as beside float64.
using FloatTag = hn::ScalableTag<float>;
// A vector of one lane: the first and last elements go by the same formulas.
using OneTag = hn::CappedTag<float, 1>;

HWY_INLINE int64_t LaneCount() {
  return static_cast<int64_t>(hn::Lanes(WideTag()));
}

HWY_INLINE Wide LoadWide(const double* from) {
  return hn::LoadU(WideTag(), from);
}

HWY_INLINE Wide LoadWide(const float* from) {
  return hn::PromoteTo(WideTag(), hn::LoadU(NarrowTag(), from));
}

// Rounds to nearest; what exceeds float32 becomes infinite.
HWY_INLINE Narrow RoundToFloat(Wide value) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  // Highway saturates on these targets, which would hide an overflow.
  double wide[hn::MaxLanes(WideTag())];
  float narrow[hn::MaxLanes(WideTag())];
  hn::StoreU(value, WideTag(), wide);
  for (size_t i = 0; i < hn::Lanes(WideTag()); ++i) {
    narrow[i] = static_cast<float>(wide[i]);
  }
  return hn::LoadU(NarrowTag(), narrow);
#else
  return hn::DemoteTo(NarrowTag(), value);
#endif
}

#if HWY_TARGET != HWY_SCALAR
// The lanes of `low`, then those of `high`.
HWY_INLINE hn::Vec<FloatTag> RoundToFloats(Wide low, Wide high) {
  return hn::Combine(FloatTag(), RoundToFloat(high), RoundToFloat(low));
}
#endif

using HalfBitsTag = hn::Rebind<uint16_t, WideTag>;
using HalfBits = hn::Vec<HalfBitsTag>;

// Highway truncates bfloat16 and, without an instruction for it, float16.
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || \
    (HWY_ARCH_X86 && (HWY_TARGET >= HWY_SSE4 || defined(HWY_DISABLE_F16C)))
#define COHORT_HALF_BY_ELEMENT 1
#else
#define COHORT_HALF_BY_ELEMENT 0
#endif

HWY_INLINE Wide LoadWide(const Float16* from) {
#if COHORT_HALF_BY_ELEMENT
  double wide[hn::MaxLanes(WideTag())];
  for (size_t i = 0; i < hn::Lanes(WideTag()); ++i) {
    wide[i] = static_cast<double>(from[i]);
  }
  return hn::LoadU(WideTag(), wide);
#else
  const hn::Rebind<hwy::float16_t, WideTag> halves;
  const HalfBits bits =
      hn::LoadU(HalfBitsTag(), reinterpret_cast<const uint16_t*>(from));
  return hn::PromoteTo(WideTag(),
                       hn::PromoteTo(NarrowTag(), hn::BitCast(halves, bits)));
#endif
}

HWY_INLINE void StoreWide(Wide value, Float16* to) {
#if COHORT_HALF_BY_ELEMENT
  double wide[hn::MaxLanes(WideTag())];
  hn::StoreU(value, WideTag(), wide);
  for (size_t i = 0; i < hn::Lanes(WideTag()); ++i) to[i] = Float16(wide[i]);
#else
  const hn::Rebind<hwy::float16_t, WideTag> halves;
  hn::StoreU(
      hn::BitCast(HalfBitsTag(), hn::DemoteTo(halves, RoundToFloat(value))),
      HalfBitsTag(), reinterpret_cast<uint16_t*>(to));
#endif
}

HWY_INLINE Wide LoadWide(const BFloat16* from) {
  const hn::Rebind<uint32_t, WideTag> words;
  const HalfBits bits =
      hn::LoadU(HalfBitsTag(), reinterpret_cast<const uint16_t*>(from));
  return hn::PromoteTo(
      WideTag(),
      hn::BitCast(NarrowTag(), hn::ShiftLeft<16>(hn::PromoteTo(words, bits))));
}

// As BFloat16Bits(), in the lower half of each word.
template <typename D>
HWY_INLINE hn::Vec<hn::Rebind<uint32_t, D>> RoundToHalves(D, hn::Vec<D> value) {
  const hn::Rebind<uint32_t, D> words;
  const auto bits = hn::BitCast(words, value);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto even = hn::And(upper, hn::Set(words, 1));
  const auto rounded =
      hn::ShiftRight<16>(hn::Add(bits, hn::Add(even, hn::Set(words, 0x7fff))));
  const auto nan = hn::Or(upper, hn::Set(words, 0x40));
  return hn::IfThenElse(hn::RebindMask(words, hn::IsNaN(value)), nan, rounded);
}

// The lower halves of what RoundToHalves() returns.
template <typename D>
HWY_INLINE hn::Vec<hn::Rebind<uint16_t, D>> DemoteHalves(
    D, hn::Vec<hn::Rebind<uint32_t, D>> halves) {
  return hn::DemoteTo(hn::Rebind<uint16_t, D>(),
                      hn::BitCast(hn::Rebind<int32_t, D>(), halves));
}

HWY_INLINE void StoreWide(Wide value, BFloat16* to) {
  const NarrowTag tag;
  const auto halves = RoundToHalves(tag, RoundToFloat(value));
  hn::StoreU(DemoteHalves(tag, halves), HalfBitsTag(),
             reinterpret_cast<uint16_t*>(to));
}

HWY_INLINE void StoreWide(Wide value, double* to) {
  hn::StoreU(value, WideTag(), to);
}

HWY_INLINE void StoreWide(Wide value, float* to) {
  hn::StoreU(RoundToFloat(value), NarrowTag(), to);
}

#undef COHORT_HALF_BY_ELEMENT

// Reads float32 from an address of any alignment. Through bytes, as a
// misaligned `const float*` is undefined even where the load is not.
HWY_INLINE Wide LoadUnalignedFloats(const std::byte* from) {
#if HWY_TARGET == HWY_SCALAR
  float value;
  std::memcpy(&value, from, sizeof(value));
  return hn::Set(WideTag(), static_cast<double>(value));
#else
  const hn::Repartition<uint8_t, NarrowTag> bytes;
  const auto raw = hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(from));
  return hn::PromoteTo(WideTag(), hn::BitCast(NarrowTag(), raw));
#endif
}

// How far ahead of the elements at hand memory is asked for, in bytes.
constexpr int64_t kPrefetchBytes = 2048;

// Asks for the memory kPrefetchBytes behind element `i`; null and what lies
// outside the tensor do no harm. Kernels that walk along several rows at once
// ask row after row, an order that the hardware's prefetcher does not see.
template <typename T>
HWY_INLINE void PrefetchAhead(const T* tensor, int64_t i) {
  hwy::Prefetch(reinterpret_cast<const char*>(tensor) +
                i * static_cast<int64_t>(sizeof(T)) + kPrefetchBytes);
}

HWY_INLINE double SumOfLanes(Wide value) {
  return hn::GetLane(hn::SumOfLanes(WideTag(), value));
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace cohort::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif  // COHORT_KERNELS_CPU_LANES_INL_H_
