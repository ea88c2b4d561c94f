#pragma once

#include <cstdint>
#include <optional>
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

// Whether the numbers can be used. Forward: mean and variance are finite as
// float32, in which they are exported and in which workers normalise: float64
// holds far greater ones, which would become infinite on the way. Backward: the
// sums are finite.
bool IsUsable(ReducePhase phase, const Moments& moments);

// The first layer with a mean or a variance that is not finite as float32.
std::optional<int32_t> FirstOverflow(
    const std::vector<LayerStatistics>& statistics);

}  // namespace cohort
