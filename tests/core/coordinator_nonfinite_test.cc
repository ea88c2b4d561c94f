#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Without variance.
Moments Mean(double mean, int64_t count = 1) {
  return {.count = count, .first = {mean}, .second = {0}};
}
FakeSetup LongRun(FakeSetup setup) {
  setup.options.epochs = 20;
  setup.plan.test_samples = 0;
  setup.options.nonfinite_max = 3;
  return setup;
}

void Step(FakeCohort& cohort, float b1) {
  cohort.PushBoth({.w = {1, 1}, .b = {1}}, {.w = {1, 1}, .b = {b1}});
}

TEST(CoordinatorNonfiniteTest, ASkippedStepChangesOnlyTheVersion) {
  StartedCohort cohort(LongRun(SmallSetup()));
  const auto statistics = *cohort.snapshot()->statistics;
  Step(cohort, kNan);
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_THAT(cohort.weights(0), ElementsAre(1, 2));
  EXPECT_THAT(cohort.weights(1), ElementsAre(3));
  EXPECT_EQ(*cohort.snapshot()->statistics, statistics);
  EXPECT_TRUE(cohort.All<effect::Committed>()[0].record.skipped);
  const auto verdicts = cohort.All<effect::SendVerdict>();
  ASSERT_EQ(verdicts.size(), 2);
  EXPECT_EQ(verdicts[0].verdict.verdict, Verdict::kSkipped);
  EXPECT_EQ(verdicts[0].verdict.reason, "rank 1: gradient of b");
  EXPECT_EQ(verdicts[0].weights_partitions, 0);
  EXPECT_EQ(cohort.counter("pushes_skipped"), 2);
  EXPECT_EQ(cohort.told(kRank0).range, (IndexRange{4, 7}));
}

TEST(CoordinatorNonfiniteTest, SoManyInARowEndTheRun) {
  StartedCohort cohort(LongRun(SmallSetup()));
  Step(cohort, kNan);
  Step(cohort, kNan);
  EXPECT_FALSE(cohort.core().ended());
  Step(cohort, kNan);
  const auto ended = cohort.Only<effect::RunEnded>();
  EXPECT_EQ(ended.outcome, RunOutcome::kNonfinite);
  EXPECT_THAT(ended.reason,
              HasSubstr("3 steps in a row were not finite; the last: rank 1:"));
  const Assignment& told = cohort.told(kRank0);
  EXPECT_EQ(told.kind, AssignmentKind::kFinished);
  EXPECT_EQ(told.reason, ended.reason);
  EXPECT_TRUE(told.failed);
  // A restarted server would fail again.
  EXPECT_FALSE(told.unfinished);
}

TEST(CoordinatorNonfiniteTest, AFiniteStepStartsTheCountAgain) {
  StartedCohort cohort(LongRun(SmallSetup()));
  Step(cohort, kNan);
  Step(cohort, kNan);
  Step(cohort, 0);
  Step(cohort, kNan);
  Step(cohort, kNan);
  EXPECT_FALSE(cohort.core().ended());
}

TEST(CoordinatorNonfiniteTest, MomentsThatOverflowTogetherSkipTheStep) {
  StartedCohort cohort(LongRun(GlobalSetup()));
  cohort.ReduceBoth({}, Mean(1e30), Mean(-1e30));
  cohort.PushBoth({});
  const auto verdicts = cohort.All<effect::SendVerdict>();
  EXPECT_EQ(verdicts[0].verdict.verdict, Verdict::kSkipped);
  EXPECT_EQ(verdicts[0].verdict.reason, "combined moments of bn");
}

// Finite in float64 only: workers normalise and exports are written in float32.
TEST(CoordinatorNonfiniteTest, MomentsBeyondFloat32AreNotFinite) {
  for (const Moments& moments :
       {Mean(kNan), Mean(1e40),
        Moments{.count = 1, .first = {0}, .second = {1.7e308}}}) {
    StartedCohort local(LongRun(SmallSetup()));
    local.PushBoth({}, {.moments = moments});
    EXPECT_EQ(local.All<effect::SendVerdict>()[0].verdict.reason,
              "rank 1: moments of bn");
    StartedCohort global(LongRun(GlobalSetup()));
    global.ReduceBoth({}, moments, Mean(0));
    // The rendezvous completes nevertheless.
    EXPECT_EQ(global.All<effect::ReduceResult>().size(), 2);
    global.PushBoth({});
    EXPECT_EQ(global.All<effect::SendVerdict>()[0].verdict.reason,
              "rank 0: moments of bn");
    StartedCohort async(LongRun(AsyncSetup()));
    async.Push(kRank1, {.moments = moments});
    EXPECT_EQ(async.All<effect::SendVerdict>()[0].verdict.reason,
              "rank 1: moments of bn");
  }
}

// Each rank's mean fits, and the variance of both together does not.
TEST(CoordinatorNonfiniteTest, MomentsTogetherBeyondFloat32AreNotFinite) {
  for (const int64_t inline_max : {int64_t{1} << 20, int64_t{0}}) {
    for (const bool global : {false, true}) {
      FakeSetup setup = global ? GlobalSetup() : SmallSetup();
      setup.options.moments_inline_max = inline_max;
      StartedCohort cohort(LongRun(setup));
      const auto before = *cohort.snapshot()->statistics;
      if (global) {
        cohort.ReduceBoth({}, Mean(1e30, 2), Mean(-1e30, 2));
      }
      cohort.PushBoth({.moments = Mean(1e30, 2)}, {.moments = Mean(-1e30, 2)});
      const auto verdicts = cohort.All<effect::SendVerdict>();
      ASSERT_EQ(verdicts.size(), 2u);
      EXPECT_EQ(verdicts[0].verdict.verdict, Verdict::kSkipped);
      EXPECT_EQ(verdicts[0].verdict.reason, "combined moments of bn");
      EXPECT_TRUE(cohort.All<effect::Committed>()[0].record.skipped);
      EXPECT_EQ(*cohort.snapshot()->statistics, before);
      EXPECT_THAT(cohort.weights(1), ElementsAre(3));
    }
  }
}

// The variance of the push and of what is held is far from either.
TEST(CoordinatorNonfiniteTest, APushThatOverflowsTheStatisticsIsRejected) {
  FakeSetup setup = AsyncSetup();
  setup.options.policy.mixture_variance = true;
  StartedCohort cohort(LongRun(setup));
  cohort.Push(kRank0, {.moments = Mean(1e30, 2)});
  const auto sent = cohort.Only<effect::SendVerdict>();
  EXPECT_EQ(sent.verdict.verdict, Verdict::kRejectedNonfinite);
  EXPECT_EQ(sent.verdict.reason, "combined moments of bn");
  EXPECT_EQ(cohort.snapshot()->version, Version(0));
}

// A repetition is ignored, so its non-finite values do not matter either.
TEST(CoordinatorNonfiniteTest, ARepetitionCannotSpoilAStep) {
  StartedCohort cohort(LongRun(SmallSetup()));
  cohort.Push(kRank0, {});
  ASSERT_TRUE(cohort.Close(kRank0, {.moments = Mean(kNan)}).ok());
  cohort.Push(kRank1, {});
  EXPECT_EQ(cohort.All<effect::SendVerdict>()[0].verdict.verdict,
            Verdict::kApplied);
}

TEST(CoordinatorNonfiniteTest, AsyncRejectsThePushAlone) {
  StartedCohort cohort(LongRun(AsyncSetup()));
  cohort.Push(kRank0, {.b = {kNan}});
  EXPECT_EQ(cohort.snapshot()->version, Version(0));
  EXPECT_THAT(cohort.weights(1), ElementsAre(3));
  const auto sent = cohort.Only<effect::SendVerdict>();
  EXPECT_EQ(sent.verdict.verdict, Verdict::kRejectedNonfinite);
  EXPECT_EQ(sent.verdict.reason, "rank 0: gradient of b");
  EXPECT_EQ(cohort.counter("pushes_rejected_nonfinite"), 1);
  // Its samples are not handed out again.
  EXPECT_EQ(cohort.told(kRank0).range, (IndexRange{4, 6}));
}

TEST(CoordinatorNonfiniteTest, AsyncRejectionsInARowEndTheRun) {
  StartedCohort cohort(LongRun(AsyncSetup()));
  const PushKey under_way = cohort.key(kRank1);
  for (int i = 0; i < 3; ++i) cohort.Push(kRank0, {.b = {kNan}});
  const auto ended = cohort.Only<effect::RunEnded>();
  EXPECT_EQ(ended.outcome, RunOutcome::kNonfinite);
  EXPECT_THAT(ended.reason, HasSubstr("3 pushes in a row"));
  // Later messages change nothing.
  Effects out;
  ExpectOk(cohort.core().Open(cohort.sender(kRank1), under_way,
                              {.samples = 2, .loss_weight = 1}, cohort.now(),
                              out));
  EXPECT_TRUE(out.empty());
  EXPECT_EQ(cohort.snapshot()->version, Version(0));
}

}  // namespace
}  // namespace cohort
