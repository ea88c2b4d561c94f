#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/backend.h"
#include "kernels/data_type.h"

namespace cohort::kernels {

// A channel's factors for the elementwise kernels, in float64. mean*scale is
// not folded into `beta`: it would cancel where |mean| is far above the
// deviation.
struct ChannelFactors {
  double mean = 0;
  // gamma * invstd.
  double scale = 1;
  double beta = 0;
  // Backward only: S1/N and invstd^2 * S2/N.
  double dy_mean = 0;
  double slope = 0;
};

// These fix the order of operations, so every backend that follows it without
// contraction gives the same bits.
inline double NormalizeOne(double x, const ChannelFactors& f) {
  return (x - f.mean) * f.scale + f.beta;
}

inline double BackwardOne(double x, double dy, const ChannelFactors& f) {
  return ((dy - f.dy_mean) - (x - f.mean) * f.slope) * f.scale;
}

// Keeps a NaN, which `value > 0 ? value : 0` would not.
inline double ReluOne(double value) { return value <= 0 ? 0 : value; }

// dz: dy where the activation `value`, not yet rounded to T, passed the ReLU.
template <typename T>
double MaskOne(double value, double dy) {
  return value <= kRoundsToZero<T> ? 0 : dy;
}

// Elements of a parameter as float64; `absent` for each if it is null.
inline std::vector<double> ParameterValues(DataType type, const void* values,
                                           int64_t channels, double absent) {
  std::vector<double> wide(channels, absent);
  if (values == nullptr) return wide;
  VisitType(type, [&]<typename T>(std::type_identity<T>) {
    const T* from = static_cast<const T*>(values);
    for (int64_t c = 0; c < channels; ++c) {
      wide[c] = static_cast<double>(from[c]);
    }
  });
  return wide;
}

// Factors of all channels for NormalizeOne. `Args` is of any kernel that has
// gamma and beta.
template <typename Args>
std::vector<ChannelFactors> NormalizeFactors(const Args& args) {
  const int64_t channels = args.shape.channels;
  const std::vector<double> gamma =
      ParameterValues(args.parameter_type, args.gamma, channels, 1);
  const std::vector<double> beta =
      ParameterValues(args.parameter_type, args.beta, channels, 0);
  std::vector<ChannelFactors> factors(channels);
  for (int64_t c = 0; c < channels; ++c) {
    factors[c].mean = args.mean[c];
    factors[c].scale = gamma[c] * args.invstd[c];
    factors[c].beta = beta[c];
  }
  return factors;
}

// Requires total_count > 0 unless the sums are null.
inline std::vector<ChannelFactors> BackwardFactors(
    const BackwardElementwiseArgs& args) {
  std::vector<ChannelFactors> factors = NormalizeFactors(args);
  if (args.sum_dy == nullptr) return factors;
  const double n = static_cast<double>(args.total_count);
  for (int64_t c = 0; c < args.shape.channels; ++c) {
    const double invstd = args.invstd[c];
    factors[c].dy_mean = args.sum_dy[c] / n;
    factors[c].slope = invstd * invstd * (args.sum_dy_xmu[c] / n);
  }
  return factors;
}

}  // namespace cohort::kernels
