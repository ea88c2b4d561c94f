#include "server/core/statistics/moments_checks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/limits.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

constexpr double kFloatMax = std::numeric_limits<float>::max();

// False for NaN. Without a branch or a division for each value: all
// contributions and sums pass here.
bool AllWithin(const std::vector<double>& values, double limit) {
  bool within = true;
  for (double value : values) within &= std::abs(value) <= limit;
  return within;
}

absl::Status CheckLayer(int32_t layer,
                        const std::vector<BatchNormSpec>& layers) {
  if (layer >= 0 && layer < static_cast<int32_t>(layers.size())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "moments: got layer ", layer, ", want below ", layers.size()));
}

absl::Status CheckNumbers(absl::string_view name, int32_t call,
                          int32_t calls_max, const Moments& m) {
  if (call < 0 || call > calls_max || m.count < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": got call ", call, " with count ", m.count,
        ", want a call of 0 to ", calls_max, " and a count of at least 0"));
  }
  if (m.count > limits::kMomentsCountMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": got call ", call, " with count ", m.count,
                     ", want at most ", limits::kMomentsCountMax));
  }
  return absl::OkStatus();
}

absl::Status CheckChannels(const BatchNormSpec& layer, const Moments& m) {
  const auto channels = static_cast<size_t>(layer.channels);
  if (m.first.size() == channels && m.second.size() == channels) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(layer.name, ": got moments of ", m.first.size(), " and ",
                   m.second.size(), " channels, want ", channels));
}

}  // namespace

absl::Status CheckCallMoments(const CallMoments& call,
                              const std::vector<BatchNormSpec>& layers) {
  COHORT_RETURN_IF_ERROR(CheckLayer(call.layer, layers));
  const BatchNormSpec& layer = layers[static_cast<size_t>(call.layer)];
  COHORT_RETURN_IF_ERROR(CheckChannels(layer, call.moments));
  // Through all parts of the step.
  constexpr int32_t kStepCallsMax = std::numeric_limits<int32_t>::max();
  return CheckNumbers(layer.name, call.call, kStepCallsMax, call.moments);
}

absl::Status CheckContribution(const CallPlace& place, const Moments& moments,
                               const std::vector<BatchNormSpec>& layers) {
  if (place.layer == -1 && !place.site.empty()) {
    const size_t channels = moments.first.size();
    if (moments.second.size() != channels || channels == 0 ||
        channels > static_cast<size_t>(limits::kCallChannelsMax)) {
      return absl::InvalidArgumentError(absl::StrCat(
          place.site, ": got moments of ", channels, " and ",
          moments.second.size(), " channels, want equally many, 1 to ",
          limits::kCallChannelsMax));
    }
    return CheckNumbers(place.site, place.call, limits::kCallsMax, moments);
  }
  COHORT_RETURN_IF_ERROR(CheckLayer(place.layer, layers));
  const BatchNormSpec& layer = layers[static_cast<size_t>(place.layer)];
  COHORT_RETURN_IF_ERROR(CheckChannels(layer, moments));
  return CheckNumbers(layer.name, place.call, limits::kCallsMax, moments);
}

absl::Status CheckSpread(const std::string& name, const Moments& moments) {
  for (double m2 : moments.second) {
    if (m2 < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": got a negative M2, ", m2, ", want 0 or more"));
    }
  }
  return absl::OkStatus();
}

bool IsUsable(ReducePhase phase, const Moments& moments) {
  if (phase == ReducePhase::kBackward) {
    constexpr double kMax = std::numeric_limits<double>::max();
    return AllWithin(moments.first, kMax) && AllWithin(moments.second, kMax);
  }
  const auto count = static_cast<double>(std::max<int64_t>(moments.count, 1));
  return AllWithin(moments.first, kFloatMax) &&
         AllWithin(moments.second, kFloatMax * count);
}

std::optional<int32_t> FirstOverflow(
    const std::vector<LayerStatistics>& statistics) {
  for (size_t i = 0; i < statistics.size(); ++i) {
    const LayerStatistics& layer = statistics[i];
    if (!AllWithin(layer.mean, kFloatMax) ||
        !AllWithin(layer.variance, kFloatMax)) {
      return static_cast<int32_t>(i);
    }
  }
  return std::nullopt;
}

}  // namespace cohort
