#include "common/exit_codes.h"

#include <gtest/gtest.h>

namespace cohort {
namespace {

TEST(ExitCodesTest, FinalCodesAreThoseThatAnotherProcessWouldEndWith) {
  for (const int code : {2, 3, 4, 7, 8, 126, 127}) {
    EXPECT_TRUE(WouldEndSoAgain(code)) << code;
  }
  // The others, signals and codes of unknown programs.
  for (const int code : {0, 1, 5, 6, 9, 75, 128 + 9, 128 + 15, -1, 42}) {
    EXPECT_FALSE(WouldEndSoAgain(code)) << code;
  }
}

TEST(ExitCodesTest, StartsAreLimited) {
  EXPECT_EQ(WhyNotAgain({.code = 137, .restarts = 2, .restarts_max = 3}, ""),
            "");
  EXPECT_NE(WhyNotAgain({.code = 137, .restarts = 3, .restarts_max = 3}, ""),
            "");
  EXPECT_NE(WhyNotAgain({.code = 1, .restarts_max = 0}, ""), "");
  EXPECT_NE(WhyNotAgain({.code = kExitConfig, .restarts_max = 3}, ""), "");
}

TEST(ExitCodesTest, ARunThatWaitsStopsIfItsWorkerCannotComeBack) {
  const SizeRule waits{.waits = true};
  EXPECT_EQ(DecideAfterLoss(true, waits, 5), AfterLoss::kStartAgain);
  EXPECT_EQ(DecideAfterLoss(false, waits, 5), AfterLoss::kStopRun);
}

TEST(ExitCodesTest, ARunThatDoesNotWaitContinuesWhileAWorkerIsLeft) {
  const SizeRule continues{.waits = false};
  EXPECT_EQ(DecideAfterLoss(true, continues, 1), AfterLoss::kContinueWithout);
  EXPECT_EQ(DecideAfterLoss(true, continues, 0), AfterLoss::kStopRun);
}

TEST(ExitCodesTest, AnElasticRunStartsItsWorkersAgainWhileItMay) {
  const SizeRule elastic{.waits = false, .workers_min = 2};
  EXPECT_EQ(DecideAfterLoss(true, elastic, 0), AfterLoss::kStartAgain);
  EXPECT_EQ(DecideAfterLoss(false, elastic, 2), AfterLoss::kContinueWithout);
  EXPECT_EQ(DecideAfterLoss(false, elastic, 1), AfterLoss::kStopRun);
}

}  // namespace
}  // namespace cohort
