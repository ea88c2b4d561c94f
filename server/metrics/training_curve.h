#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace cohort {

// One point of a curve: means over the commits since the point before.
struct TrainingPoint {
  int64_t version = 0;
  int64_t samples = 0;
  // Time since the start of this process.
  double seconds = 0;
  // Absent if none of its commits had a label.
  std::optional<double> loss;
  std::optional<double> accuracy;
  double learning_rate = 0;
  double samples_per_second = 0;
};

// The contribution of one commit, or of several in a row, to a curve.
struct TrainingSample {
  int64_t version = 0;
  // Samples seen so far.
  int64_t samples = 0;
  double seconds = 0;
  int64_t commits = 1;
  // Sums and their divisors.
  double loss_sum = 0;
  double loss_weight = 0;
  double correct = 0;
  double labels = 0;
  double learning_rate = 0;
};

// The history of a training of any length in at most `points_max` points,
// evenly spread: once it is full, neighbouring pairs are merged.
class TrainingCurve {
 public:
  explicit TrainingCurve(int64_t points_max);

  void Add(const TrainingSample& sample);
  // Oldest first. Includes the commits since the last complete point, if there
  // are any.
  std::vector<TrainingPoint> Points() const;

 private:
  // Sums over consecutive commits; `last` is the newest of them.
  struct Span {
    TrainingSample last;
    double begin_seconds = 0;
    int64_t begin_samples = 0;
    int64_t commits = 0;
  };

  static void Join(const Span& later, Span& span);
  static TrainingPoint PointOf(const Span& span);

  int64_t points_max_ = 0;
  int64_t commits_a_point_ = 1;
  std::vector<Span> spans_;
};

}  // namespace cohort
