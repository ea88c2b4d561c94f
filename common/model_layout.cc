#include "common/model_layout.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/limits.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

// Ample for any model here, and small enough that byte counts cannot
// overflow.
constexpr int64_t kElementsMax = int64_t{1} << 40;

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ","), "]");
}

absl::Status ValidateShape(const ParameterSpec& p) {
  int64_t elements = 1;
  for (int64_t extent : p.shape) {
    if (extent <= 0 || extent > kElementsMax / elements) {
      return absl::InvalidArgumentError(absl::StrCat(
          p.name, ": got shape ", ShapeText(p.shape),
          ", want positive extents and at most ", kElementsMax, " elements"));
    }
    elements *= extent;
  }
  return absl::OkStatus();
}

template <typename Spec>
absl::Status ValidateNames(const std::vector<Spec>& specs, const char* kind) {
  absl::flat_hash_set<std::string> seen;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].name.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(kind, " number ", i, " has no name"));
    }
    if (!seen.insert(specs[i].name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(kind, " ", specs[i].name, " appears twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateBatchNorm(const BatchNormSpec& bn) {
  if (bn.channels <= 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        bn.name, ": got ", bn.channels, " channels, want at least 1"));
  }
  if (!(bn.epsilon > 0) || !std::isfinite(bn.epsilon)) {
    return absl::InvalidArgumentError(
        absl::StrCat(bn.name, ": got epsilon ", bn.epsilon, ", want above 0"));
  }
  if (bn.momentum.has_value() && !(*bn.momentum >= 0 && *bn.momentum <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        bn.name, ": got momentum ", *bn.momentum, ", want in [0, 1]"));
  }
  return absl::OkStatus();
}

absl::Status ValidateStatistics(const BatchNormSpec& layer,
                                const LayerStatistics& statistics,
                                int64_t tracked_max) {
  const auto channels = static_cast<size_t>(layer.channels);
  if (statistics.mean.size() != channels ||
      statistics.variance.size() != channels) {
    return absl::InvalidArgumentError(absl::StrCat(
        layer.name, ": got statistics of ", statistics.mean.size(), " and ",
        statistics.variance.size(), " channels, want ", channels));
  }
  for (size_t c = 0; c < channels; ++c) {
    const double mean = statistics.mean[c];
    const double variance = statistics.variance[c];
    // As float32, in which they are exported. False for NaN.
    constexpr double kMax = std::numeric_limits<float>::max();
    if (std::abs(mean) <= kMax && variance >= 0 && variance <= kMax) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(layer.name, ": got the mean ", mean, " and variance ",
                     variance, " in channel ", c,
                     ", want values that are finite in float32 and a variance "
                     "of at least 0"));
  }
  const int64_t tracked = statistics.num_batches_tracked;
  if (tracked >= 0 && tracked <= tracked_max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(layer.name, ": got ", tracked,
                                                 " batches tracked, want 0 to ",
                                                 tracked_max));
}

absl::Status Differs(absl::string_view name, absl::string_view what,
                     absl::string_view seen, absl::string_view wanted) {
  return absl::FailedPreconditionError(
      absl::StrCat(name, ": got ", what, " ", seen, ", want ", wanted));
}

std::string Text(bool value) { return value ? "yes" : "no"; }
std::string Text(const std::vector<int64_t>& shape) { return ShapeText(shape); }
template <typename Value>
std::string Text(const Value& value) {
  return absl::StrCat(value);
}

// Compares one field of what `name` names.
template <typename Value>
absl::Status CheckSame(absl::string_view name, absl::string_view what,
                       const Value& seen, const Value& wanted) {
  if (seen == wanted) return absl::OkStatus();
  return Differs(name, what, Text(seen), Text(wanted));
}

absl::Status CheckReadableParameter(const ParameterSpec& seen,
                                    const ParameterSpec& wanted) {
  COHORT_RETURN_IF_ERROR(
      CheckSame(seen.name, "shape", seen.shape, wanted.shape));
  return CheckSame(seen.name, "trainable", seen.trainable, wanted.trainable);
}

absl::Status CheckSameParameter(const ParameterSpec& seen,
                                const ParameterSpec& wanted) {
  COHORT_RETURN_IF_ERROR(CheckReadableParameter(seen, wanted));
  COHORT_RETURN_IF_ERROR(CheckSame(seen.name, "decay_exempt", seen.decay_exempt,
                                   wanted.decay_exempt));
  COHORT_RETURN_IF_ERROR(CheckSame(seen.name, "a rate multiplier of",
                                   seen.rate_multiplier,
                                   wanted.rate_multiplier));
  COHORT_RETURN_IF_ERROR(CheckSame(seen.name, "a decay multiplier of",
                                   seen.decay_multiplier,
                                   wanted.decay_multiplier));
  return CheckSame(seen.name, "rate group", seen.rate_group, wanted.rate_group);
}

// Names the first setting that differs.
absl::Status CheckSameOptimizer(
    const std::map<std::string, std::string>& seen,
    const std::map<std::string, std::string>& wanted) {
  const auto text = [](const auto& settings, const std::string& name) {
    const auto found = settings.find(name);
    return found == settings.end() ? std::string("none") : found->second;
  };
  for (const auto* settings : {&wanted, &seen}) {
    for (const auto& [name, value] : *settings) {
      COHORT_RETURN_IF_ERROR(
          CheckSame("optimizer", name, text(seen, name), text(wanted, name)));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSameBatchNorm(const BatchNormSpec& seen,
                                const BatchNormSpec& wanted) {
  COHORT_RETURN_IF_ERROR(
      CheckSame(seen.name, "channels", seen.channels, wanted.channels));
  // Momentum and epsilon may change at any call; each call carries its own.
  if (seen.affine != wanted.affine ||
      seen.track_statistics != wanted.track_statistics ||
      seen.convention != wanted.convention) {
    return absl::FailedPreconditionError(absl::StrCat(
        seen.name, ": affine, track_statistics or convention differ"));
  }
  return absl::OkStatus();
}

// Walks two lists of named specs in step, so that a missing, added or moved
// entry is reported by name.
template <typename Spec, typename Compare>
absl::Status CheckSameList(const std::vector<Spec>& seen,
                           const std::vector<Spec>& wanted, const char* kind,
                           Compare compare) {
  const size_t count = std::min(seen.size(), wanted.size());
  for (size_t i = 0; i < count; ++i) {
    if (seen[i].name != wanted[i].name) {
      return absl::FailedPreconditionError(
          absl::StrCat(kind, " number ", i, ": got ", seen[i].name, ", want ",
                       wanted[i].name));
    }
    COHORT_RETURN_IF_ERROR(compare(seen[i], wanted[i]));
  }
  if (seen.size() > count) {
    return absl::FailedPreconditionError(absl::StrCat(
        kind, " ", seen[count].name, " is not part of this run's model"));
  }
  if (wanted.size() > count) {
    return absl::FailedPreconditionError(
        absl::StrCat(kind, " ", wanted[count].name, " is missing"));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t ElementCount(const ParameterSpec& parameter) {
  int64_t elements = 1;
  for (int64_t extent : parameter.shape) elements *= extent;
  return elements;
}

namespace {

absl::Status ValidateMultipliers(const ParameterSpec& parameter) {
  const auto check = [&parameter](const char* what, double value) {
    if (std::isfinite(value) && value >= 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(parameter.name, ": got a ", what, " multiplier of ", value,
                     ", want a finite number of at least 0"));
  };
  COHORT_RETURN_IF_ERROR(check("rate", parameter.rate_multiplier));
  COHORT_RETURN_IF_ERROR(check("decay", parameter.decay_multiplier));
  if (parameter.rate_group >= 0 &&
      parameter.rate_group < limits::kRateGroupsMax) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(parameter.name, ": got rate group ", parameter.rate_group,
                   ", want 0 to ", limits::kRateGroupsMax - 1));
}

}  // namespace

absl::Status Validate(const ModelLayout& layout) {
  if (layout.parameters.empty()) {
    return absl::InvalidArgumentError("the model has no parameters");
  }
  COHORT_RETURN_IF_ERROR(ValidateNames(layout.parameters, "parameter"));
  COHORT_RETURN_IF_ERROR(ValidateNames(layout.batch_norms, "batch norm"));
  int64_t total = 0;
  for (const ParameterSpec& p : layout.parameters) {
    COHORT_RETURN_IF_ERROR(ValidateShape(p));
    COHORT_RETURN_IF_ERROR(ValidateMultipliers(p));
    total += ElementCount(p);
    if (total > kElementsMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("the model has more than ", kElementsMax, " elements"));
    }
  }
  for (const BatchNormSpec& bn : layout.batch_norms) {
    COHORT_RETURN_IF_ERROR(ValidateBatchNorm(bn));
  }
  return absl::OkStatus();
}

absl::Status CheckSameLayout(const ModelLayout& seen,
                             const ModelLayout& wanted) {
  COHORT_RETURN_IF_ERROR(CheckSameList(seen.parameters, wanted.parameters,
                                       "parameter", CheckSameParameter));
  return CheckSameList(seen.batch_norms, wanted.batch_norms, "batch norm",
                       CheckSameBatchNorm);
}

absl::Status CheckReadable(const ModelLayout& seen, const ModelLayout& wanted) {
  COHORT_RETURN_IF_ERROR(CheckSameList(seen.parameters, wanted.parameters,
                                       "parameter", CheckReadableParameter));
  return CheckSameList(seen.batch_norms, wanted.batch_norms, "batch norm",
                       CheckSameBatchNorm);
}

std::vector<Partition> MakePartitions(const ModelLayout& layout,
                                      int64_t target_bytes) {
  const int64_t capacity =
      std::max<int64_t>(1, target_bytes / static_cast<int64_t>(sizeof(float)));
  std::vector<Partition> partitions;
  for (size_t i = 0; i < layout.parameters.size(); ++i) {
    const ParameterSpec& p = layout.parameters[i];
    const int64_t elements = ElementCount(p);
    for (int64_t offset = 0; offset < elements;) {
      if (partitions.empty() || partitions.back().elements == capacity ||
          partitions.back().trainable != p.trainable) {
        partitions.push_back({.trainable = p.trainable});
      }
      Partition& open = partitions.back();
      const int64_t count =
          std::min(elements - offset, capacity - open.elements);
      open.slices.push_back({.parameter = static_cast<int32_t>(i),
                             .offset = offset,
                             .count = count});
      open.elements += count;
      offset += count;
    }
  }
  return partitions;
}

absl::Status Validate(const RunPlan& plan) {
  const auto check = [](absl::string_view field, auto seen, auto least,
                        auto most) {
    // False for NaN.
    if (seen >= least && seen <= most) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "plan.", field, ": got ", seen, ", want ", least, " to ", most));
  };
  const int64_t most = plan.own_data ? 0 : limits::kSplitSamplesMax;
  COHORT_RETURN_IF_ERROR(check("train_samples", plan.train_samples,
                               int64_t{!plan.own_data}, most));
  COHORT_RETURN_IF_ERROR(
      check("test_samples", plan.test_samples, int64_t{0}, most));
  return check("loss_reference", plan.loss_reference, limits::kLossWeightMin,
               limits::kLossWeightMax);
}

absl::Status CheckSamePlan(const RunPlan& seen, const RunPlan& wanted) {
  constexpr char kName[] = "run plan";
  COHORT_RETURN_IF_ERROR(
      CheckSame(kName, "data set", seen.dataset, wanted.dataset));
  COHORT_RETURN_IF_ERROR(CheckSame(kName, "data set digest",
                                   seen.dataset_digest, wanted.dataset_digest));
  COHORT_RETURN_IF_ERROR(CheckSame(kName, "train samples", seen.train_samples,
                                   wanted.train_samples));
  COHORT_RETURN_IF_ERROR(
      CheckSame(kName, "test samples", seen.test_samples, wanted.test_samples));
  COHORT_RETURN_IF_ERROR(CheckSame(kName, "loss", seen.loss, wanted.loss));
  COHORT_RETURN_IF_ERROR(CheckSame(kName, "data of the workers' own",
                                   seen.own_data, wanted.own_data));
  COHORT_RETURN_IF_ERROR(CheckSame(kName, "learning rates from the workers",
                                   seen.rates_by_workers,
                                   wanted.rates_by_workers));
  COHORT_RETURN_IF_ERROR(CheckSame(kName, "optimizer of local steps",
                                   seen.local_optimizer,
                                   wanted.local_optimizer));
  COHORT_RETURN_IF_ERROR(CheckSame(kName, "scores before the next epoch",
                                   seen.awaits_scores, wanted.awaits_scores));
  return CheckSameOptimizer(seen.optimizer, wanted.optimizer);
}

int32_t RateGroups(const ModelLayout& layout) {
  int32_t groups = 0;
  for (const ParameterSpec& parameter : layout.parameters) {
    groups = std::max(groups, parameter.rate_group + 1);
  }
  return groups;
}

absl::Status Validate(const std::vector<LayerStatistics>& statistics,
                      const ModelLayout& layout, int64_t tracked_max) {
  if (statistics.empty()) return absl::OkStatus();
  if (statistics.size() != layout.batch_norms.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "got statistics of ", statistics.size(), " batch-norm layers, want ",
        layout.batch_norms.size(), " or none"));
  }
  for (size_t i = 0; i < statistics.size(); ++i) {
    COHORT_RETURN_IF_ERROR(
        ValidateStatistics(layout.batch_norms[i], statistics[i], tracked_max));
  }
  return absl::OkStatus();
}

std::vector<LayerStatistics> InitialStatistics(const ModelLayout& layout) {
  std::vector<LayerStatistics> statistics;
  statistics.reserve(layout.batch_norms.size());
  for (const BatchNormSpec& bn : layout.batch_norms) {
    const auto channels = static_cast<size_t>(bn.channels);
    statistics.push_back({.mean = std::vector<double>(channels, 0.0),
                          .variance = std::vector<double>(channels, 1.0)});
  }
  return statistics;
}

std::vector<int32_t> SendOrder(const std::vector<Partition>& partitions) {
  std::vector<int32_t> order;
  for (size_t i = partitions.size(); i > 0; --i) {
    if (partitions[i - 1].trainable) {
      order.push_back(static_cast<int32_t>(i - 1));
    }
  }
  return order;
}

}  // namespace cohort
