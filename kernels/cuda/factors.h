#pragma once

#include <cstdint>

#include "kernels/batch_norm_args.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/packet.h"
#include "kernels/data_type.h"

// A channel's factors for elementwise arithmetic, in float32.
//
// A mean is split into the nearest float32 and what is left of it. x - near is
// exact where it matters (x within a factor 2 of it) and the small remainder
// joins the constant term, in float64: nothing of the size of the mean itself
// is folded into that term, where it would cancel.
namespace cohort::kernels::cuda {

// y = (x - near) * scale + shift.
struct ForwardFactors {
  float near;
  float scale;
  float shift;
};

template <typename Args>
COHORT_DEVICE ForwardFactors ForwardFactorsOf(const Args& args,
                                              int64_t channel) {
  const double mean = args.mean[channel];
  const double scale =
      ReadParameter(args.parameter_type, args.gamma, channel, 1) *
      args.invstd[channel];
  const float near = static_cast<float>(mean);
  const double beta = ReadParameter(args.parameter_type, args.beta, channel, 0);
  return {near, static_cast<float>(scale),
          static_cast<float>(beta - (mean - near) * scale)};
}

// The activation before anything is added. Normalize and both passes backwards
// use this one, so that a recomputed mask is that of the forward pass.
COHORT_DEVICE float Activation(float x, const ForwardFactors& f) {
  return TimesPlus(Minus(x, f.near), f.scale, f.shift);
}

// dx = dz * scale + (x - near) * slope + shift.
struct BackwardFactors {
  float scale;
  float slope;
  float shift;
};

// dx = gamma * invstd * (dz - S1/N - (x-mean) * invstd^2 * S2/N), multiplied
// out. Frozen statistics leave dz * scale.
COHORT_DEVICE BackwardFactors
BackwardFactorsOf(const BackwardElementwiseArgs& args, int64_t channel) {
  const double invstd = args.invstd[channel];
  const double scale =
      ReadParameter(args.parameter_type, args.gamma, channel, 1) * invstd;
  if (args.sum_dy == nullptr) return {static_cast<float>(scale), 0, 0};
  const double n = static_cast<double>(args.total_count);
  const double slope =
      -scale * (invstd * invstd * (args.sum_dy_xmu[channel] / n));
  const double mean = args.mean[channel];
  const double left = mean - static_cast<float>(mean);
  return {
      static_cast<float>(scale), static_cast<float>(slope),
      static_cast<float>(-scale * (args.sum_dy[channel] / n) - slope * left)};
}

// The largest float32 that becomes 0 in T: kRoundsToZero of what is float32
// already.
template <typename T>
inline constexpr float kFloatRoundsToZero = 0;
template <>
inline constexpr float kFloatRoundsToZero<Float16> = 0x1p-25F;
template <>
inline constexpr float kFloatRoundsToZero<BFloat16> = 0x1p-134F;

// Whether a ReLU passes what was `activation` before it was rounded to T. NaN
// passes.
template <typename T>
COHORT_DEVICE bool Passes(float activation) {
  constexpr float kZeroBelow = kFloatRoundsToZero<T>;
  return !(activation <= kZeroBelow);
}

}  // namespace cohort::kernels::cuda
