// Computations on a folded gradient before an update, and on the weights after
// it.
//
// Without MulAdd, and with partial sums by position: the bits are those of
// plain loops on every instruction set.

#include <cstddef>
#include <cstdint>
#include <cstring>

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

HWY_INLINE int64_t FloatLanes() {
  return static_cast<int64_t>(hn::Lanes(FloatTag()));
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

HWY_EXPORT(CompensateHere);
HWY_EXPORT(SumOfSquaresHere);
HWY_EXPORT(RoundChangeHere);

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
