// The fold of all contributors' gradients, and the SGD update in the same pass.
//
// Without MulAdd and with lanes that never mix: the bits are those of plain
// loops on every instruction set.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "absl/types/span.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fold_sgd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/lanes_inl.h"

HWY_BEFORE_NAMESPACE();
namespace cohort::kernels::cpu {
namespace HWY_NAMESPACE {

// kFold only stores the folded gradient, as weights_out.
enum class Rule { kFold, kPlain, kMomentum, kNesterov };

// Streaming stores pass the caches by, so that no line is read just to be
// overwritten. They need whole, aligned vectors.
enum class Store { kCached, kStreaming };

template <Store kStore>
HWY_INLINE void StoreFloats(Narrow value, float* to) {
  if constexpr (kStore == Store::kStreaming) {
    hn::Stream(value, NarrowTag(), to);
  } else {
    hn::StoreU(value, NarrowTag(), to);
  }
}

// Applies the folded `sum` to the vector of elements at `i`. Lanes of the
// answer are true where the folded gradient is finite.
template <Rule kRule, Store kStore>
HWY_INLINE hn::Mask<NarrowTag> UpdateVector(const SgdStep& step,
                                            const SgdRun& run, int64_t i,
                                            Wide sum) {
  const NarrowTag tag;
  const Narrow folded =
      hn::Mul(hn::Set(tag, step.gradient_scale), RoundToFloat(sum));
  if constexpr (kRule == Rule::kFold) {
    StoreFloats<kStore>(folded, run.weights_out + i);
    return hn::IsFinite(folded);
  }
  const Narrow w = hn::LoadU(tag, run.weights_in + i);
  const Narrow g = hn::Add(folded, hn::Mul(hn::Set(tag, step.weight_decay), w));
  Narrow change = g;
  if constexpr (kRule != Rule::kPlain) {
    const Narrow momentum = hn::Set(tag, step.momentum);
    const Narrow v =
        hn::Add(hn::Mul(momentum, hn::LoadU(tag, run.velocity_in + i)), g);
    StoreFloats<kStore>(v, run.velocity_out + i);
    change = kRule == Rule::kNesterov ? hn::Add(g, hn::Mul(momentum, v)) : v;
  }
  const Narrow rate = hn::Set(tag, step.learning_rate);
  StoreFloats<kStore>(hn::Sub(w, hn::Mul(rate, change)), run.weights_out + i);
  return hn::IsFinite(folded);
}

// UpdateVector for one element, with the same bits.
template <Rule kRule>
HWY_INLINE bool UpdateElement(const SgdStep& step, const SgdRun& run, int64_t i,
                              double sum) {
  const float folded = step.gradient_scale * static_cast<float>(sum);
  if constexpr (kRule == Rule::kFold) {
    run.weights_out[i] = folded;
    return std::isfinite(folded);
  }
  const float w = run.weights_in[i];
  const float g = folded + step.weight_decay * w;
  float change = g;
  if constexpr (kRule != Rule::kPlain) {
    const float v = step.momentum * run.velocity_in[i] + g;
    run.velocity_out[i] = v;
    change = kRule == Rule::kNesterov ? g + step.momentum * v : v;
  }
  run.weights_out[i] = w - step.learning_rate * change;
  return std::isfinite(folded);
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

// Adds the last group to `sums` and updates elements [begin, begin + n) by
// the totals, which never leave the registers. Ends at the first that is not
// finite, unless it only folds.
template <Rule kRule, Store kStore>
HWY_INLINE bool FinishTile(const SgdStep& step, const SgdRun& run, Group group,
                           int64_t begin, int64_t n, const double* sums) {
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
    const auto finite0 = UpdateVector<kRule, kStore>(step, run, at, s0);
    const auto finite1 = UpdateVector<kRule, kStore>(step, run, at + lanes, s1);
    const auto finite2 =
        UpdateVector<kRule, kStore>(step, run, at + 2 * lanes, s2);
    const auto finite3 =
        UpdateVector<kRule, kStore>(step, run, at + 3 * lanes, s3);
    const auto finite =
        hn::And(hn::And(finite0, finite1), hn::And(finite2, finite3));
    if (!hn::AllTrue(tag, finite)) {
      if (kRule != Rule::kFold) return false;
      all_finite = false;
    }
  }
  for (; i < n; ++i) {
    const double total = AddOne(group, begin + i, sums[i]);
    if (!UpdateElement<kRule>(step, run, begin + i, total)) {
      if (kRule != Rule::kFold) return false;
      all_finite = false;
    }
  }
  return all_finite;
}

// Elements [begin, end) of a run. By value: with copies that no other code can
// reach, the compiler need not read the settings again after every store of a
// float.
template <Rule kRule, Store kStore>
bool FoldRange(const SgdStep step, const SgdRun run, int64_t begin,
               int64_t end) {
  const size_t contributors = run.gradients.size();
  const size_t earlier =
      contributors == 0 ? 0 : (contributors - 1) / kGroupMax * kGroupMax;
  const Group last_group = run.gradients.subspan(earlier);
  HWY_ALIGN double sums[kTile];
  bool all_finite = true;
  for (; begin < end; begin += kTile) {
    const int64_t n = std::min(kTile, end - begin);
    if (earlier > 0) std::fill_n(sums, n, 0.0);
    for (size_t k = 0; k < earlier; k += kGroupMax) {
      AddGroup(run.gradients.subspan(k, kGroupMax), begin, n, sums);
    }
    const double* const before = earlier > 0 ? sums : kNoSums;
    if (!FinishTile<kRule, kStore>(step, run, last_group, begin, n, before)) {
      if (kRule != Rule::kFold) return false;
      all_finite = false;
    }
  }
  return all_finite;
}

// Shorter runs are not worth the wait for the last stores.
constexpr int64_t kStreamingMin = 1024;

// Elements before the first that lies at the start of a vector of every
// instruction set, in both results; absent if there is none.
std::optional<int64_t> BeforeAligned(const SgdRun& run) {
  constexpr uintptr_t kVector = 64;
  const uintptr_t past = reinterpret_cast<uintptr_t>(run.weights_out) % kVector;
  if (run.velocity_out != nullptr &&
      reinterpret_cast<uintptr_t>(run.velocity_out) % kVector != past) {
    return std::nullopt;
  }
  return static_cast<int64_t>((kVector - past) % kVector / sizeof(float));
}

template <Rule kRule>
bool FoldWith(const SgdStep& step, const SgdRun& run) {
  std::optional<int64_t> before;
  if (run.streaming && run.count >= kStreamingMin) before = BeforeAligned(run);
  if (!before.has_value()) {
    return FoldRange<kRule, Store::kCached>(step, run, 0, run.count);
  }
  const bool head = FoldRange<kRule, Store::kCached>(step, run, 0, *before);
  if (!head && kRule != Rule::kFold) return false;
  const bool rest =
      FoldRange<kRule, Store::kStreaming>(step, run, *before, run.count);
  hwy::FlushStream();
  return head && rest;
}

bool FoldSgdHere(const SgdStep& step, const SgdRun& run) {
  if (run.velocity_out == nullptr) return FoldWith<Rule::kPlain>(step, run);
  if (step.nesterov) return FoldWith<Rule::kNesterov>(step, run);
  return FoldWith<Rule::kMomentum>(step, run);
}

bool FoldGradientHere(const GradientRun& run) {
  return FoldWith<Rule::kFold>(
      {.gradient_scale = run.scale},
      {.gradients = run.gradients, .count = run.count, .weights_out = run.out});
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace cohort::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::kernels::cpu {

HWY_EXPORT(FoldSgdHere);
HWY_EXPORT(FoldGradientHere);

bool FoldSgd(const SgdStep& step, const SgdRun& run) {
  return HWY_DYNAMIC_DISPATCH(FoldSgdHere)(step, run);
}

bool FoldGradient(const GradientRun& run) {
  return HWY_DYNAMIC_DISPATCH(FoldGradientHere)(run);
}

}  // namespace cohort::kernels::cpu
#endif  // HWY_ONCE
