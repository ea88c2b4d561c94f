#include "worker/batch_norm/host_batch_norm.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace cohort {
namespace {

Moments Zeros(const kernels::BatchShape& shape) {
  const auto channels = static_cast<size_t>(shape.channels);
  return {.count = shape.count(),
          .first = std::vector<double>(channels),
          .second = std::vector<double>(channels)};
}

}  // namespace

BatchStatistics StatisticsOf(Moments all, double epsilon) {
  BatchStatistics by{.mean = std::move(all.first), .count = all.count};
  // If no member has samples, there is nothing to normalise; the divisor only
  // keeps 0/0 out of the saved values.
  const auto count = static_cast<double>(std::max<int64_t>(all.count, 1));
  for (const double m2 : all.second) {
    by.variance.push_back(m2 / count);
    by.invstd.push_back(1.0 / std::sqrt(m2 / count + epsilon));
  }
  return by;
}

Moments LocalMoments(const kernels::Backend& backend,
                     kernels::MomentsArgs args) {
  Moments local = Zeros(args.shape);
  args.mean = local.first.data();
  args.m2 = local.second.data();
  backend.Moments(args);
  return local;
}

Moments BackwardSums(const kernels::Backend& backend,
                     kernels::BackwardReduceArgs args) {
  Moments local = Zeros(args.shape);
  args.sum_dy = local.first.data();
  args.sum_dy_xmu = local.second.data();
  backend.BackwardReduce(args);
  return local;
}

std::vector<double> ScaleGradient(const Moments& sums,
                                  const BatchStatistics& by) {
  std::vector<double> gradient = sums.second;
  for (size_t c = 0; c < gradient.size(); ++c) gradient[c] *= by.invstd[c];
  return gradient;
}

}  // namespace cohort
