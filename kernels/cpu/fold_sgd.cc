// The fold of all contributors' gradients and the SGD update, in one pass.
//
// Without MulAdd and with lanes that never mix: the bits are those of plain
// loops on every instruction set.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

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

enum class Rule { kPlain, kMomentum, kNesterov };

// Applies the folded `sum` to the vector of elements at `i`. Lanes of the
// answer are true where the folded gradient is finite.
template <Rule kRule>
HWY_INLINE hn::Mask<NarrowTag> UpdateVector(const SgdStep& step,
                                            const SgdRun& run, int64_t i,
                                            Wide sum) {
  const NarrowTag tag;
  const Narrow folded =
      hn::Mul(hn::Set(tag, step.gradient_scale), RoundToFloat(sum));
  const Narrow w = hn::LoadU(tag, run.weights_in + i);
  const Narrow g = hn::Add(folded, hn::Mul(hn::Set(tag, step.weight_decay), w));
  Narrow change = g;
  if constexpr (kRule != Rule::kPlain) {
    const Narrow momentum = hn::Set(tag, step.momentum);
    const Narrow v =
        hn::Add(hn::Mul(momentum, hn::LoadU(tag, run.velocity_in + i)), g);
    hn::StoreU(v, tag, run.velocity_out + i);
    change = kRule == Rule::kNesterov ? hn::Add(g, hn::Mul(momentum, v)) : v;
  }
  const Narrow rate = hn::Set(tag, step.learning_rate);
  hn::StoreU(hn::Sub(w, hn::Mul(rate, change)), tag, run.weights_out + i);
  return hn::IsFinite(folded);
}

// The same for one element, and the same bits.
template <Rule kRule>
HWY_INLINE bool UpdateElement(const SgdStep& step, const SgdRun& run,
                              int64_t i) {
  double sum = 0;
  for (const std::byte* gradient : run.gradients) {
    float value;
    std::memcpy(&value, gradient + i * sizeof(float), sizeof(value));
    sum += static_cast<double>(value);
  }
  const float folded = step.gradient_scale * static_cast<float>(sum);
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

// By value: with copies that nobody else can reach, the compiler need not
// read the settings again after every store of a float.
template <Rule kRule>
bool FoldWith(const SgdStep step, const SgdRun run) {
  const WideTag wide;
  const NarrowTag narrow;
  const int64_t lanes = LaneCount();
  const int64_t lane_bytes = lanes * static_cast<int64_t>(sizeof(float));
  int64_t i = 0;
  for (; i + 4 * lanes <= run.count; i += 4 * lanes) {
    Wide s0 = hn::Zero(wide), s1 = s0, s2 = s0, s3 = s0;
    for (const std::byte* gradient : run.gradients) {
      const std::byte* from = gradient + i * sizeof(float);
      s0 = hn::Add(s0, LoadUnalignedFloats(from));
      s1 = hn::Add(s1, LoadUnalignedFloats(from + lane_bytes));
      s2 = hn::Add(s2, LoadUnalignedFloats(from + 2 * lane_bytes));
      s3 = hn::Add(s3, LoadUnalignedFloats(from + 3 * lane_bytes));
    }
    const auto finite01 =
        hn::And(UpdateVector<kRule>(step, run, i, s0),
                UpdateVector<kRule>(step, run, i + lanes, s1));
    const auto finite23 =
        hn::And(UpdateVector<kRule>(step, run, i + 2 * lanes, s2),
                UpdateVector<kRule>(step, run, i + 3 * lanes, s3));
    if (!hn::AllTrue(narrow, hn::And(finite01, finite23))) return false;
  }
  for (; i < run.count; ++i) {
    if (!UpdateElement<kRule>(step, run, i)) return false;
  }
  return true;
}

bool FoldSgdHere(const SgdStep& step, const SgdRun& run) {
  if (step.momentum == 0) return FoldWith<Rule::kPlain>(step, run);
  if (step.nesterov) return FoldWith<Rule::kNesterov>(step, run);
  return FoldWith<Rule::kMomentum>(step, run);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace cohort::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::kernels::cpu {

HWY_EXPORT(FoldSgdHere);

bool FoldSgd(const SgdStep& step, const SgdRun& run) {
  return HWY_DYNAMIC_DISPATCH(FoldSgdHere)(step, run);
}

}  // namespace cohort::kernels::cpu
#endif  // HWY_ONCE
