// Updates from a folded gradient that lies in the cache, and what is computed
// of it before.
//
// Without MulAdd, and with partial sums by position: the bits are those of
// plain loops on every instruction set.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/types/span.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/update.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/lanes_inl.h"
#include "kernels/cpu/optimizers/rules_inl.h"

HWY_BEFORE_NAMESPACE();
namespace cohort::kernels::cpu {
namespace HWY_NAMESPACE {

// Vectors of float32 only, twice as many lanes as beside float64.
using FloatTag = hn::ScalableTag<float>;
// A vector of one lane: the first and last elements go by the same formulas.
using OneTag = hn::CappedTag<float, 1>;

HWY_INLINE int64_t FloatLanes() {
  return static_cast<int64_t>(hn::Lanes(FloatTag()));
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

template <Store kStore, typename V>
HWY_INLINE void StoreLanes(V value, float* to) {
  if constexpr (kStore == Store::kStreaming) {
    value.Stream(to);
  } else {
    value.Store(to);
  }
}

template <typename Rule, size_t kMask, Store kStore, typename D,
          size_t... slots>
HWY_INLINE void UpdateLanes(const typename Rule::Scalars& scalars,
                            const UpdateRun& run, int64_t i,
                            std::index_sequence<slots...>) {
  using V = Lane<D>;
  using Held = SlotLanes<V, Rule::kSlots, kMask>;
  Held held{{(Held::Kept(slots) ? V::Load(run.slots_in[slots] + i) : V())...}};
  const V w = Rule::Update(scalars, V::Load(run.weights_in + i),
                           V::Load(run.gradient + i), held);
  ((Held::Kept(slots)
        ? StoreLanes<kStore>(held[slots], run.slots_out[slots] + i)
        : void()),
   ...);
  StoreLanes<kStore>(w, run.weights_out + i);
}

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

// By value: with copies that no other code can reach, the compiler need not
// read them again after every store of a float.
template <typename Rule, size_t kMask>
void UpdateWith(const typename Rule::Scalars scalars, const UpdateRun run) {
  constexpr std::make_index_sequence<Rule::kSlots> kSlots;
  const int64_t lanes = FloatLanes();
  int64_t i = 0;
  std::optional<int64_t> before;
  if (run.streaming) before = BeforeAligned(run);
  if (before.has_value() && *before <= run.count) {
    for (; i < *before; ++i) {
      UpdateLanes<Rule, kMask, Store::kCached, OneTag>(scalars, run, i, kSlots);
    }
    for (; i + lanes <= run.count; i += lanes) {
      UpdateLanes<Rule, kMask, Store::kStreaming, FloatTag>(scalars, run, i,
                                                            kSlots);
    }
    hwy::FlushStream();
  }
  for (; i + lanes <= run.count; i += lanes) {
    UpdateLanes<Rule, kMask, Store::kCached, FloatTag>(scalars, run, i, kSlots);
  }
  for (; i < run.count; ++i) {
    UpdateLanes<Rule, kMask, Store::kCached, OneTag>(scalars, run, i, kSlots);
  }
}

// Finds the code for the slots that are there, from all down to those that are
// always kept, which are the first.
template <typename Rule, size_t kMask>
void UpdateKept(const RuleStep& step, const UpdateRun& run, size_t kept) {
  if constexpr (kMask >> Rule::kAlwaysKept != 0) {
    if (kept != kMask) {
      UpdateKept<Rule, kMask - (1 << Rule::kAlwaysKept)>(step, run, kept);
      return;
    }
  }
  typename Rule::Scalars scalars;
  std::memcpy(&scalars, step.scalars.data(), sizeof(scalars));
  UpdateWith<Rule, kMask>(scalars, run);
}

template <typename Rule>
void UpdateBy(const RuleStep& step, const UpdateRun& run) {
  size_t kept = 0;
  for (size_t k = 0; k != Rule::kSlots; ++k) {
    if (run.slots_in[k] != nullptr) kept |= size_t{1} << k;
  }
  UpdateKept<Rule, (1 << Rule::kSlots) - 1>(step, run, kept);
}

void UpdateHere(const RuleStep& step, const UpdateRun& run) {
  switch (step.rule) {
    case OptimizerKind::kAuto:
      return;
#define COHORT_OPTIMIZER(Name, name) \
  case OptimizerKind::k##Name:       \
    return UpdateBy<Name>(step, run);
#include "common/optimizers.inc"
  }
}

template <bool kAdaptive, typename D>
HWY_INLINE bool CompensateLanes(const CompensationStep& step,
                                const CompensationRun& run, int64_t i) {
  using V = Lane<D>;
  const V g = V::Load(run.gradient + i);
  const V square = g * g;
  V lambda = step.lambda;
  if constexpr (kAdaptive) {
    const V s = V(step.square_decay) * V::Load(run.square_in + i) +
                V(step.square_gain) * square;
    s.Store(run.square_out + i);
    lambda = lambda / Sqrt(s + V(step.epsilon));
  }
  const V moved = V::Load(run.weights_now + i) - V::Load(run.weights_read + i);
  const V out = g + lambda * square * moved;
  out.Store(run.gradient + i);
  return AllFinite(out);
}

template <bool kAdaptive>
bool CompensateWith(const CompensationStep step, const CompensationRun run) {
  const int64_t lanes = FloatLanes();
  bool finite = true;
  int64_t i = 0;
  for (; i + lanes <= run.count; i += lanes) {
    finite = CompensateLanes<kAdaptive, FloatTag>(step, run, i) && finite;
  }
  for (; i < run.count; ++i) {
    finite = CompensateLanes<kAdaptive, OneTag>(step, run, i) && finite;
  }
  return finite;
}

bool CompensateHere(const CompensationStep& step, const CompensationRun& run) {
  return run.square_in != nullptr ? CompensateWith<true>(step, run)
                                  : CompensateWith<false>(step, run);
}

template <typename D>
HWY_INLINE void ChangeLanes(const ChangeRun& run, int64_t i) {
  const D tag;
  const auto w = hn::LoadU(tag, run.weights_in + i);
  const auto u = hn::Add(hn::LoadU(tag, run.remainder_in + i),
                         hn::Sub(hn::LoadU(tag, run.weights + i), w));
  const auto halves = RoundToHalves(tag, u);
  // Through an array, because `change` has no alignment.
  uint16_t bits[hn::MaxLanes(D())];
  hn::StoreU(DemoteHalves(tag, halves), hn::Rebind<uint16_t, D>(), bits);
  std::memcpy(run.change + i * 2, bits, hn::Lanes(tag) * sizeof(uint16_t));
  const auto next = hn::Add(w, hn::BitCast(tag, hn::ShiftLeft<16>(halves)));
  hn::StoreU(next, tag, run.weights + i);
  hn::StoreU(hn::Sub(u, hn::Sub(next, w)), tag, run.remainder_out + i);
}

void RoundChangeHere(const ChangeRun& given) {
  const ChangeRun run = given;
  const int64_t lanes = FloatLanes();
  int64_t i = 0;
  for (; i + lanes <= run.count; i += lanes) ChangeLanes<FloatTag>(run, i);
  for (; i < run.count; ++i) ChangeLanes<OneTag>(run, i);
}

// Partial sums that every instruction set keeps alike.
constexpr int64_t kSums = 8;

double SumOfSquaresHere(absl::Span<const float> x) {
  // At most four lanes, so that two vectors fit into eight partial sums.
  const hn::CappedTag<double, 4> wide;
  const hn::Rebind<float, decltype(wide)> narrow;
  const auto lanes = static_cast<int64_t>(hn::Lanes(wide));
  const auto size = static_cast<int64_t>(x.size());
  const int64_t whole = size / kSums * kSums;
  double sums[kSums];
  for (int64_t at = 0; at < kSums; at += 2 * lanes) {
    auto s0 = hn::Zero(wide);
    auto s1 = hn::Zero(wide);
    for (int64_t i = at; i < whole; i += kSums) {
      const auto x0 = hn::PromoteTo(wide, hn::LoadU(narrow, x.data() + i));
      const auto x1 =
          hn::PromoteTo(wide, hn::LoadU(narrow, x.data() + i + lanes));
      s0 = hn::Add(s0, hn::Mul(x0, x0));
      s1 = hn::Add(s1, hn::Mul(x1, x1));
    }
    hn::StoreU(s0, wide, sums + at);
    hn::StoreU(s1, wide, sums + at + lanes);
  }
  for (int64_t i = whole; i < size; ++i) {
    const double value = x[static_cast<size_t>(i)];
    sums[i % kSums] += value * value;
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
         ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace cohort::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::kernels::cpu {

HWY_EXPORT(UpdateHere);
HWY_EXPORT(CompensateHere);
HWY_EXPORT(SumOfSquaresHere);
HWY_EXPORT(RoundChangeHere);

void Update(const RuleStep& step, const UpdateRun& run) {
  HWY_DYNAMIC_DISPATCH(UpdateHere)(step, run);
}

bool Compensate(const CompensationStep& step, const CompensationRun& run) {
  return HWY_DYNAMIC_DISPATCH(CompensateHere)(step, run);
}

void RoundChange(const ChangeRun& run) {
  HWY_DYNAMIC_DISPATCH(RoundChangeHere)(run);
}

double SumOfSquares(absl::Span<const float> x) {
  return HWY_DYNAMIC_DISPATCH(SumOfSquaresHere)(x);
}

}  // namespace cohort::kernels::cpu
#endif  // HWY_ONCE
