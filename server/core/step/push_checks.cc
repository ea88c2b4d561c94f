#include "server/core/step/push_checks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/limits.h"
#include "common/status_macros.h"
#include "server/core/statistics/moments_checks.h"

namespace cohort {
namespace {

absl::Status CheckRates(const PushOpening& opening,
                        const OpeningBounds& bounds) {
  const std::vector<double>& rates = opening.learning_rates;
  if (rates.empty() && !bounds.needs_rates) return absl::OkStatus();
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

absl::Status CheckWrite(const StatisticsWrite& write,
                        const BatchNormSpec& layer, size_t calls) {
  const auto channels = static_cast<size_t>(layer.channels);
  const LayerStatistics& values = write.values;
  const auto fits = [](double value) {
    return std::isfinite(static_cast<float>(value)) &&
           static_cast<double>(static_cast<float>(value)) == value;
  };
  if (write.after_calls < 0 || static_cast<size_t>(write.after_calls) > calls ||
      values.mean.size() != channels || values.variance.size() != channels ||
      !std::all_of(values.mean.begin(), values.mean.end(), fits) ||
      !std::all_of(values.variance.begin(), values.variance.end(), fits)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "closing: ", layer.name, ": got written statistics of ",
        values.mean.size(), " and ", values.variance.size(),
        " channels after call ", write.after_calls, ", want ", channels,
        " finite float32 numbers each, after 0 to ", calls, " calls"));
  }
  // No checkpoint, and no worker, could read a version with others.
  if (values.num_batches_tracked < 0 ||
      values.num_batches_tracked > limits::kBatchesTrackedMax ||
      std::any_of(values.variance.begin(), values.variance.end(),
                  [](double variance) { return variance < 0; })) {
    return absl::InvalidArgumentError(absl::StrCat(
        "closing: ", layer.name, ": got written statistics with ",
        values.num_batches_tracked,
        " batches tracked, or a negative variance, want 0 to ",
        limits::kBatchesTrackedMax, " batches and variances of at least 0"));
  }
  return absl::OkStatus();
}

absl::Status CheckLayerChanges(const LayerChanges& changes,
                               const BatchNormSpec& layer) {
  for (const TrainingCall& call : changes.calls) {
    const double momentum = call.momentum.value_or(0);
    if (momentum >= 0 && momentum <= 1 && std::isfinite(call.epsilon)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "closing: ", layer.name, ": got momentum ", momentum, " and epsilon ",
        call.epsilon, ", want a momentum of 0 to 1 and a finite epsilon"));
  }
  const std::vector<StatisticsWrite>& writes = changes.writes;
  for (size_t i = 0; i < writes.size(); ++i) {
    COHORT_RETURN_IF_ERROR(CheckWrite(writes[i], layer, changes.calls.size()));
    if (i == 0 || writes[i - 1].after_calls < writes[i].after_calls) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "closing: ", layer.name, ": written statistics are out of order"));
  }
  const std::vector<int32_t>& reads = changes.reads;
  const bool ascending =
      std::adjacent_find(reads.begin(), reads.end(), std::greater_equal<>()) ==
      reads.end();
  if (ascending && (reads.empty() ||
                    (reads.front() >= 0 && static_cast<size_t>(reads.back()) <=
                                               changes.calls.size()))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "closing: ", layer.name, ": got reads that are not ascending from 0 to ",
      changes.calls.size(), " calls"));
}

absl::Status CheckChanges(const std::vector<LayerChanges>& changes,
                          const std::vector<BatchNormSpec>& layers) {
  int32_t last = -1;
  size_t calls = 0;
  for (const LayerChanges& layer : changes) {
    if (layer.layer <= last ||
        static_cast<size_t>(layer.layer) >= layers.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "closing: got changes of layer ", layer.layer, " after layer ", last,
          ", want ascending layers below ", layers.size()));
    }
    last = layer.layer;
    calls += layer.calls.size();
    COHORT_RETURN_IF_ERROR(
        CheckLayerChanges(layer, layers[static_cast<size_t>(last)]));
  }
  if (calls <= static_cast<size_t>(limits::kCallsMax)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("closing: got ", calls, " training calls, want at most ",
                   limits::kCallsMax));
}

// The calls of each layer, all parts together. `calls` has one entry for each
// part and layer.
absl::StatusOr<std::vector<int64_t>> CallsByLayer(
    const std::vector<int32_t>& calls,
    const std::vector<BatchNormSpec>& layers) {
  std::vector<int64_t> by_layer(layers.size());
  if (layers.empty() ? !calls.empty()
                     : calls.empty() || calls.size() % layers.size() != 0 ||
                           calls.size() / layers.size() >
                               static_cast<size_t>(limits::kStepPartsMax)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "closing: got call counts of ", calls.size(),
        " batch-norm layers, want ", layers.size(), " for each part"));
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    if (calls[i] < 0 || calls[i] > limits::kCallsMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          "closing: got ", calls[i], " calls, want 0 to ", limits::kCallsMax));
    }
    by_layer[i % layers.size()] += calls[i];
  }
  return by_layer;
}

absl::Status CheckContributions(const PushClosing& closing, bool global) {
  if (closing.contributions >= 0 && (global || closing.contributions == 0)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "closing: got ", closing.contributions, " contributions, want ",
      global ? "at least 0" : "0 without a rendezvous"));
}

absl::Status CheckLocalSteps(const PushClosing& closing,
                             const std::vector<BatchNormSpec>& layers,
                             bool local_steps) {
  if (local_steps && !closing.changes.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "closing: got changes of ",
        layers[static_cast<size_t>(closing.changes.front().layer)].name,
        ", want none with local steps: the layers keep their settings"));
  }
  for (const CallMoments& call : closing.moments) {
    if ((call.updates > 0) == local_steps) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "closing: got moments of ", call.updates, " updates of layer ",
        call.layer, ", want ",
        local_steps ? "those of all its calls together" : "single calls"));
  }
  return absl::OkStatus();
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
  for (const double weight : {opening.loss_weight, opening.GradientWeight()}) {
    if (weight == 0 || (weight >= limits::kLossWeightMin &&
                        weight <= limits::kLossWeightMax)) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("push of rank ", bounds.rank.value(), ": got weight ",
                     weight, ", want 0, or ", limits::kLossWeightMin, " to ",
                     limits::kLossWeightMax));
  }
  if ((opening.loss_weight == 0) != (opening.GradientWeight() == 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("push of rank ", bounds.rank.value(), ": got loss weight ",
                     opening.loss_weight, " and gradient weight ",
                     opening.GradientWeight(), ", want both 0 or neither"));
  }
  return absl::OkStatus();
}

absl::Status CheckGradient(const GradientArrival& gradient,
                           const std::vector<Partition>& partitions) {
  if (gradient.partition < 0 ||
      gradient.partition >= static_cast<int32_t>(partitions.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradient: got partition ", gradient.partition,
                     ", want below ", partitions.size()));
  }
  const Partition& partition =
      partitions[static_cast<size_t>(gradient.partition)];
  // A partition of which the push has nothing takes no room.
  const bool empty = gradient.bytes == 0 &&
                     gradient.absent_slices.size() == partition.slices.size();
  const int64_t wanted = partition.elements * BytesOf(gradient.type);
  if (!partition.trainable || (gradient.bytes != wanted && !empty)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gradient of partition ", gradient.partition, ": got ", gradient.bytes,
        " bytes, want ",
        partition.trainable ? absl::StrCat(wanted) : "none (it is frozen)"));
  }
  std::vector<bool> absent(partition.slices.size());
  for (int32_t slice : gradient.absent_slices) {
    if (slice < 0 || slice >= static_cast<int32_t>(partition.slices.size()) ||
        absent[static_cast<size_t>(slice)]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "gradient of partition ", gradient.partition, ": got absent slice ",
          slice, ", want each at most once and below ",
          partition.slices.size()));
    }
    absent[static_cast<size_t>(slice)] = true;
  }
  return absl::OkStatus();
}

absl::Status CheckOpened(const ArrivedPush& push, const PushKey& key,
                         const GradientArrival& gradient) {
  if (push.opened() && push.key() == key) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("gradient of partition ", gradient.partition,
                   " arrived before the push was opened"));
}

absl::Status CheckClosing(const PushClosing& closing,
                          const std::vector<BatchNormSpec>& layers,
                          const ClosingBounds& bounds) {
  if (closing.correct < 0 || closing.correct > closing.labels ||
      closing.labels > limits::kLabelsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("closing: got ", closing.correct, " of ", closing.labels,
                     " labels correct, want at most ", limits::kLabelsMax,
                     " labels and 0 to all of them correct"));
  }
  COHORT_RETURN_IF_ERROR(CheckFrontEndState(closing));
  COHORT_RETURN_IF_ERROR(CheckMeasures(closing.measures));
  COHORT_RETURN_IF_ERROR(CheckChanges(closing.changes, layers));
  COHORT_RETURN_IF_ERROR(CheckContributions(closing, bounds.global));
  COHORT_ASSIGN_OR_RETURN(std::vector<int64_t> calls_by_layer,
                          CallsByLayer(closing.batch_norm_calls, layers));
  COHORT_RETURN_IF_ERROR(CheckLocalSteps(closing, layers, bounds.local_steps));
  if (bounds.local_steps) {
    // One entry stands for all calls.
    for (int64_t& calls : calls_by_layer) calls = std::min<int64_t>(calls, 1);
  }
  const int64_t calls =
      std::accumulate(calls_by_layer.begin(), calls_by_layer.end(), int64_t{0});
  const int64_t wanted = bounds.global ? 0 : calls;
  if (static_cast<int64_t>(closing.moments.size()) != wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat("closing: got moments of ", closing.moments.size(),
                     " batch-norm calls, want ", wanted));
  }
  for (size_t i = 0; i < closing.moments.size(); ++i) {
    const CallMoments& call = closing.moments[i];
    COHORT_RETURN_IF_ERROR(CheckCallMoments(call, layers));
    COHORT_RETURN_IF_ERROR(CheckSpread(
        layers[static_cast<size_t>(call.layer)].name, call.moments));
    // Ascending from call 0 of each layer, so that ranks line up by position.
    const bool follows =
        call.call == 0 ? i == 0 || closing.moments[i - 1].layer < call.layer
                       : i > 0 && closing.moments[i - 1].layer == call.layer &&
                             closing.moments[i - 1].call == call.call - 1;
    if (!follows ||
        call.call >= calls_by_layer[static_cast<size_t>(call.layer)]) {
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
