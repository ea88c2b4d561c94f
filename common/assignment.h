#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "common/rank_list.h"

namespace cohort {

enum class AssignmentKind {
  kTrain,
  kEvaluate,
  kWait,
  kFinished,
  // Run the model in training mode over the range as one batch, without
  // gradients, and report the moments of all batch-norm calls.
  kCollectMoments,
};

enum class DataSplit { kTrain, kTest };

// What Assignment::statistics says where an evaluation reads no moving
// statistics: each batch is normalised by its own, as in training.
inline constexpr char kBatchStatistics[] = "batch";

// Half-open range of positions in an epoch's permutation.
struct IndexRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool empty() const { return end <= begin; }
  friend bool operator==(const IndexRange&, const IndexRange&) = default;
};

// What a worker is told to do next. Together with the run's seed and the
// weights of `version` it determines the worker's contribution.
struct Assignment {
  AssignmentKind kind = AssignmentKind::kWait;
  // The rank's own assignment number.
  Sequence sequence;
  // Counts repetitions of this assignment's step after a loss.
  Attempt attempt;
  // Weights to read; under sync also the step to compute.
  Version version;
  int64_t policy_epoch = 0;
  // Ranks whose pushes make up the step (sync only), ascending.
  RankList members;
  // Epoch whose permutation is indexed. The test split is not permuted.
  int64_t data_epoch = 0;
  IndexRange range;
  DataSplit split = DataSplit::kTrain;
  // For kEvaluate: which of the version's moving statistics to read, by name;
  // empty: the first.
  std::string statistics;
  // For kTrain, true: moments go through the rendezvous. False: normalise by
  // the local batch and report moments on closing. For kEvaluate: how the
  // policy trains.
  bool global_normalization = false;
  // For kWait and kFinished: whom or what for, in words.
  std::string reason;
  // For kFinished, true: the rank's work is not done: this worker was drained,
  // or the run broke off. What starts workers has to start another one.
  bool unfinished = false;
  // For kWait: until it is given up; infinite if unbounded.
  absl::Duration wait = absl::InfiniteDuration();
};

// Identifies one push of a rank; a partition index completes the key of one
// message.
struct PushKey {
  Sequence sequence;
  Attempt attempt;

  friend auto operator<=>(const PushKey&, const PushKey&) = default;
};

// Who speaks.
struct Sender {
  std::string run_id;
  Rank rank;
  Incarnation incarnation;
};

enum class ReducePhase { kForward, kBackward };

// Which rendezvous. Never inferred from the order of arrival.
struct ReduceKey {
  Version step;
  Attempt attempt;
  // Index into ModelLayout::batch_norms.
  int32_t layer = 0;
  // Counts the calls of this layer within the step.
  int32_t call = 0;
  ReducePhase phase = ReducePhase::kForward;

  friend auto operator<=>(const ReduceKey&, const ReduceKey&) = default;
};

// Moments of one rank, or of all, at one batch-norm call. Forward: `first` is
// the mean and `second` M2 = sum (x-mean)^2. Backward: `first` is sum dy and
// `second` sum dy*(x-mean). float64 [channels] each.
struct Moments {
  // Elements per channel.
  int64_t count = 0;
  std::vector<double> first;
  std::vector<double> second;
};

// Moments of one call: contributed to its rendezvous, or reported on closing
// where there is none.
struct CallMoments {
  int32_t layer = 0;
  int32_t call = 0;
  Moments moments;
};

struct PushOpening {
  // Weights that were read; under sync those of the step.
  Version version;
  // Images.
  int64_t samples = 0;
  // Labels, valid pixels, or sum of class weights. 0: nothing to learn from,
  // and the push changes no weight.
  double loss_weight = 0;
};

struct PushClosing {
  double loss_sum = 0;
  int64_t correct = 0;
  // Valid ones.
  int64_t labels = 0;
  // Calls per batch-norm layer, in layout order.
  std::vector<int32_t> batch_norm_calls;
  // Ascending by (layer, call).
  std::vector<CallMoments> moments;
};

enum class Verdict {
  kApplied,
  kDamped,
  kSkipped,
  kDropped,
  kRejectedNonfinite,
};

// The push is part of the version that its verdict names.
inline bool IsApplied(Verdict verdict) {
  return verdict == Verdict::kApplied || verdict == Verdict::kDamped;
}

// How a push ended.
struct PushVerdict {
  Verdict verdict = Verdict::kApplied;
  // True if this answers a repetition of a push already decided.
  bool duplicate = false;
  // Version in which it went, or at which it was decided.
  Version version;
  int64_t staleness_versions = 0;
  double weight = 1;
  std::string reason;
  Assignment next;
};

// Valid labels of one class: rightly found, found, and there.
struct ClassSums {
  int64_t intersection = 0;
  int64_t predicted = 0;
  int64_t actual = 0;

  friend bool operator==(const ClassSums&, const ClassSums&) = default;
};

// Sums of one shard of an evaluation, or of several. What they say is in
// common/measures.h.
struct EvaluationSums {
  // Images.
  int64_t samples = 0;
  double loss_sum = 0;
  // Divisor of loss_sum.
  double loss_weight = 0;
  int64_t correct = 0;
  // Valid ones: images, or pixels that are not ignored.
  int64_t labels = 0;
  // Labels among the five highest scores. Absent: no more than five classes,
  // or a label a pixel.
  std::optional<int64_t> top5_correct;
  // One entry a class where there is a label a pixel; otherwise empty.
  std::vector<ClassSums> classes;
};

}  // namespace cohort
