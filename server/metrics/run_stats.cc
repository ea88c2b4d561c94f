#include "server/metrics/run_stats.h"

#include <string>

#include "common/measures/measures.h"

namespace cohort {
namespace {

// From 1 ms to a minute; a rendezvous takes a tenth of that.
std::vector<double> WaitBounds() { return DoublingBounds(0.001, 65.6); }
std::vector<double> RendezvousBounds() { return DoublingBounds(0.0001, 65.6); }

void AddAll(const std::vector<absl::Duration>& waits, BucketCounts& counts) {
  for (absl::Duration wait : waits) counts.Add(absl::ToDoubleSeconds(wait));
}

}  // namespace

RunSums::RunSums()
    : curve(kCurvePointsMax),
      barrier_wait_seconds(WaitBounds()),
      aggregation_seconds(WaitBounds()),
      apply_seconds(RendezvousBounds()),
      forward_wait_seconds(RendezvousBounds()),
      backward_wait_seconds(RendezvousBounds()) {}

RunStats::RunStats(const Clock& clock) : clock_(clock), start_(clock.Now()) {}

void RunStats::Continue(const EarlierHistory& history) {
  MutexLock lock(mu_);
  elapsed_before_ = history.elapsed;
  for (const TrainingSample& sample : history.training) sums_.curve.Add(sample);
  AddEvaluations(history.evaluations);
  sums_.test = history.test;
}

void RunStats::Committed(const CommitRecord& record,
                         const CommitObservation& observation) {
  MutexLock lock(mu_);
  const double seconds = Seconds();
  sums_.samples += record.commit_samples;
  if (!record.skipped && record.loss_weight > 0) {
    sums_.train_loss = record.loss;
  }
  if (!record.skipped && record.labels > 0) {
    sums_.train_accuracy = record.accuracy;
  }
  if (record.gradient_norm.has_value()) {
    sums_.gradient_norm = record.gradient_norm;
  }
  if (!record.skipped) {
    const auto labels = static_cast<double>(record.labels);
    sums_.curve.Add({.version = record.version.value(),
                     .samples = record.samples,
                     .seconds = seconds,
                     .loss_sum = record.loss * record.loss_weight,
                     .loss_weight = record.loss_weight,
                     .correct = record.accuracy * labels,
                     .labels = labels,
                     .learning_rate = record.learning_rate});
  }
  AddAll(observation.barrier_waits, sums_.barrier_wait_seconds);
  sums_.aggregation_seconds.Add(absl::ToDoubleSeconds(observation.aggregation));
  AddAll(observation.forward.waits, sums_.forward_wait_seconds);
  AddAll(observation.backward.waits, sums_.backward_wait_seconds);
  if (observation.last_arrival.has_value()) {
    ++sums_.last_arrivals[*observation.last_arrival];
  }
  for (Rank rank : observation.forward.last) {
    ++sums_.rendezvous_last_arrivals[rank];
  }
  for (Rank rank : observation.backward.last) {
    ++sums_.rendezvous_last_arrivals[rank];
  }
  DriftedLocked(observation.drift);
}

void RunStats::Drifted(const std::vector<LayerDrift>& drift) {
  MutexLock lock(mu_);
  DriftedLocked(drift);
}

void RunStats::DriftedLocked(const std::vector<LayerDrift>& drift) {
  for (const LayerDrift& layer : drift) sums_.drift[layer.layer] = layer.ratio;
}

void RunStats::Evaluated(const EvaluationRecord& record) {
  MutexLock lock(mu_);
  const double seconds = Seconds();
  std::vector<EvaluationPoint> points;
  for (const EvaluationResult& result : record.results) {
    const absl::string_view name = StatisticsName(result.statistics);
    points.push_back({.version = record.version.value(),
                      .epoch = record.epochs,
                      .seconds = seconds,
                      .statistics = std::string(name.data(), name.size()),
                      .loss = result.loss(),
                      .accuracy = result.accuracy(),
                      .mean_iou = MeanIou(result.sums)});
  }
  if (!record.on_request) sums_.test = points.front();
  AddEvaluations(points);
}

void RunStats::AddEvaluations(const std::vector<EvaluationPoint>& points) {
  std::vector<EvaluationPoint>& all = sums_.evaluations;
  for (const EvaluationPoint& point : points) {
    const auto same = [&point](const EvaluationPoint& other) {
      return other.version == point.version &&
             other.statistics == point.statistics;
    };
    // A continued run may repeat an evaluation that its files already have.
    std::erase_if(all, same);
    all.push_back(point);
  }
  if (all.size() > kEvaluationsMax) {
    all.erase(all.begin(), all.end() - kEvaluationsMax);
  }
}

void RunStats::Happened(const effect::Log& log) {
  MutexLock lock(mu_);
  sums_.events.push_back({.at = clock_.Now(), .log = log});
  if (sums_.events.size() > kEventsMax) sums_.events.pop_front();
}

void RunStats::ContinueEvents(const std::deque<RunEvent>& events) {
  MutexLock lock(mu_);
  sums_.events = events;
}

void RunStats::Applied(absl::Duration took) {
  MutexLock lock(mu_);
  sums_.apply_seconds.Add(absl::ToDoubleSeconds(took));
}

RunSums RunStats::sums() const {
  MutexLock lock(mu_);
  RunSums sums = sums_;
  sums.now = clock_.Now();
  return sums;
}

}  // namespace cohort
