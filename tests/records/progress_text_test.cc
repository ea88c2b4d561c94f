#include "server/records/progress_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "tests/records/training_status.h"

namespace cohort {
namespace {

using ::testing::EndsWith;

TEST(ProgressTextTest, TellsStepEpochSpeedAndTimeLeft) {
  // 50 of the second 100; 250 left at 10 a second.
  EXPECT_EQ(
      ProgressText(Training(), 10),
      "step 30, epoch 2 of 4, 50 % of it, loss 0.5000, 10 images/s, ETA 25 s, "
      "workers 2/2, sync");
}

TEST(ProgressTextTest, TellsTheNewestTestMeasure) {
  StatusView status = Training();
  status.test = EvaluationSums{.correct = 3, .labels = 4};
  EXPECT_THAT(ProgressText(status, 10),
              EndsWith("ETA 25 s, test accuracy 75.0 %, workers 2/2, sync"));
  status.test->classes = {{.intersection = 3, .predicted = 4, .actual = 3},
                          {.intersection = 0, .predicted = 0, .actual = 1}};
  EXPECT_THAT(ProgressText(status, 10),
              EndsWith("ETA 25 s, test mIoU 37.5 %, workers 2/2, sync"));
}

TEST(ProgressTextTest, WaitingIsToldInTheServersOwnWords) {
  StatusView status = Training();
  status.state = "waiting for a replacement of worker 1, gives up in 9 s";
  EXPECT_EQ(ProgressText(status, 10), status.state);
}

TEST(ProgressTextTest, ShorterLineBlanksTheRest) {
  std::ostringstream out;
  ProgressLine line;
  line.Show(out, "abcdef", 80);
  line.Show(out, "xy", 80);
  line.Show(out, "123456", 4);
  line.Clear(out);
  EXPECT_EQ(out.str(), "\rabcdef\rxy    \r123\r   \r");
}

}  // namespace
}  // namespace cohort
