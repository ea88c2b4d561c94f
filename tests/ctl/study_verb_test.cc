// The command line of `cohortctl study`. tests/ctl/study and
// tests/integration/study_test.py test its work.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/ctl/ctl_harness.h"
#include "tests/ctl/prints_error.h"

namespace cohort {
namespace {

using testing::HasSubstr;

TEST(StudyVerbTest, HelpHasExamplesFirstAndEachFlag) {
  CtlHarness ctl;
  const CtlResult result = ctl.RunPlain("help study");
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr("cohortctl study --batch_size=1,4 "));
  for (const char* flag :
       {"--out=DIR", "--aggregation=LIST", "--normalization=LIST",
        "--bn_statistics=LIST", "--staleness=LIST", "--order=LIST",
        "--batch_size=LIST", "--workers=LIST", "--seed=LIST",
        "--reference_images=N", "--parallel=N", "--programs=DIR",
        "--FLAG=VALUE"}) {
    EXPECT_THAT(result.out, HasSubstr(absl::StrCat("\n  ", flag, " ")));
  }
}

TEST(StudyVerbTest, ValuesThatCannotBeAreExitCode3) {
  struct Case {
    const char* arguments;
    const char* err;
  };
  const Case cases[] = {
      {"--aggregation=syn", "--aggregation: got 'syn', want some of sync"},
      {"--bn_statistics=batch", "--bn_statistics: got 'batch', want some of"},
      {"--order=", "--order: got '', want some of shuffled"},
      {"--batch_size=1,0",
       "--batch_size: got '1,0', want numbers of 1 or more"},
      {"--workers=2,1:3", "--workers: got '2,1:3', want the sizes"},
      {"--seed=1,1", "--seed: got '1,1', want each value once"},
      {"--parallel=0", "--parallel: got '0', want 1 or more"}};
  CtlHarness ctl;
  for (const Case& c : cases) {
    EXPECT_THAT(ctl.RunPlain(absl::StrCat("study ", c.arguments)),
                PrintsError(3, c.err));
  }
}

}  // namespace
}  // namespace cohort
