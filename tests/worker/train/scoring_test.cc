#include "worker/train/scoring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <vector>

#include "tests/fakes/tiny_dataset.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::IsEmpty;
using ::testing::Optional;

at::Tensor Labels(const std::vector<int64_t>& labels) {
  return torch::tensor(labels, torch::kLong);
}

EvaluationSums Counted(const at::Tensor& logits, const at::Tensor& labels) {
  EvaluationSums sums;
  CountMeasures(logits, labels, sums);
  return sums;
}

// Classes by falling score: 6, 5, 4, 3, 2, 1, 0.
TEST(CountMeasuresTest, TopFiveAreTheFiveHighestScores) {
  const at::Tensor logits = torch::arange(7).to(torch::kFloat).expand({5, 7});
  const EvaluationSums sums = Counted(logits, Labels({6, 2, 1, -1, 5}));
  EXPECT_EQ(sums.correct, 1);
  EXPECT_EQ(sums.labels, 4);
  EXPECT_THAT(sums.top5_correct, Optional(3));
  EXPECT_THAT(sums.classes, IsEmpty());
}

TEST(CountMeasuresTest, FiveClassesHaveNoTopFive) {
  const EvaluationSums sums = Counted(torch::eye(5), Labels({0, 1, 2, 3, 3}));
  EXPECT_EQ(sums.correct, 4);
  EXPECT_THAT(sums.top5_correct, Eq(std::nullopt));
}

// A network without any information must not score well, and the top prediction
// must be among the top five: the server refuses anything else.
TEST(CountMeasuresTest, AmongEqualScoresTheLowestClassComesFirst) {
  const at::Tensor labels = Labels({0, 1, 2, 3, 4, 5, 6, 7});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double score : {0.0, nan}) {
    const EvaluationSums sums = Counted(torch::full({8, 8}, score), labels);
    EXPECT_EQ(sums.correct, 1) << score;
    EXPECT_THAT(sums.top5_correct, Optional(5)) << score;
  }
  // A NaN score comes before all numbers.
  at::Tensor logits = torch::arange(8).to(torch::kFloat).repeat({8, 1});
  logits.select(1, 0).fill_(nan);
  const EvaluationSums sums = Counted(logits, labels);
  EXPECT_EQ(sums.correct, 1);
  EXPECT_THAT(sums.top5_correct, Optional(5));
}

// Two images of 1 x 3: predictions {0, 1, 2}, {2, 2, 0}; labels {0, 2, -1}, {2,
// 2, 2}.
TEST(CountMeasuresTest, PixelsAreCountedByClass) {
  const at::Tensor predicted = Labels({0, 1, 2, 2, 2, 0}).view({2, 1, 3});
  const at::Tensor logits =
      torch::one_hot(predicted, 3).permute({0, 3, 1, 2}).to(torch::kFloat);
  const at::Tensor labels = Labels({0, 2, -1, 2, 2, 2}).view({2, 1, 3});
  EvaluationSums sums = Counted(logits, labels);
  EXPECT_EQ(sums.correct, 3);
  EXPECT_EQ(sums.labels, 5);
  EXPECT_THAT(sums.top5_correct, Eq(std::nullopt));
  EXPECT_THAT(sums.classes, ElementsAre(ClassSums{1, 2, 1}, ClassSums{0, 1, 0},
                                        ClassSums{2, 2, 4}));
  // Counts of a second batch are added.
  CountMeasures(logits, labels, sums);
  EXPECT_EQ(sums.labels, 10);
  EXPECT_EQ(sums.classes[2], (ClassSums{4, 4, 8}));
}

TEST(CountMeasuresTest, AnEmptyBatchHasItsMeasures) {
  const EvaluationSums images =
      Counted(torch::zeros({0, 6}), torch::zeros({0}, torch::kLong));
  EXPECT_THAT(images.top5_correct, Optional(0));
  const EvaluationSums pixels = Counted(torch::zeros({0, 6, 2, 2}),
                                        torch::zeros({0, 2, 2}, torch::kLong));
  EXPECT_EQ(pixels.classes.size(), 6U);
  EXPECT_EQ(pixels.labels, 0);
}

class WideDataset final : public TinyDataset {
 public:
  WideDataset(int64_t height, int64_t width) : height_(height), width_(width) {}
  int64_t height() const override { return height_; }
  int64_t width() const override { return width_; }

 private:
  int64_t height_;
  int64_t width_;
};

TEST(EvaluationBatchSizeTest, LargeImagesAreScoredFewAtATime) {
  EXPECT_EQ(EvaluationBatchSize(WideDataset(8, 8)), 256);
  EXPECT_EQ(EvaluationBatchSize(WideDataset(32, 32)), 256);
  EXPECT_EQ(EvaluationBatchSize(WideDataset(180, 240)), 6);
  EXPECT_EQ(EvaluationBatchSize(WideDataset(2000, 3000)), 1);
}

}  // namespace
}  // namespace cohort
