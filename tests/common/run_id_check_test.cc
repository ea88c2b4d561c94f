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

// Where a run must be named, none is another run.
TEST(RunIdCheckTest, TheErrorAlsoNamesAnEmptyRun) {
  EXPECT_EQ(OtherRunError("", "a"),
            absl::FailedPreconditionError(
                "got run , want a: this server holds another run"));
}

}  // namespace
}  // namespace cohort
