#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/assignment.h"
#include "common/ids.h"
#include "common/moments.h"

namespace cohort {

// Identifies one push of a rank; a partition index completes the key of one
// message.
struct PushKey {
  Sequence sequence;
  Attempt attempt;

  friend auto operator<=>(const PushKey&, const PushKey&) = default;
};

// The worker that sent a message.
struct Sender {
  std::string run_id;
  Rank rank;
  Incarnation incarnation;
};

struct PushOpening {
  // Version of the weights that were read; under sync, of the step.
  Version version;
  // Images.
  int64_t samples = 0;
  // Labels, valid pixels, or sum of class weights. If 0, there is nothing to
  // learn from, and the push changes no weight.
  double loss_weight = 0;
  // With RunPlan::rates_by_workers: one rate for each group of parameters.
  std::vector<double> learning_rates;
  // The worker keeps the weights of `version` and can add a change to them.
  bool takes_changes = false;
  // Of own data; 0: none.
  uint64_t batch_digest = 0;
};

// A mean that the training program computes: sum / weight.
struct Measure {
  std::string name;
  double sum = 0;
  // Above 0.
  double weight = 0;

  friend bool operator==(const Measure&, const Measure&) = default;
};

struct PushClosing {
  double loss_sum = 0;
  int64_t correct = 0;
  // Valid labels.
  int64_t labels = 0;
  // Calls per batch-norm layer, in layout order.
  std::vector<int32_t> batch_norm_calls;
  // Ascending by (layer, call).
  std::vector<CallMoments> moments;
  // State of the training program after this step, such as its schedulers'.
  std::optional<std::string> front_end_state;
  // Ascending by name.
  std::vector<Measure> measures;
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
};

}  // namespace cohort
