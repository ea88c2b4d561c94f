#pragma once

#include <cstdint>
#include <vector>

#include "common/ids.h"

namespace cohort {

enum class ReducePhase { kForward, kBackward };

// Identifies a rendezvous. Never inferred from the order of arrival.
struct ReduceKey {
  Version step;
  Attempt attempt;
  // Index into ModelLayout::batch_norms.
  int32_t layer = 0;
  // Counts the calls of this layer within the step.
  int32_t call = 0;
  ReducePhase phase = ReducePhase::kForward;

  friend auto operator<=>(const ReduceKey&, const ReduceKey&) = default;
};

// Moments of one rank, or of all, at one batch-norm call. Forward: `first` is
// the mean and `second` M2 = sum (x-mean)^2. Backward: `first` is sum dy and
// `second` sum dy*(x-mean). float64 [channels] each.
struct Moments {
  // Elements per channel.
  int64_t count = 0;
  std::vector<double> first;
  std::vector<double> second;
};

// Moments of one call: contributed to its rendezvous, or reported on closing if
// there is none.
struct CallMoments {
  int32_t layer = 0;
  int32_t call = 0;
  Moments moments;
};

}  // namespace cohort
