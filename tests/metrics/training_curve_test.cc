#include "server/metrics/training_curve.h"

#include <vector>

#include "gtest/gtest.h"

namespace cohort {
namespace {

// Commit number i: 10 samples, half a second after the previous one, with loss
// i.
TrainingSample Commit(int64_t i) {
  return {.version = i,
          .samples = 10 * i,
          .seconds = 0.5 * static_cast<double>(i),
          .loss_sum = 2 * static_cast<double>(i),
          .loss_weight = 2,
          .correct = 1,
          .labels = 4,
          .learning_rate = 0.1};
}

TEST(TrainingCurveTest, ShortOnesHaveAPointACommit) {
  TrainingCurve curve(8);
  for (int64_t i = 1; i <= 3; ++i) curve.Add(Commit(i));
  const std::vector<TrainingPoint> points = curve.Points();
  ASSERT_EQ(points.size(), 3);
  EXPECT_EQ(points[1].version, 2);
  EXPECT_EQ(points[1].loss, 2);
  EXPECT_EQ(points[1].accuracy, 0.25);
  EXPECT_EQ(points[1].samples_per_second, 20);
}

TEST(TrainingCurveTest, LongOnesAreThinnedEvenlyWithMeans) {
  TrainingCurve curve(4);
  for (int64_t i = 1; i <= 16; ++i) curve.Add(Commit(i));
  const std::vector<TrainingPoint> points = curve.Points();
  ASSERT_EQ(points.size(), 4);
  for (size_t i = 0; i < 4; ++i) {
    const auto k = static_cast<int64_t>(i);
    EXPECT_EQ(points[i].version, 4 * (k + 1));
    // The mean of commits 4k+1 to 4k+4.
    EXPECT_EQ(points[i].loss, 4 * static_cast<double>(k) + 2.5);
  }
  EXPECT_EQ(points[3].samples_per_second, 20);
}

TEST(TrainingCurveTest, NeverExceedsItsLimitAndEndsAtTheNewestCommit) {
  TrainingCurve curve(512);
  for (int64_t i = 1; i <= 100'000; ++i) {
    curve.Add(Commit(i));
    if (i % 9973 != 0) continue;
    const std::vector<TrainingPoint> points = curve.Points();
    EXPECT_LE(points.size(), 512);
    EXPECT_GE(points.size(), 256);
    EXPECT_EQ(points.back().version, i);
  }
}

TEST(TrainingCurveTest, WithoutLabelsThereIsNoLoss) {
  TrainingCurve curve(4);
  curve.Add({.version = 1});
  EXPECT_EQ(curve.Points()[0].loss, std::nullopt);
  EXPECT_EQ(curve.Points()[0].accuracy, std::nullopt);
}

}  // namespace
}  // namespace cohort
