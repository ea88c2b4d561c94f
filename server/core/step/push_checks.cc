#include "server/core/step/push_checks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/limits.h"
#include "common/status_macros.h"
#include "server/core/moments_checks.h"

namespace cohort {
namespace {

absl::Status CheckRates(const PushOpening& opening,
                        const OpeningBounds& bounds) {
  const std::vector<double>& rates = opening.learning_rates;
  if (rates.size() != bounds.rates) {
    return absl::InvalidArgumentError(absl::StrCat(
        "push of rank ", bounds.rank.value(), ": got ", rates.size(),
        " learning rates, want ", bounds.rates, " as registered"));
  }
  for (double rate : rates) {
    if (rate >= 0 && rate <= limits::kLearningRateMax) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "push of rank ", bounds.rank.value(), ": got learning rate ", rate,
        ", want 0 to ", limits::kLearningRateMax));
  }
  return absl::OkStatus();
}

bool IsMeasureName(absl::string_view name) {
  return !name.empty() &&
         name.size() <= static_cast<size_t>(limits::kMeasureNameMax) &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                  absl::StrContains("_-./", c);
         });
}

absl::Status CheckMeasures(const std::vector<Measure>& measures) {
  if (measures.size() > static_cast<size_t>(limits::kMeasuresMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat("closing: got ", measures.size(), " measures, want ",
                     "at most ", limits::kMeasuresMax));
  }
  for (size_t i = 0; i < measures.size(); ++i) {
    const Measure& measure = measures[i];
    if (!IsMeasureName(measure.name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "closing: got the measure '", absl::CHexEscape(measure.name),
          "', want 1 to ", limits::kMeasureNameMax,
          " letters, digits, _, -, . and /"));
    }
    if (i > 0 && measures[i - 1].name >= measure.name) {
      return absl::InvalidArgumentError(
          absl::StrCat("closing: got the measure ", measure.name, " after ",
                       measures[i - 1].name, ", want ascending names"));
    }
    if (!(measure.weight > 0 && measure.weight <= limits::kMeasureWeightMax)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "closing: got weight ", measure.weight, " of the measure ",
          measure.name, ", want above 0 and at most ",
          limits::kMeasureWeightMax));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckFrontEndState(const PushClosing& closing) {
  if (!closing.front_end_state.has_value()) return absl::OkStatus();
  const auto bytes = static_cast<int64_t>(closing.front_end_state->size());
  if (bytes <= limits::kFrontEndStateMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("closing: got a front-end state of ", bytes,
                   " bytes, want at most ", limits::kFrontEndStateMax));
}

}  // namespace

absl::Status CheckOpening(const PushOpening& opening,
                          const OpeningBounds& bounds) {
  if (opening.samples != bounds.samples.value_or(opening.samples) ||
      opening.samples < 0 || opening.samples > limits::kBatchSizeMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("push of rank ", bounds.rank.value(), ": got ",
                     opening.samples, " samples, want ",
                     bounds.samples.has_value()
                         ? absl::StrCat(*bounds.samples)
                         : absl::StrCat("0 to ", limits::kBatchSizeMax)));
  }
  COHORT_RETURN_IF_ERROR(CheckRates(opening, bounds));
  const Version read = opening.version;
  if (read < bounds.oldest || read > bounds.newest) {
    return absl::InvalidArgumentError(absl::StrCat(
        "push of rank ", bounds.rank.value(), ": got weights version ",
        read.value(), ", want ", bounds.oldest.value(),
        bounds.newest == bounds.oldest
            ? ""
            : absl::StrCat(" to ", bounds.newest.value())));
  }
  const double weight = opening.loss_weight;
  if (weight == 0 ||
      (weight >= limits::kLossWeightMin && weight <= limits::kLossWeightMax)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "push of rank ", bounds.rank.value(), ": got loss weight ", weight,
      ", want 0, or ", limits::kLossWeightMin, " to ", limits::kLossWeightMax));
}

absl::Status CheckGradient(const GradientMessage& message,
                           const std::vector<Partition>& partitions) {
  if (message.partition < 0 ||
      message.partition >= static_cast<int32_t>(partitions.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradient: got partition ", message.partition,
                     ", want below ", partitions.size()));
  }
  const Partition& partition =
      partitions[static_cast<size_t>(message.partition)];
  const int64_t wanted = partition.elements * BytesOf(message.type);
  if (!partition.trainable || message.size_bytes() != wanted) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gradient of partition ", message.partition, ": got ",
        message.size_bytes(), " bytes, want ",
        partition.trainable ? absl::StrCat(wanted) : "none (it is frozen)"));
  }
  std::vector<bool> absent(partition.slices.size());
  for (int32_t slice : message.absent_slices) {
    if (slice < 0 || slice >= static_cast<int32_t>(partition.slices.size()) ||
        absent[static_cast<size_t>(slice)]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "gradient of partition ", message.partition, ": got absent slice ",
          slice, ", want each at most once and below ",
          partition.slices.size()));
    }
    absent[static_cast<size_t>(slice)] = true;
  }
  return absl::OkStatus();
}

absl::Status CheckOpened(const Push& push, const GradientMessage& message) {
  if (push.opened()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("gradient of partition ", message.partition,
                   " arrived before the push was opened"));
}

absl::Status CheckClosing(const PushClosing& closing,
                          const std::vector<BatchNormSpec>& layers,
                          bool global) {
  if (closing.correct < 0 || closing.correct > closing.labels ||
      closing.labels > limits::kLabelsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("closing: got ", closing.correct, " of ", closing.labels,
                     " labels correct, want at most ", limits::kLabelsMax,
                     " labels and 0 to all of them correct"));
  }
  COHORT_RETURN_IF_ERROR(CheckFrontEndState(closing));
  COHORT_RETURN_IF_ERROR(CheckMeasures(closing.measures));
  if (closing.batch_norm_calls.size() != layers.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "closing: got call counts of ", closing.batch_norm_calls.size(),
        " batch-norm layers, want ", layers.size()));
  }
  int64_t calls = 0;
  for (int32_t count : closing.batch_norm_calls) {
    if (count < 0 || count > kCallsMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          "closing: got ", count, " calls, want 0 to ", kCallsMax));
    }
    calls += count;
  }
  const int64_t wanted = global ? 0 : calls;
  if (static_cast<int64_t>(closing.moments.size()) != wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat("closing: got moments of ", closing.moments.size(),
                     " batch-norm calls, want ", wanted));
  }
  for (size_t i = 0; i < closing.moments.size(); ++i) {
    const CallMoments& call = closing.moments[i];
    COHORT_RETURN_IF_ERROR(CheckCallMoments(call, layers));
    COHORT_RETURN_IF_ERROR(
        CheckSpread(layers[static_cast<size_t>(call.layer)], call.moments));
    // Ascending from call 0 of each layer, so that ranks line up by position.
    const bool follows =
        call.call == 0 ? i == 0 || closing.moments[i - 1].layer < call.layer
                       : i > 0 && closing.moments[i - 1].layer == call.layer &&
                             closing.moments[i - 1].call == call.call - 1;
    if (!follows ||
        call.call >=
            closing.batch_norm_calls[static_cast<size_t>(call.layer)]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "closing: moments of ", layers[static_cast<size_t>(call.layer)].name,
          " call ", call.call, " are out of order"));
    }
  }
  return absl::OkStatus();
}

std::vector<std::string> TakeNonfiniteMeasures(PushClosing& closing) {
  std::vector<std::string> taken;
  std::erase_if(closing.measures, [&taken](const Measure& measure) {
    // Both are false for NaN.
    if (std::abs(measure.sum) <= limits::kMeasureSumMax &&
        std::isfinite(measure.sum / measure.weight)) {
      return false;
    }
    taken.push_back(measure.name);
    return true;
  });
  return taken;
}

}  // namespace cohort
