#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "server/core/effects.h"
#include "server/metrics/bucket_counts.h"
#include "server/metrics/training_curve.h"

namespace cohort {

// Points of a curve that is shown.
inline constexpr int64_t kCurvePointsMax = 512;
// Events that are kept, the newest ones.
inline constexpr size_t kEventsMax = 64;
// Evaluations that are kept, one entry a kind of statistics.
inline constexpr size_t kEvaluationsMax = 512;

// One evaluation with one kind of statistics.
struct EvaluationPoint {
  int64_t version = 0;
  // Completed epochs.
  int64_t epoch = 0;
  double seconds = 0;
  std::string statistics;
  double loss = 0;
  double accuracy = 0;
  std::optional<double> mean_iou;
};

// Something that people want to find again when they come back to a run: a
// worker that was lost, a change of policy.
struct RunEvent {
  // From the start of the tally.
  absl::Duration uptime;
  effect::Log log;
};

// Sums over what happened in this life of the server; evaluations and curve are
// those of the whole run, as far as its files have them.
struct TallySums {
  TallySums();

  int64_t samples = 0;
  // Of the newest commit that had any.
  std::optional<double> train_loss;
  std::optional<double> train_accuracy;
  std::optional<double> gradient_norm;
  // Of the first kind of statistics, at the end of an epoch.
  std::optional<EvaluationPoint> test;
  std::vector<EvaluationPoint> evaluations;
  TrainingCurve curve;
  // Oldest first.
  std::deque<RunEvent> events;

  BucketCounts barrier_wait_seconds;
  BucketCounts aggregation_seconds;
  BucketCounts apply_seconds;
  BucketCounts forward_wait_seconds;
  BucketCounts backward_wait_seconds;
  // By rank: how often it was the last.
  std::map<Rank, int64_t> last_arrivals;
  std::map<Rank, int64_t> rendezvous_last_arrivals;
  // By layer: when it was sampled last.
  std::map<int32_t, double> drift;
};

// What earlier processes of the run have left in its files.
struct EarlierCourse {
  // The time that they were up.
  absl::Duration elapsed;
  // Oldest first.
  std::vector<TrainingSample> training;
  std::vector<EvaluationPoint> evaluations;
  // The newest at the end of an epoch.
  std::optional<EvaluationPoint> test;
};

// Adds up what the run tells. Notes take well under a microsecond a number, and
// nothing is formatted here: that is left to those who read.
//
// Thread safety: safe.
class RunTally {
 public:
  // `clock` must outlive the tally.
  explicit RunTally(const Clock& clock);

  // Curves and times go on from there. Before anything else is told.
  void Continue(const EarlierCourse& course) ABSL_LOCKS_EXCLUDED(mu_);
  void Committed(const CommitRecord& record,
                 const CommitObservation& observation) ABSL_LOCKS_EXCLUDED(mu_);
  void Evaluated(const EvaluationRecord& record) ABSL_LOCKS_EXCLUDED(mu_);
  void Happened(const effect::Log& log) ABSL_LOCKS_EXCLUDED(mu_);
  // One partition was folded and the optimizer run on it.
  void Applied(absl::Duration took) ABSL_LOCKS_EXCLUDED(mu_);

  // The drift of a synchronous step.
  void Drifted(const std::vector<LayerDrift>& drift) ABSL_LOCKS_EXCLUDED(mu_);

  TallySums sums() const ABSL_LOCKS_EXCLUDED(mu_);
  // Since the tally was made.
  absl::Duration uptime() const { return clock_.Now() - start_; }

 private:
  void DriftedLocked(const std::vector<LayerDrift>& drift)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddEvaluations(const std::vector<EvaluationPoint>& points)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of the run so far.
  double Seconds() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return absl::ToDoubleSeconds(elapsed_before_ + uptime());
  }

  // Fixed after construction.
  const Clock& clock_;
  const Instant start_;

  mutable Mutex mu_;
  // In earlier processes of the run.
  absl::Duration elapsed_before_ ABSL_GUARDED_BY(mu_);
  TallySums sums_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cohort
