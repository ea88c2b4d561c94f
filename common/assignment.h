#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/element_type.h"
#include "common/ids.h"
#include "common/rank_list.h"
#include "common/score.h"

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

// Value of Assignment::statistics for an evaluation without moving statistics:
// each batch is normalised by its own, as in training.
inline constexpr char kBatchStatistics[] = "batch";
// The moving average of the statistics, which belongs to that of the weights:
// a version read with this kind has those.
inline constexpr char kAverageStatistics[] = "average";

// Half-open range of positions in an epoch's permutation.
struct IndexRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool empty() const { return end <= begin; }
  friend bool operator==(const IndexRange&, const IndexRange&) = default;
};

// A worker's next task. Together with the run's seed and the weights of
// `version` it determines the worker's contribution.
struct Assignment {
  AssignmentKind kind = AssignmentKind::kWait;
  // The rank's own assignment number.
  Sequence sequence;
  // Number of repetitions of this assignment's step after a loss.
  Attempt attempt;
  // Weights to read; under sync also the step to compute.
  Version version;
  int64_t policy_epoch = 0;
  // Ranks whose pushes make up the step (sync only), ascending.
  RankList members;
  // Epoch whose permutation the range indexes. The test split is not permuted.
  int64_t data_epoch = 0;
  IndexRange range;
  // For kTrain: number of batches that the range is computed in, one after
  // another; under sync the same for all members.
  int32_t batches = 1;
  // For kTrain with --local_steps: the samples of each local step; `range` then
  // has as many as all of them, and begins with 0. With own data all are empty.
  std::vector<IndexRange> local_steps;
  // Multiplies the rate of the optimizer of local steps.
  double local_rate_factor = 1;
  // For kTrain: how its gradients are to be sent.
  ElementType gradients = ElementType::kFloat32;
  DataSplit split = DataSplit::kTrain;
  // For kEvaluate: name of the version's moving statistics to read; the first
  // if empty. For kTrain: the name of the first.
  std::string statistics;
  // For kTrain: each training call moves the moving statistics at once, as in
  // one process: those of the kind "sync", normalised over all members.
  bool moves_statistics = false;
  // For kTrain: if true, moments go through the rendezvous; if false, the
  // worker normalises by the local batch and reports moments on closing. For
  // kEvaluate: how the policy trains.
  bool global_normalization = false;
  // For kWait and kFinished: what the worker waits for, or why it is finished.
  std::string reason;
  // For kFinished: if true, the rank's work is not done, because this worker
  // was drained or the run broke off. The supervisor must start another worker.
  bool unfinished = false;
  // For kFinished: if true, the run ended because of an error, which `reason`
  // names.
  bool failed = false;
  // For kWait: time until the wait is given up; infinite if unbounded.
  absl::Duration wait = absl::InfiniteDuration();
  // For kTrain and kFinished: the newest; absent: no epoch was evaluated yet.
  std::optional<Score> score;
};

}  // namespace cohort
