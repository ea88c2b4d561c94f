#include "server/records/progress_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/records/training_status.h"

namespace cohort {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ProgressTextTest, TellsStepEpochSpeedAndTimeLeft) {
  // 150 of 400; 250 left at 10 a second.
  EXPECT_EQ(
      ProgressText(Training(), 10),
      "step 30, epoch 2 of 4, 37 % of the run, loss 0.5000, 10 images/s, ETA "
      "25 s");
}

// --max_steps: 20 steps of 32 images, and an epoch has more. The total is an
// estimate, which the last step may exceed.
TEST(ProgressTextTest, ARunWithinItsFirstEpochTellsItsOwnShare) {
  StatusView status = Training();
  status.version = Version(10);
  status.data_epoch = 0;
  status.epochs = 10;
  status.samples = 320;
  status.samples_total = 640;
  EXPECT_THAT(ProgressText(status, 0),
              StartsWith("step 10, epoch 1 of 10, 50 % of the run, loss"));
  status.samples = 650;
  EXPECT_THAT(ProgressText(status, 0), HasSubstr(", 100 % of the run, "));
  status.samples_total = 0;
  EXPECT_EQ(ProgressText(status, 0), status.state);
}

TEST(ProgressTextTest, TellsTheNewestTestMeasure) {
  StatusView status = Training();
  status.test = EvaluationSums{.correct = 3, .labels = 4};
  EXPECT_THAT(ProgressText(status, 10),
              EndsWith("ETA 25 s, test accuracy 75.0 %"));
  status.test->classes = {{.intersection = 3, .predicted = 4, .actual = 3},
                          {.intersection = 0, .predicted = 0, .actual = 1}};
  EXPECT_THAT(ProgressText(status, 10), EndsWith("ETA 25 s, test mIoU 37.5 %"));
}

TEST(ProgressTextTest, CountsWorkersOnlyWhereTheNumberSaysSomething) {
  StatusView status = Training();
  status.workers_live = 1;
  EXPECT_THAT(ProgressText(status, 10), EndsWith("ETA 25 s, workers 1/2"));
  status.workers_min = 1;
  status.workers_live = 2;
  EXPECT_THAT(ProgressText(status, 10), EndsWith("ETA 25 s, workers 2 of 1:2"));
}

TEST(ProgressTextTest, WaitingIsToldInTheServersOwnWords) {
  StatusView status = Training();
  status.state = "waiting for a replacement of worker 1, gives up in 9 s";
  EXPECT_EQ(ProgressText(status, 10), status.state);
}

}  // namespace
}  // namespace cohort
