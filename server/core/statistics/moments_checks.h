#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/model_layout.h"
#include "common/moments.h"

namespace cohort {

// Errors: InvalidArgument naming the layer: no such layer, wrong number of
//   channels, call out of range, negative count, count beyond
//   limits::kMomentsCountMax.
absl::Status CheckCallMoments(const CallMoments& call,
                              const std::vector<BatchNormSpec>& layers);

// The same check for a contribution to a rendezvous. A call of an unregistered
// layer has 1 to limits::kCallChannelsMax channels.
absl::Status CheckContribution(const CallPlace& place, const Moments& moments,
                               const std::vector<BatchNormSpec>& layers);

// `name` is that of the call.
// Errors: InvalidArgument, a negative M2.
absl::Status CheckSpread(const std::string& name, const Moments& moments);

// True if the numbers are usable. Forward: mean and variance are finite as
// float32, in which they are exported and in which workers normalise: float64
// holds far greater ones, which would become infinite on the way. Backward: the
// sums are finite.
bool IsUsable(ReducePhase phase, const Moments& moments);

// The first layer with a mean or a variance that is not finite as float32.
std::optional<int32_t> FirstOverflow(
    const std::vector<LayerStatistics>& statistics);

}  // namespace cohort
