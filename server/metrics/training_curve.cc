#include "server/metrics/training_curve.h"

namespace cohort {

TrainingCurve::TrainingCurve(int64_t points_max) : points_max_(points_max) {}

void TrainingCurve::Join(const Span& later, Span& span) {
  const TrainingSample before = span.last;
  span.last = later.last;
  span.last.loss_sum += before.loss_sum;
  span.last.loss_weight += before.loss_weight;
  span.last.correct += before.correct;
  span.last.labels += before.labels;
  span.commits += later.commits;
}

void TrainingCurve::Add(const TrainingSample& sample) {
  Span span{.last = sample, .commits = sample.commits};
  if (!spans_.empty()) {
    span.begin_seconds = spans_.back().last.seconds;
    span.begin_samples = spans_.back().last.samples;
    if (spans_.back().commits < commits_a_point_) {
      Join(span, spans_.back());
      return;
    }
  } else {
    // The beginning of the first sample is not known.
    span.begin_seconds = sample.seconds;
    span.begin_samples = sample.samples;
  }
  if (static_cast<int64_t>(spans_.size()) == points_max_) {
    std::vector<Span> halved;
    for (size_t i = 0; i + 1 < spans_.size(); i += 2) {
      halved.push_back(spans_[i]);
      Join(spans_[i + 1], halved.back());
    }
    if (spans_.size() % 2 == 1) halved.push_back(spans_.back());
    spans_ = std::move(halved);
    commits_a_point_ *= 2;
  }
  spans_.push_back(span);
}

TrainingPoint TrainingCurve::PointOf(const Span& span) {
  const TrainingSample& last = span.last;
  TrainingPoint point{.version = last.version,
                      .samples = last.samples,
                      .seconds = last.seconds,
                      .learning_rate = last.learning_rate};
  if (last.loss_weight > 0) point.loss = last.loss_sum / last.loss_weight;
  if (last.labels > 0) point.accuracy = last.correct / last.labels;
  const double seconds = last.seconds - span.begin_seconds;
  if (seconds > 0) {
    point.samples_per_second =
        static_cast<double>(last.samples - span.begin_samples) / seconds;
  }
  return point;
}

std::vector<TrainingPoint> TrainingCurve::Points() const {
  std::vector<TrainingPoint> points;
  points.reserve(spans_.size());
  for (const Span& span : spans_) points.push_back(PointOf(span));
  return points;
}

}  // namespace cohort
