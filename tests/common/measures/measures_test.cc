#include "common/measures/measures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::IsEmpty;
using ::testing::Optional;

// Ten pixels of classes 0 to 3. Class 0: 5 labels, 6 predictions, 4 correct.
// Class 1: 3 labels, 2 predictions, 1 correct. Class 2: no label, 2
// predictions. Class 3: neither. Class 4: 2 labels, no prediction.
EvaluationSums Pixels() {
  return {.samples = 1,
          .loss_sum = 6,
          .loss_weight = 12,
          .correct = 5,
          .labels = 10,
          .classes = {{.intersection = 4, .predicted = 6, .actual = 5},
                      {.intersection = 1, .predicted = 2, .actual = 3},
                      {.intersection = 0, .predicted = 2, .actual = 0},
                      {},
                      {.intersection = 0, .predicted = 0, .actual = 2}}};
}

EvaluationSums Images() {
  return {.samples = 8,
          .loss_sum = 2,
          .loss_weight = 8,
          .correct = 6,
          .labels = 8,
          .top5_correct = 7};
}

TEST(MeasuresTest, IntersectionOverUnionOfEachClass) {
  EXPECT_THAT(ClassIou(Pixels()),
              ElementsAre(Optional(4.0 / 7), Optional(1.0 / 4), Optional(0.0),
                          Eq(std::nullopt), Optional(0.0)));
  EXPECT_THAT(ClassIou(Images()), IsEmpty());
}

// A class without labels and predictions says nothing about the model.
TEST(MeasuresTest, MeanIouLeavesOutClassesThatAreNowhere) {
  EXPECT_DOUBLE_EQ(*MeanIou(Pixels()), (4.0 / 7 + 1.0 / 4) / 4);
  EXPECT_FALSE(MeanIou(Images()).has_value());
  EXPECT_FALSE(MeanIou({.classes = {{}, {}}}).has_value());
}

TEST(MeasuresTest, SharesOfNothingAreZero) {
  const EvaluationSums none{.samples = 3, .top5_correct = 0};
  EXPECT_EQ(MeanLoss(none), 0);
  EXPECT_EQ(Accuracy(none), 0);
  EXPECT_THAT(TopFiveAccuracy(none), Optional(0.0));
}

TEST(MeasuresTest, SharesAreOfValidLabelsAndLossOfItsWeight) {
  EXPECT_DOUBLE_EQ(MeanLoss(Pixels()), 0.5);
  EXPECT_DOUBLE_EQ(Accuracy(Pixels()), 0.5);
  EXPECT_THAT(TopFiveAccuracy(Images()), Optional(7.0 / 8));
  EXPECT_FALSE(TopFiveAccuracy(Pixels()).has_value());
}

TEST(MeasuresTest, TextsNameTheMeasureThatCounts) {
  EXPECT_EQ(MainMeasureText(Images()), "accuracy 75.0 %");
  EXPECT_EQ(SideMeasureText(Images()), "top-5 accuracy 87.5 %");
  EXPECT_EQ(SideMeasureText({.correct = 1, .labels = 1}), "");
  EXPECT_EQ(MainMeasureText(Pixels()), "mIoU 20.5 %");
  EXPECT_EQ(SideMeasureText(Pixels()), "pixel accuracy 50.0 %");
  EXPECT_EQ(MainMeasureText({.classes = {{}}}), "mIoU none");
  EXPECT_THAT(ClassIouTexts(Pixels()),
              ElementsAre("IoU of class 0 57.1 %", "IoU of class 1 25.0 %",
                          "IoU of class 2 0.0 %", "IoU of class 3 none",
                          "IoU of class 4 0.0 %"));
}

TEST(MeasuresTest, SumsOfPartsAreThoseOfTheWhole) {
  EvaluationSums sums = Pixels();
  Add(Pixels(), sums);
  EXPECT_EQ(sums.samples, 2);
  EXPECT_EQ(sums.labels, 20);
  EXPECT_EQ(sums.classes[1],
            (ClassSums{.intersection = 2, .predicted = 4, .actual = 6}));
  EXPECT_DOUBLE_EQ(*MeanIou(sums), *MeanIou(Pixels()));
  EvaluationSums images = Images();
  Add(Images(), images);
  EXPECT_THAT(images.top5_correct, Optional(14));
}

TEST(MeasuresTest, PartsWithOtherMeasuresDoNotFit) {
  EXPECT_TRUE(CheckSameMeasures(Pixels(), Pixels()).ok());
  EXPECT_THAT(CheckSameMeasures(Pixels(), Images()),
              IsError(kInvalidArgument, "got 5 classes and no top-5 count"));
  EvaluationSums fewer = Pixels();
  fewer.classes.pop_back();
  EXPECT_FALSE(CheckSameMeasures(fewer, Pixels()).ok());
}

TEST(MeasuresTest, CountsThatCannotBeAreRefused) {
  EXPECT_TRUE(Validate(Pixels()).ok());
  EXPECT_TRUE(Validate(Images()).ok());
  EXPECT_TRUE(Validate({}).ok());
  const auto refused = [](const std::string& why, EvaluationSums sums,
                          auto change) {
    change(sums);
    EXPECT_THAT(Validate(sums), IsError(kInvalidArgument, why));
  };
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  refused("samples: got -1", Images(), [](auto& s) { s.samples = -1; });
  refused("labels: got 9223372036854775807", Images(),
          [](auto& s) { s.labels = kHuge; });
  refused("correct: got 9, want 0", Images(), [](auto& s) { s.correct = 9; });
  refused("top5_correct: got 9, want 0 to 8", Images(),
          [](auto& s) { s.top5_correct = 9; });
  refused("top5_correct: got 5, want at least the 6 correct", Images(),
          [](auto& s) { s.top5_correct = 5; });
  refused("classes.actual: got 9223372036854775807, want 0 to 10", Pixels(),
          [](auto& s) { s.classes[0].actual = kHuge; });
  refused("classes.predicted: got -1, want 0 to 4", Pixels(),
          [](auto& s) { s.classes[1].predicted = -1; });
  refused("classes.intersection: got 1, want 0 to 0", Pixels(),
          [](auto& s) { s.classes[2].intersection = 1; });
  refused("classes: got 5 of 9 labels", Pixels(),
          [](auto& s) { s.classes[4].actual = 1; });
}

}  // namespace
}  // namespace cohort
