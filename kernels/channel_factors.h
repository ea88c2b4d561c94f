#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"

namespace cohort::kernels {

// What the elementwise kernels need of one channel, in float64. mean*scale is
// not folded into `shift`: it would cancel where |mean| is far above the
// deviation.
struct ChannelFactors {
  double mean = 0;
  // gamma * invstd.
  double scale = 1;
  // Forward: beta. Backward: S1/N.
  double shift = 0;
  // Backward: invstd^2 * S2/N.
  double slope = 0;
};

// These two fix the order of operations, so every backend that follows it
// without contraction gives the same bits.
inline double NormalizeOne(double x, const ChannelFactors& f) {
  return (x - f.mean) * f.scale + f.shift;
}

inline double BackwardOne(double x, double dy, const ChannelFactors& f) {
  return ((dy - f.shift) - (x - f.mean) * f.slope) * f.scale;
}

// Factors of all channels. T is the type that args.type names.
template <typename T>
std::vector<ChannelFactors> NormalizeFactors(const NormalizeArgs& args) {
  const T* gamma = static_cast<const T*>(args.gamma);
  const T* beta = static_cast<const T*>(args.beta);
  std::vector<ChannelFactors> factors(args.shape.channels);
  for (int64_t c = 0; c < args.shape.channels; ++c) {
    ChannelFactors& f = factors[c];
    f.mean = args.mean[c];
    f.scale = gamma == nullptr ? args.invstd[c] : gamma[c] * args.invstd[c];
    f.shift = beta == nullptr ? 0 : beta[c];
  }
  return factors;
}

// Requires total_count > 0.
template <typename T>
std::vector<ChannelFactors> BackwardFactors(
    const BackwardElementwiseArgs& args) {
  const T* gamma = static_cast<const T*>(args.gamma);
  const double n = static_cast<double>(args.total_count);
  std::vector<ChannelFactors> factors(args.shape.channels);
  for (int64_t c = 0; c < args.shape.channels; ++c) {
    ChannelFactors& f = factors[c];
    const double invstd = args.invstd[c];
    f.mean = args.mean[c];
    f.scale = gamma == nullptr ? invstd : gamma[c] * invstd;
    f.shift = args.sum_dy[c] / n;
    f.slope = invstd * invstd * (args.sum_dy_xmu[c] / n);
  }
  return factors;
}

}  // namespace cohort::kernels
