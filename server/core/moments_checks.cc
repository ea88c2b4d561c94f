#include "server/core/moments_checks.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/limits.h"

namespace cohort {
namespace {

// False for NaN.
bool FitsFloat(double value) {
  return std::abs(value) <= std::numeric_limits<float>::max();
}

}  // namespace

absl::Status CheckCallMoments(const CallMoments& call,
                              const std::vector<BatchNormSpec>& layers) {
  if (call.layer < 0 || call.layer >= static_cast<int32_t>(layers.size())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "moments: got layer ", call.layer, ", want below ", layers.size()));
  }
  const BatchNormSpec& layer = layers[static_cast<size_t>(call.layer)];
  const auto channels = static_cast<size_t>(layer.channels);
  const Moments& m = call.moments;
  if (m.first.size() != channels || m.second.size() != channels) {
    return absl::InvalidArgumentError(
        absl::StrCat(layer.name, ": got moments of ", m.first.size(), " and ",
                     m.second.size(), " channels, want ", channels));
  }
  if (call.call < 0 || call.call > kCallsMax || m.count < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        layer.name, ": got call ", call.call, " with count ", m.count,
        ", want a call of 0 to ", kCallsMax, " and a count of at least 0"));
  }
  if (m.count > limits::kMomentsCountMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(layer.name, ": got call ", call.call, " with count ",
                     m.count, ", want at most ", limits::kMomentsCountMax));
  }
  return absl::OkStatus();
}

absl::Status CheckSpread(const BatchNormSpec& layer, const Moments& moments) {
  for (double m2 : moments.second) {
    if (m2 < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          layer.name, ": got a negative M2, ", m2, ", want 0 or more"));
    }
  }
  return absl::OkStatus();
}

bool IsUsable(ReducePhase phase, const Moments& moments) {
  if (phase == ReducePhase::kBackward) {
    const auto finite = [](double v) { return std::isfinite(v); };
    return std::all_of(moments.first.begin(), moments.first.end(), finite) &&
           std::all_of(moments.second.begin(), moments.second.end(), finite);
  }
  const auto count = static_cast<double>(std::max<int64_t>(moments.count, 1));
  return std::all_of(moments.first.begin(), moments.first.end(), FitsFloat) &&
         std::all_of(moments.second.begin(), moments.second.end(),
                     [count](double m2) { return FitsFloat(m2 / count); });
}

std::optional<int32_t> FirstOverflow(
    const std::vector<LayerStatistics>& statistics) {
  for (size_t i = 0; i < statistics.size(); ++i) {
    const LayerStatistics& layer = statistics[i];
    if (!std::all_of(layer.mean.begin(), layer.mean.end(), FitsFloat) ||
        !std::all_of(layer.variance.begin(), layer.variance.end(), FitsFloat)) {
      return static_cast<int32_t>(i);
    }
  }
  return std::nullopt;
}

}  // namespace cohort
