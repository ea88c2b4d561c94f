#pragma once

#include <cstdint>
#include <string>

#include "server/core/settings/options.h"

namespace cohort {

// The decision about one push; it holds for its gradient and its moments.
struct StalenessDecision {
  bool drop = false;
  // In (0, 1]: multiplies the gradient, and the weight of the moments.
  double weight = 1;
  // Delay compensation of the gradient; moments are kept as they are.
  bool compensate = false;
  // Why it is dropped.
  std::string reason;
};

// `staleness_versions` is the version at apply minus the version read.
//
// Source: scale: Zhang et al., "Staleness-aware Async-SGD", 2015, equation 4,
//   with a free allowance t0, since W equally fast workers are W-1 versions
//   apart without any delay; compensate: Zheng et al., "Asynchronous
//   Stochastic Gradient Descent with Delay Compensation", 2017, equation 10.
StalenessDecision DecideStaleness(const StalenessOptions& options,
                                  int64_t staleness_versions, int32_t workers);

}  // namespace cohort
