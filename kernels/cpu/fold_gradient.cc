// The fold of all contributors' gradients.
//
// Without MulAdd and with lanes that never mix: the bits are those of plain
// loops on every instruction set.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/types/span.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fold_gradient.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/lanes_inl.h"

HWY_BEFORE_NAMESPACE();
namespace cohort::kernels::cpu {
namespace HWY_NAMESPACE {

// Stores the mean gradient of the vector of elements at `i`. Lanes of the
// answer are true where it is finite.
HWY_INLINE hn::Mask<NarrowTag> StoreMean(const GradientRun& run, int64_t i,
                                         Wide sum) {
  const NarrowTag tag;
  const Narrow mean = hn::Mul(hn::Set(tag, run.scale), RoundToFloat(sum));
  hn::StoreU(mean, tag, run.out + i);
  return hn::IsFinite(mean);
}

// Elements whose sums are kept in the first-level cache.
constexpr int64_t kTile = 1024;
// The sums before the first group. A call may be for a single float that the
// network cut in two, so it must not begin with clearing 8 KiB.
HWY_ALIGN constexpr double kNoSums[kTile] = {};
// Contributors read side by side. With more streams than the prefetcher
// follows, sixteen contributors ran at half the speed.
constexpr size_t kGroupMax = 8;

// Some of the contributors, in rank order.
using Group = absl::Span<const std::byte* const>;

// Adds four vectors of each contributor, from element `i` on.
HWY_INLINE void AddFour(Group group, int64_t i, Wide& s0, Wide& s1, Wide& s2,
                        Wide& s3) {
  const int64_t lane_bytes = LaneCount() * static_cast<int64_t>(sizeof(float));
  for (const std::byte* gradient : group) {
    const std::byte* from = gradient + i * sizeof(float);
    s0 = hn::Add(s0, LoadUnalignedFloats(from));
    s1 = hn::Add(s1, LoadUnalignedFloats(from + lane_bytes));
    s2 = hn::Add(s2, LoadUnalignedFloats(from + 2 * lane_bytes));
    s3 = hn::Add(s3, LoadUnalignedFloats(from + 3 * lane_bytes));
  }
}

HWY_INLINE double AddOne(Group group, int64_t i, double sum) {
  for (const std::byte* gradient : group) {
    float value;
    std::memcpy(&value, gradient + i * sizeof(float), sizeof(value));
    sum += static_cast<double>(value);
  }
  return sum;
}

// Adds elements [begin, begin + n) of the group to `sums`.
void AddGroup(Group group, int64_t begin, int64_t n, double* sums) {
  const int64_t lanes = LaneCount();
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    double* sum = sums + i;
    Wide s0 = LoadWide(sum), s1 = LoadWide(sum + lanes);
    Wide s2 = LoadWide(sum + 2 * lanes), s3 = LoadWide(sum + 3 * lanes);
    AddFour(group, begin + i, s0, s1, s2, s3);
    StoreWide(s0, sum);
    StoreWide(s1, sum + lanes);
    StoreWide(s2, sum + 2 * lanes);
    StoreWide(s3, sum + 3 * lanes);
  }
  for (; i < n; ++i) sums[i] = AddOne(group, begin + i, sums[i]);
}

// Adds the last group to `sums` and stores the means of elements
// [begin, begin + n); the totals never leave the registers.
HWY_INLINE bool FinishTile(const GradientRun& run, Group group, int64_t begin,
                           int64_t n, const double* sums) {
  const NarrowTag tag;
  const int64_t lanes = LaneCount();
  bool all_finite = true;
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    const double* sum = sums + i;
    const int64_t at = begin + i;
    Wide s0 = LoadWide(sum), s1 = LoadWide(sum + lanes);
    Wide s2 = LoadWide(sum + 2 * lanes), s3 = LoadWide(sum + 3 * lanes);
    AddFour(group, at, s0, s1, s2, s3);
    const auto first =
        hn::And(StoreMean(run, at, s0), StoreMean(run, at + lanes, s1));
    const auto second = hn::And(StoreMean(run, at + 2 * lanes, s2),
                                StoreMean(run, at + 3 * lanes, s3));
    all_finite = hn::AllTrue(tag, hn::And(first, second)) && all_finite;
  }
  for (; i < n; ++i) {
    const double total = AddOne(group, begin + i, sums[i]);
    const float mean = run.scale * static_cast<float>(total);
    run.out[begin + i] = mean;
    all_finite = std::isfinite(mean) && all_finite;
  }
  return all_finite;
}

bool FoldGradientHere(const GradientRun& given) {
  // With a copy that no other code can reach, the compiler need not read it
  // again after every store of a float.
  const GradientRun run = given;
  const size_t contributors = run.gradients.size();
  const size_t earlier =
      contributors == 0 ? 0 : (contributors - 1) / kGroupMax * kGroupMax;
  const Group last_group = run.gradients.subspan(earlier);
  HWY_ALIGN double sums[kTile];
  bool all_finite = true;
  for (int64_t begin = 0; begin < run.count; begin += kTile) {
    const int64_t n = std::min(kTile, run.count - begin);
    if (earlier > 0) std::fill_n(sums, n, 0.0);
    for (size_t k = 0; k < earlier; k += kGroupMax) {
      AddGroup(run.gradients.subspan(k, kGroupMax), begin, n, sums);
    }
    const double* const before = earlier > 0 ? sums : kNoSums;
    all_finite = FinishTile(run, last_group, begin, n, before) && all_finite;
  }
  return all_finite;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace cohort::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::kernels::cpu {

HWY_EXPORT(FoldGradientHere);

bool FoldGradient(const GradientRun& run) {
  return HWY_DYNAMIC_DISPATCH(FoldGradientHere)(run);
}

}  // namespace cohort::kernels::cpu
#endif  // HWY_ONCE
