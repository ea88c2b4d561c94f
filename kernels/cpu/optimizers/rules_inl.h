// Lanes of float32 as a number that formulas are written in, and the rules of
// optimizers.inc in these formulas. Each is in a separate file, included here
// inside the namespace of the instruction set, which is why they have no guard.
//
// A rule is a struct with
//   kSlots, kAlwaysKept    number of its slots, and of those that it cannot do
//                          without, which are the first;
//   Describe()             an OptimizerRule, without kind and step;
//   Scalars, At(inputs)    what an update of a slice needs, as float32;
//   Update(scalars, w, g, slot)
//                          moves slot[k] on, and returns the new weights.
//                          slot.Kept(k): slot k is there, a constant.
#if defined(COHORT_KERNELS_CPU_OPTIMIZERS_RULES_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef COHORT_KERNELS_CPU_OPTIMIZERS_RULES_INL_H_
#undef COHORT_KERNELS_CPU_OPTIMIZERS_RULES_INL_H_
#else
#define COHORT_KERNELS_CPU_OPTIMIZERS_RULES_INL_H_
#endif

#include <cmath>
#include <cstddef>

#include "common/optimizers.h"
#include "hwy/highway.h"
#include "kernels/optimizer_rules.h"

HWY_BEFORE_NAMESPACE();
namespace cohort::kernels::cpu {
namespace HWY_NAMESPACE {

// Without MulAdd, as in all kernels. Not for vectors without a fixed size, as
// SVE has them: no class can hold these.
template <typename D>
class Lane {
 public:
  using Vector = hwy::HWY_NAMESPACE::Vec<D>;

  HWY_INLINE Lane() : Lane(0.0f) {}
  HWY_INLINE Lane(Vector v) : v_(v) {}  // NOLINT: a number
  HWY_INLINE Lane(float all)            // NOLINT: a number
      : v_(hwy::HWY_NAMESPACE::Set(D(), all)) {}

  static HWY_INLINE Lane Load(const float* from) {
    return hwy::HWY_NAMESPACE::LoadU(D(), from);
  }
  HWY_INLINE void Store(float* to) const {
    hwy::HWY_NAMESPACE::StoreU(v_, D(), to);
  }
  // Past the caches, to an aligned vector.
  HWY_INLINE void Stream(float* to) const {
    hwy::HWY_NAMESPACE::Stream(v_, D(), to);
  }

  friend HWY_INLINE Lane operator+(Lane a, Lane b) {
    return hwy::HWY_NAMESPACE::Add(a.v_, b.v_);
  }
  friend HWY_INLINE Lane operator-(Lane a, Lane b) {
    return hwy::HWY_NAMESPACE::Sub(a.v_, b.v_);
  }
  friend HWY_INLINE Lane operator*(Lane a, Lane b) {
    return hwy::HWY_NAMESPACE::Mul(a.v_, b.v_);
  }
  friend HWY_INLINE Lane operator/(Lane a, Lane b) {
    return hwy::HWY_NAMESPACE::Div(a.v_, b.v_);
  }
  friend HWY_INLINE Lane Sqrt(Lane a) { return hwy::HWY_NAMESPACE::Sqrt(a.v_); }
  friend HWY_INLINE Lane Abs(Lane a) { return hwy::HWY_NAMESPACE::Abs(a.v_); }

  // a > b ? yes : no, by lane.
  friend HWY_INLINE Lane IfGreater(Lane a, Lane b, Lane yes, Lane no) {
    return hwy::HWY_NAMESPACE::IfThenElse(hwy::HWY_NAMESPACE::Gt(a.v_, b.v_),
                                          yes.v_, no.v_);
  }
  // With a NaN it is b on every instruction set, which Highway's is not.
  friend HWY_INLINE Lane Max(Lane a, Lane b) { return IfGreater(a, b, a, b); }
  friend HWY_INLINE Lane Min(Lane a, Lane b) { return IfGreater(b, a, a, b); }
  // -1, 0 or 1.
  friend HWY_INLINE Lane Sign(Lane a) {
    const Lane zero;
    return IfGreater(a, zero, 1.0f, IfGreater(zero, a, -1.0f, zero));
  }
  friend HWY_INLINE bool AllFinite(Lane a) {
    return hwy::HWY_NAMESPACE::AllTrue(D(), hwy::HWY_NAMESPACE::IsFinite(a.v_));
  }
  friend HWY_INLINE bool AllFinite(Lane a, Lane b) {
    return hwy::HWY_NAMESPACE::AllTrue(
        D(), hwy::HWY_NAMESPACE::And(hwy::HWY_NAMESPACE::IsFinite(a.v_),
                                     hwy::HWY_NAMESPACE::IsFinite(b.v_)));
  }

 private:
  Vector v_;
};

#include "kernels/cpu/optimizers/adadelta.inc"
#include "kernels/cpu/optimizers/adagrad.inc"
#include "kernels/cpu/optimizers/adam.inc"
#include "kernels/cpu/optimizers/adamax.inc"
#include "kernels/cpu/optimizers/dampened.inc"
#include "kernels/cpu/optimizers/lamb.inc"
#include "kernels/cpu/optimizers/lion.inc"
#include "kernels/cpu/optimizers/nadam.inc"
#include "kernels/cpu/optimizers/radam.inc"
#include "kernels/cpu/optimizers/rmsprop.inc"
#include "kernels/cpu/optimizers/rprop.inc"
#include "kernels/cpu/optimizers/sgd.inc"

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace cohort::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif  // COHORT_KERNELS_CPU_OPTIMIZERS_RULES_INL_H_
