#include "common/run_id_check.h"

#include <gtest/gtest.h>

namespace cohort {
namespace {

TEST(RunIdCheckTest, TheHeldRunAndAnUnnamedOnePass) {
  EXPECT_TRUE(CheckRunId("a", "a").ok());
  EXPECT_TRUE(CheckRunId("", "a").ok());
}

TEST(RunIdCheckTest, AnotherRunIsRefusedWithBothNames) {
  EXPECT_EQ(CheckRunId("b", "a"),
            absl::FailedPreconditionError(
                "got run b, want a: this server holds another run"));
}

TEST(RunIdCheckTest, TheMessageSaysWhereItHappened) {
  EXPECT_EQ(CheckRunId("b", "a", "join: "),
            absl::FailedPreconditionError(
                "join: got run b, want a: this server holds another run"));
}

TEST(RunIdCheckTest, AWorkerIsToldThatItsRunIsGone) {
  EXPECT_EQ(AsRunGone(CheckRunId("b", "a")),
            absl::NotFoundError("got run b, want a: this server holds another "
                                "run; this worker's run is gone, a new worker "
                                "joins that one"));
  EXPECT_EQ(AsRunGone(absl::OkStatus()), absl::OkStatus());
}

// If a run must be named, an empty name is a different run.
TEST(RunIdCheckTest, TheErrorAlsoNamesAnEmptyRun) {
  EXPECT_EQ(OtherRunError("", "a"),
            absl::FailedPreconditionError(
                "got run , want a: this server holds another run"));
}

}  // namespace
}  // namespace cohort
