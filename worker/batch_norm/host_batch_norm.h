#pragma once

#include <cstdint>
#include <vector>

#include "common/moments.h"
#include "kernels/backend.h"
#include "kernels/batch_norm_args.h"

// Batch norm of one call over host memory, without its rendezvous; for both
// front-ends, so that they have the same bits.
namespace cohort {

// What one call is normalised by, float64, [channels] each.
struct BatchStatistics {
  std::vector<double> mean;
  // 0 if no member has samples.
  std::vector<double> variance;
  // 1 / sqrt(variance + epsilon).
  std::vector<double> invstd;
  // Elements per channel of all members.
  int64_t count = 0;
};

// From the moments of all members.
BatchStatistics StatisticsOf(Moments all, double epsilon);

// Moments of the local batch; zeros if it is empty. The outputs of `args` are
// set here.
Moments LocalMoments(const kernels::Backend& backend,
                     kernels::MomentsArgs args);
// Sums of the backward pass over the local batch; zeros if it is empty. The
// outputs of `args` are set here.
Moments BackwardSums(const kernels::Backend& backend,
                     kernels::BackwardReduceArgs args);

// The gradient of the scale, from these sums. That of the shift is their first.
std::vector<double> ScaleGradient(const Moments& sums,
                                  const BatchStatistics& by);

}  // namespace cohort
