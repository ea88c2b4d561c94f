#include "server/core/membership/initial_values.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

absl::Status CheckStatisticsValues(const BatchNormSpec& layer,
                                   const LayerStatistics& statistics) {
  for (size_t c = 0; c < statistics.mean.size(); ++c) {
    const double mean = statistics.mean[c];
    const double variance = statistics.variance[c];
    // As float32, in which they are exported. False for NaN.
    constexpr double kMax = std::numeric_limits<float>::max();
    if (std::abs(mean) <= kMax && variance >= 0 && variance <= kMax) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(layer.name, ": got the initial mean ", mean,
                     " and variance ", variance, " in channel ", c,
                     ", want values that are finite in float32 and a variance "
                     "of at least 0"));
  }
  const int64_t tracked = statistics.num_batches_tracked;
  if (tracked >= 0 && tracked <= limits::kBatchesTrackedMax) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(layer.name, ": got ", tracked,
                                                 " batches tracked, want 0 to ",
                                                 limits::kBatchesTrackedMax));
}

}  // namespace

absl::Status CheckRunPlan(const RunPlan& plan) {
  if (plan.own_data && (plan.train_samples != 0 || plan.test_samples != 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "run plan: got ", plan.train_samples, " train and ", plan.test_samples,
        " test samples with data of the workers' own, want 0 and 0"));
  }
  if ((plan.train_samples < 1 && !plan.own_data) || plan.test_samples < 0 ||
      std::max(plan.train_samples, plan.test_samples) >
          limits::kSplitSamplesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "run plan: got ", plan.train_samples, " train and ", plan.test_samples,
        " test samples, want 1 to ", limits::kSplitSamplesMax, " and 0 to ",
        limits::kSplitSamplesMax));
  }
  if (!(plan.loss_reference >= limits::kLossWeightMin &&
        plan.loss_reference <= limits::kLossWeightMax)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "run plan: got loss reference ", plan.loss_reference, ", want ",
        limits::kLossWeightMin, " to ", limits::kLossWeightMax));
  }
  return absl::OkStatus();
}

absl::Status CheckInitialValues(const ModelLayout& layout,
                                const Partition& partition,
                                absl::Span<const float> values) {
  const auto bad = std::find_if(values.begin(), values.end(), [](float value) {
    return !std::isfinite(value);
  });
  if (bad == values.end()) return absl::OkStatus();
  int64_t at = bad - values.begin();
  for (const Slice& slice : partition.slices) {
    if (at < slice.count) {
      return absl::InvalidArgumentError(absl::StrCat(
          layout.parameters[static_cast<size_t>(slice.parameter)].name,
          ": got the initial value ", *bad, " at element ", slice.offset + at,
          ", want finite values"));
    }
    at -= slice.count;
  }
  return absl::InvalidArgumentError(
      "got more values than the partition has elements");
}

absl::Status CheckInitialStatistics(
    const ModelLayout& layout, const std::vector<LayerStatistics>& statistics) {
  if (statistics.empty()) return absl::OkStatus();
  if (statistics.size() != layout.batch_norms.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "got initial statistics of ", statistics.size(),
        " batch-norm layers, want ", layout.batch_norms.size(), " or none"));
  }
  for (size_t i = 0; i < statistics.size(); ++i) {
    const BatchNormSpec& layer = layout.batch_norms[i];
    const auto channels = static_cast<size_t>(layer.channels);
    if (statistics[i].mean.size() != channels ||
        statistics[i].variance.size() != channels) {
      return absl::InvalidArgumentError(absl::StrCat(
          layer.name, ": got initial statistics of ", statistics[i].mean.size(),
          " and ", statistics[i].variance.size(), " channels, want ",
          channels));
    }
    COHORT_RETURN_IF_ERROR(CheckStatisticsValues(layer, statistics[i]));
  }
  return absl::OkStatus();
}

}  // namespace cohort
