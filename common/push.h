#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/assignment.h"
#include "common/ids.h"
#include "common/model_layout.h"
#include "common/moments.h"

namespace cohort {

// Identifies one push of a rank; a partition index completes the key of one
// message.
struct PushKey {
  Sequence sequence;
  Attempt attempt;
  // Which update of the weights: a step of several optimizers makes several,
  // one after another. What belongs to all of them, such as the verdict, has
  // that of Whole.
  int32_t update = 0;

  PushKey Whole() const { return {.sequence = sequence, .attempt = attempt}; }

  friend auto operator<=>(const PushKey&, const PushKey&) = default;
};

// The worker that sent a message.
struct Sender {
  std::string run_id;
  Rank rank;
  Incarnation incarnation;
};

// A number of the optimizer that the program has changed for one group of
// parameters (ParameterSpec::rate_group).
struct GroupNumber {
  int32_t group = 0;
  // A setting of the server, such as "momentum" or "weight_decay".
  std::string name;
  double value = 0;

  friend bool operator==(const GroupNumber&, const GroupNumber&) = default;
};

struct PushOpening {
  // Version of the weights that were read; under sync, of the step.
  Version version;
  // Images.
  int64_t samples = 0;
  // Labels, valid pixels, or sum of class weights. If 0, there is nothing to
  // learn from, and the push changes no weight.
  double loss_weight = 0;
  // The gradients are those of the mean loss times gradient_weight /
  // loss_reference. Absent: loss_weight.
  std::optional<double> gradient_weight;
  // One rate for each group of parameters, or none: those of the run.
  std::vector<double> learning_rates;
  // In place of those in force.
  std::vector<GroupNumber> numbers;
  // The worker keeps the weights of `version` and can add a change to them.
  bool takes_changes = false;
  // Requests the moving statistics of the verdict's version.
  bool takes_statistics = false;
  // Digest of the batch, for data of the program; 0: none.
  uint64_t batch_digest = 0;
  // The program's optimizer that this update is of, and whether another update
  // of the same step follows it.
  int32_t optimizer = 0;
  bool continues = false;

  double GradientWeight() const {
    return gradient_weight.value_or(loss_weight);
  }
};

// A mean that the training program computes: sum / weight.
struct Measure {
  std::string name;
  double sum = 0;
  // Above 0.
  double weight = 0;

  friend bool operator==(const Measure&, const Measure&) = default;
};

// One training call of a registered batch-norm layer: its module's settings.
struct TrainingCall {
  int32_t part = 0;
  // The script's name of the call; mostly empty.
  std::string site;
  // Counts the calls of (part, layer, site), from 0.
  int32_t call = 0;
  // Absent: cumulative average, a = 1 / num_batches_tracked.
  std::optional<double> momentum;
  double epsilon = 0;
  // It moves mean and variance; it counts in num_batches_tracked.
  bool moves = true;
  bool counts = true;

  friend bool operator==(const TrainingCall&, const TrainingCall&) = default;
};

// Moving statistics that the training program put in place of those of a layer.
struct StatisticsWrite {
  // The number of training calls before it.
  int32_t after_calls = 0;
  LayerStatistics values;

  friend bool operator==(const StatisticsWrite&,
                         const StatisticsWrite&) = default;
};

// What happened to the moving statistics of one layer in a step, in the order
// of the program.
struct LayerChanges {
  int32_t layer = 0;
  std::vector<TrainingCall> calls;
  // Ascending.
  std::vector<StatisticsWrite> writes;
  // Numbers of training calls after which evaluation passes read the
  // statistics: ascending, without duplicates.
  std::vector<int32_t> reads;

  friend bool operator==(const LayerChanges&, const LayerChanges&) = default;
};

struct PushClosing {
  double loss_sum = 0;
  int64_t correct = 0;
  // Valid labels.
  int64_t labels = 0;
  // Registered forward calls by part and layer: at part * layers + layer.
  std::vector<int32_t> batch_norm_calls;
  // Ascending by (layer, call).
  std::vector<CallMoments> moments;
  // Ascending by layer. Empty: each call moved the statistics with the momentum
  // of the registered layer, and nothing else happened to them.
  std::vector<LayerChanges> changes;
  // State of the training program after this step, such as its schedulers'.
  std::optional<std::string> front_end_state;
  // Ascending by name.
  std::vector<Measure> measures;
  // Rendezvous that the sender has contributed to in this attempt.
  int64_t contributions = 0;
};

enum class Verdict {
  kApplied,
  kDamped,
  kSkipped,
  kDropped,
  kRejectedNonfinite,
};

// True if the push is part of the version that its verdict names.
inline bool IsApplied(Verdict verdict) {
  return verdict == Verdict::kApplied || verdict == Verdict::kDamped;
}

// The result of a push.
struct PushVerdict {
  Verdict verdict = Verdict::kApplied;
  // True if this answers a repetition of a push that was already decided.
  bool duplicate = false;
  // The version that includes the push, or at which it was decided.
  Version version;
  int64_t staleness_versions = 0;
  double weight = 1;
  std::string reason;
  Assignment next;
  // Statistics of `version`, one entry a layer; empty unless the opening
  // requested them. Set in workers only: the server sends shared ones.
  std::vector<LayerStatistics> statistics;
};

}  // namespace cohort
