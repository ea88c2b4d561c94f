#include "server/core/moments_checks.h"

#include "absl/strings/str_cat.h"
#include "common/limits.h"

namespace cohort {

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

}  // namespace cohort
