// The fold of all contributors' gradients, and an update by it in the same
// pass.
//
// Without MulAdd and with lanes that never mix: the bits are those of plain
// loops on every instruction set.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/types/span.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fold.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/lanes_inl.h"
#include "kernels/cpu/optimizers/rules_inl.h"

HWY_BEFORE_NAMESPACE();
namespace cohort::kernels::cpu {
namespace HWY_NAMESPACE {

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

// Adds the last group to `sums` and hands the means of elements
// [begin, begin + n) to `use`; the totals never leave the registers.
template <typename Use>
HWY_INLINE bool FinishTile(const GradientRun& run, const Use& use, Group group,
                           int64_t begin, int64_t n, const double* sums) {
  bool all_finite = true;
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  using V = Lane<FloatTag>;
  const V scale = run.scale;
  const int64_t lanes = LaneCount();
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    const double* sum = sums + i;
    Wide s0 = LoadWide(sum), s1 = LoadWide(sum + lanes);
    Wide s2 = LoadWide(sum + 2 * lanes), s3 = LoadWide(sum + 3 * lanes);
    AddFour(group, begin + i, s0, s1, s2, s3);
    const V low = scale * V(RoundToFloats(s0, s1));
    const V high = scale * V(RoundToFloats(s2, s3));
    use(begin + i, low);
    use(begin + i + 2 * lanes, high);
    all_finite = AllFinite(low, high) && all_finite;
  }
#endif
  for (; i < n; ++i) {
    const double total = AddOne(group, begin + i, sums[i]);
    const Lane<OneTag> mean = run.scale * static_cast<float>(total);
    use(begin + i, mean);
    all_finite = AllFinite(mean) && all_finite;
  }
  return all_finite;
}

// Hands the means of elements [begin, end) to `use`. By value: with copies that
// no other code can reach, the compiler need not read them again after every
// store of a float.
template <typename Use>
bool FoldRange(const GradientRun run, const Use use, int64_t begin,
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
    all_finite =
        FinishTile(run, use, last_group, begin, n, before) && all_finite;
  }
  return all_finite;
}

struct StoreMean {
  template <typename D>
  HWY_INLINE void operator()(int64_t i, Lane<D> mean) const {
    mean.Store(out + i);
  }

  float* out;
};

bool FoldGradientHere(const GradientRun& run) {
  return FoldRange(run, StoreMean{run.out}, 0, run.count);
}

// Lanes of the slots that a rule keeps; `kMask` has a bit for each that is
// there.
template <typename V, size_t kSlots, size_t kMask>
struct SlotLanes {
  static constexpr bool Kept(size_t slot) { return (kMask >> slot & 1) != 0; }
  HWY_INLINE V& operator[](size_t slot) { return lanes[slot]; }

  // One without slots, for plain SGD: no array is empty.
  V lanes[kSlots == 0 ? 1 : kSlots];
};

// Streaming stores pass the caches by, so that no line is read just to be
// overwritten. They need whole, aligned vectors.
enum class Store { kCached, kStreaming };

template <typename Rule, size_t kMask, Store kStore>
struct UpdateByMean {
  template <typename D>
  HWY_INLINE void operator()(int64_t i, Lane<D> mean) const {
    Update(i, mean, std::make_index_sequence<Rule::kSlots>());
  }

  template <typename D, size_t... slots>
  HWY_INLINE void Update(int64_t i, Lane<D> mean,
                         std::index_sequence<slots...>) const {
    using V = Lane<D>;
    using Held = SlotLanes<V, Rule::kSlots, kMask>;
    Held held{
        {(Held::Kept(slots) ? V::Load(run.slots_in[slots] + i) : V())...}};
    const V w = Rule::Update(scalars, V::Load(run.weights_in + i), mean, held);
    ((Held::Kept(slots) ? StoreTo(run.slots_out[slots] + i, held[slots])
                        : void()),
     ...);
    StoreTo(run.weights_out + i, w);
  }

  template <typename D>
  static HWY_INLINE void StoreTo(float* to, Lane<D> value) {
    if constexpr (kStore == Store::kStreaming && !std::is_same_v<D, OneTag>) {
      value.Stream(to);
    } else {
      value.Store(to);
    }
  }

  typename Rule::Scalars scalars;
  UpdateRun run;
};

// Shorter runs are not worth the wait for the last stores.
constexpr int64_t kStreamingMin = 1024;

// Elements before the first that lies at the start of a vector of every
// instruction set, in all results; absent if there is none.
std::optional<int64_t> BeforeAligned(const UpdateRun& run) {
  constexpr uintptr_t kVector = 64;
  const uintptr_t past = reinterpret_cast<uintptr_t>(run.weights_out) % kVector;
  for (const float* slot : run.slots_out) {
    if (slot != nullptr &&
        reinterpret_cast<uintptr_t>(slot) % kVector != past) {
      return std::nullopt;
    }
  }
  return static_cast<int64_t>((kVector - past) % kVector / sizeof(float));
}

// Finds the code for the slots that are there, from all down to those that are
// always kept, which are the first.
template <typename Rule, size_t kMask>
bool UpdateKept(const RuleStep& step, const GradientRun& gradient,
                const UpdateRun& run, size_t kept) {
  if constexpr (kMask >> Rule::kAlwaysKept != 0) {
    if (kept != kMask) {
      return UpdateKept<Rule, kMask - (1 << Rule::kAlwaysKept)>(step, gradient,
                                                                run, kept);
    }
  }
  typename Rule::Scalars scalars;
  std::memcpy(&scalars, step.scalars.data(), sizeof(scalars));
  const UpdateByMean<Rule, kMask, Store::kCached> cached{scalars, run};
  std::optional<int64_t> before;
  if (run.streaming && gradient.count >= kStreamingMin) {
    before = BeforeAligned(run);
  }
  if (!before.has_value()) {
    return FoldRange(gradient, cached, 0, gradient.count);
  }
  const UpdateByMean<Rule, kMask, Store::kStreaming> streaming{scalars, run};
  const bool head = FoldRange(gradient, cached, 0, *before);
  const bool rest = FoldRange(gradient, streaming, *before, gradient.count);
  hwy::FlushStream();
  return head && rest;
}

template <typename Rule>
bool UpdateBy(const RuleStep& step, const GradientRun& gradient,
              const UpdateRun& run) {
  size_t kept = 0;
  for (size_t k = 0; k != Rule::kSlots; ++k) {
    if (run.slots_in[k] != nullptr) kept |= size_t{1} << k;
  }
  return UpdateKept<Rule, (1 << Rule::kSlots) - 1>(step, gradient, run, kept);
}

bool UpdateHere(const RuleStep& step, const GradientRun& gradient,
                const UpdateRun& run) {
  switch (step.rule) {
    case OptimizerKind::kAuto:
      break;
#define COHORT_OPTIMIZER(Name, name) \
  case OptimizerKind::k##Name:       \
    return UpdateBy<Name>(step, gradient, run);
#include "common/optimizers.inc"
  }
  return true;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace cohort::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::kernels::cpu {

HWY_EXPORT(FoldGradientHere);
HWY_EXPORT(UpdateHere);

bool FoldGradient(const GradientRun& run) {
  return HWY_DYNAMIC_DISPATCH(FoldGradientHere)(run);
}

bool Update(const RuleStep& step, const GradientRun& gradient,
            const UpdateRun& run) {
  return HWY_DYNAMIC_DISPATCH(UpdateHere)(step, gradient, run);
}

}  // namespace cohort::kernels::cpu
#endif  // HWY_ONCE
