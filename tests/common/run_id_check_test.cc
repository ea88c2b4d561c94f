#include "common/run_id_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

TEST(RunIdCheckTest, TheHeldRunAndAnUnnamedOnePass) {
  EXPECT_TRUE(CheckRunId("a", "a").ok());
  EXPECT_TRUE(CheckRunId("", "a").ok());
}

TEST(RunIdCheckTest, AnotherRunIsRefusedWithBothNames) {
  EXPECT_THAT(CheckRunId("b", "a"),
              IsError(kFailedPrecondition, "got run b, want a"));
}

TEST(RunIdCheckTest, TheMessageSaysWhereItHappened) {
  EXPECT_THAT(CheckRunId("b", "a", "join: "),
              IsError(kFailedPrecondition, "join: got run b, want a"));
}

TEST(RunIdCheckTest, AWorkerIsToldThatItsRunIsGone) {
  EXPECT_THAT(AsRunGone(CheckRunId("b", "a")),
              IsError(kNotFound, "got run b, want a"));
  EXPECT_EQ(AsRunGone(absl::OkStatus()), absl::OkStatus());
}

// If a run must be named, an empty name is a different run.
TEST(RunIdCheckTest, TheErrorAlsoNamesAnEmptyRun) {
  EXPECT_THAT(OtherRunError("", "a"),
              IsError(kFailedPrecondition, "got run , want a"));
}

}  // namespace
}  // namespace cohort
