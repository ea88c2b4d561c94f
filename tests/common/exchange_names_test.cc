#include "common/exchange_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace cohort {
namespace {

using ::testing::ElementsAre;

// Programs compare them: files and scripts must not change with a release.
TEST(ExchangeNamesTest, AreFixed) {
  std::vector<std::string> kinds;
  for (const AssignmentKind kind :
       {AssignmentKind::kTrain, AssignmentKind::kEvaluate,
        AssignmentKind::kWait, AssignmentKind::kFinished,
        AssignmentKind::kCollectMoments}) {
    kinds.emplace_back(AssignmentName(kind));
  }
  EXPECT_THAT(kinds, ElementsAre("train", "evaluate", "wait", "finished",
                                 "collect_moments"));
  std::vector<std::string> verdicts;
  for (const Verdict verdict :
       {Verdict::kApplied, Verdict::kDamped, Verdict::kSkipped,
        Verdict::kDropped, Verdict::kRejectedNonfinite}) {
    verdicts.emplace_back(VerdictName(verdict));
  }
  EXPECT_THAT(verdicts, ElementsAre("applied", "damped", "skipped", "dropped",
                                    "rejected_nonfinite"));
}

}  // namespace
}  // namespace cohort
