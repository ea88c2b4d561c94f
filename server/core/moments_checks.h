#pragma once

#include <vector>

#include "absl/status/status.h"
#include "common/model_layout.h"
#include "common/moments.h"

namespace cohort {

// More calls of one layer in one step than any model makes.
inline constexpr int32_t kCallsMax = 1 << 16;

// Errors: InvalidArgument naming the layer: no such layer, wrong number of
//   channels, call out of range, negative count, count beyond
//   limits::kMomentsCountMax.
absl::Status CheckCallMoments(const CallMoments& call,
                              const std::vector<BatchNormSpec>& layers);

// Errors: InvalidArgument, a negative M2.
absl::Status CheckSpread(const BatchNormSpec& layer, const Moments& moments);

}  // namespace cohort
