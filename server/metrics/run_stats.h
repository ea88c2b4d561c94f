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
#include "server/core/events/effects.h"
#include "server/metrics/bucket_counts.h"
#include "server/metrics/training_curve.h"

namespace cohort {

// Limit on the points of a displayed curve.
inline constexpr int64_t kCurvePointsMax = 512;
// Number of events that are kept; the newest stay.
inline constexpr size_t kEventsMax = 64;
// Number of evaluations that are kept, one entry a kind of statistics.
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

// An event that is worth finding again later: a lost worker, a change of
// policy.
struct RunEvent {
  Instant at;
  effect::Log log;
};

// Sums since this start of the server. Evaluations and the curve cover the
// whole run, as far as its files have them.
struct RunSums {
  RunSums();

  int64_t samples = 0;
  // Values of the newest commit that had any.
  std::optional<double> train_loss;
  std::optional<double> train_accuracy;
  std::optional<double> gradient_norm;
  // With the first kind of statistics, at the end of an epoch.
  std::optional<EvaluationPoint> test;
  std::vector<EvaluationPoint> evaluations;
  TrainingCurve curve;
  // Oldest first.
  std::deque<RunEvent> events;
  // When they were read.
  Instant now;

  BucketCounts barrier_wait_seconds;
  BucketCounts aggregation_seconds;
  BucketCounts apply_seconds;
  BucketCounts forward_wait_seconds;
  BucketCounts backward_wait_seconds;
  // By rank: how often it arrived last.
  std::map<Rank, int64_t> last_arrivals;
  std::map<Rank, int64_t> rendezvous_last_arrivals;
  // By layer: the value sampled last.
  std::map<int32_t, double> drift;
};

// The history that earlier processes of the run have left in its files.
struct EarlierHistory {
  // The time that they were up.
  absl::Duration elapsed;
  // Oldest first.
  std::vector<TrainingSample> training;
  std::vector<EvaluationPoint> evaluations;
  // The newest evaluation at the end of an epoch.
  std::optional<EvaluationPoint> test;
};

// Sums up the events of the run. Recording takes well under a microsecond a
// number, and formatting is left to the readers.
//
// Thread safety: safe.
class RunStats {
 public:
  // `clock` must outlive the stats.
  explicit RunStats(const Clock& clock);

  // Curves and times continue from `history`. Call it before any event is
  // recorded.
  void Continue(const EarlierHistory& history) ABSL_LOCKS_EXCLUDED(mu_);
  // Events of an earlier server of this process, oldest first. Call it before
  // any event is recorded.
  void ContinueEvents(const std::deque<RunEvent>& events)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Committed(const CommitRecord& record,
                 const CommitObservation& observation) ABSL_LOCKS_EXCLUDED(mu_);
  void Evaluated(const EvaluationRecord& record) ABSL_LOCKS_EXCLUDED(mu_);
  void Happened(const effect::Log& log) ABSL_LOCKS_EXCLUDED(mu_);
  // One partition was folded and the optimizer run on it.
  void Applied(absl::Duration took) ABSL_LOCKS_EXCLUDED(mu_);

  // The drift of a synchronous step.
  void Drifted(const std::vector<LayerDrift>& drift) ABSL_LOCKS_EXCLUDED(mu_);

  RunSums sums() const ABSL_LOCKS_EXCLUDED(mu_);
  // Time since the stats was made.
  absl::Duration uptime() const { return clock_.Now() - start_; }

 private:
  void DriftedLocked(const std::vector<LayerDrift>& drift)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddEvaluations(const std::vector<EvaluationPoint>& points)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Duration of the run so far.
  double Seconds() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return absl::ToDoubleSeconds(elapsed_before_ + uptime());
  }

  // Fixed after construction.
  const Clock& clock_;
  const Instant start_;

  mutable Mutex mu_;
  // Time in earlier processes of the run.
  absl::Duration elapsed_before_ ABSL_GUARDED_BY(mu_);
  RunSums sums_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cohort
