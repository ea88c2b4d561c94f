#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

FakeSetup LongRun(FakeSetup setup) {
  setup.options.epochs = 20;
  setup.plan.test_samples = 0;
  setup.options.nonfinite_max = 3;
  return setup;
}

void Step(FakeCohort& cohort, float b1) {
  cohort.Push(kRank0, {.w = {1, 1}, .b = {1}});
  cohort.Push(kRank1, {.w = {1, 1}, .b = {b1}});
}

TEST(CoordinatorNonfiniteTest, ASkippedStepChangesOnlyTheVersion) {
  FakeCohort cohort(LongRun(SmallSetup()));
  cohort.Start();
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
  FakeCohort cohort(LongRun(SmallSetup()));
  cohort.Start();
  Step(cohort, kNan);
  Step(cohort, kNan);
  EXPECT_FALSE(cohort.core().ended());
  Step(cohort, kNan);
  const auto ended = cohort.All<effect::RunEnded>();
  ASSERT_EQ(ended.size(), 1);
  EXPECT_EQ(ended[0].outcome, RunOutcome::kNonfinite);
  EXPECT_EQ(ended[0].reason,
            "3 steps in a row were not finite; the last: rank 1: gradient of "
            "b");
  const Assignment& told = cohort.told(kRank0);
  EXPECT_EQ(told.kind, AssignmentKind::kFinished);
  EXPECT_EQ(told.reason, ended[0].reason);
  EXPECT_TRUE(told.failed);
  // A restarted server would fail again.
  EXPECT_FALSE(told.unfinished);
}

TEST(CoordinatorNonfiniteTest, AFiniteStepStartsTheCountAgain) {
  FakeCohort cohort(LongRun(SmallSetup()));
  cohort.Start();
  Step(cohort, kNan);
  Step(cohort, kNan);
  Step(cohort, 0);
  Step(cohort, kNan);
  Step(cohort, kNan);
  EXPECT_FALSE(cohort.core().ended());
}

TEST(CoordinatorNonfiniteTest, LocalMomentsNameRankAndLayer) {
  FakeCohort cohort(LongRun(SmallSetup()));
  cohort.Start();
  cohort.Push(kRank0, {});
  cohort.Push(kRank1,
              {.moments = {.count = 1, .first = {kNan}, .second = {0}}});
  EXPECT_EQ(cohort.All<effect::SendVerdict>()[0].verdict.reason,
            "rank 1: moments of bn");
}

TEST(CoordinatorNonfiniteTest, GlobalMomentsNameRankAndLayer) {
  FakeCohort cohort(LongRun(GlobalSetup()));
  cohort.Start();
  ASSERT_TRUE(
      cohort.Reduce(kRank0, {}, {.count = 1, .first = {kNan}, .second = {0}})
          .ok());
  ASSERT_TRUE(
      cohort.Reduce(kRank1, {}, {.count = 1, .first = {0}, .second = {0}})
          .ok());
  // The rendezvous completes nevertheless.
  EXPECT_EQ(cohort.All<effect::ReduceResult>().size(), 2);
  cohort.Push(kRank0, {});
  cohort.Push(kRank1, {});
  EXPECT_EQ(cohort.All<effect::SendVerdict>()[0].verdict.reason,
            "rank 0: moments of bn");
}

TEST(CoordinatorNonfiniteTest, MomentsThatOverflowTogetherSkipTheStep) {
  FakeCohort cohort(LongRun(GlobalSetup()));
  cohort.Start();
  for (const auto& [rank, mean] :
       {std::pair(kRank0, 1e30), std::pair(kRank1, -1e30)}) {
    ASSERT_TRUE(
        cohort.Reduce(rank, {}, {.count = 1, .first = {mean}, .second = {0}})
            .ok());
  }
  cohort.Push(kRank0, {});
  cohort.Push(kRank1, {});
  const auto verdicts = cohort.All<effect::SendVerdict>();
  EXPECT_EQ(verdicts[0].verdict.verdict, Verdict::kSkipped);
  EXPECT_EQ(verdicts[0].verdict.reason, "combined moments of bn");
}

// Finite in float64 only: workers normalise and exports are written in float32.
TEST(CoordinatorNonfiniteTest, MomentsBeyondFloat32AreNotFinite) {
  for (const Moments& moments :
       {Moments{.count = 1, .first = {1e40}, .second = {0}},
        Moments{.count = 1, .first = {0}, .second = {1.7e308}}}) {
    FakeCohort local(LongRun(SmallSetup()));
    local.Start();
    local.Push(kRank0, {});
    local.Push(kRank1, {.moments = moments});
    EXPECT_EQ(local.All<effect::SendVerdict>()[0].verdict.reason,
              "rank 1: moments of bn");
    FakeCohort global(LongRun(GlobalSetup()));
    global.Start();
    ASSERT_TRUE(global.Reduce(kRank0, {}, moments).ok());
    ASSERT_TRUE(
        global.Reduce(kRank1, {}, {.count = 1, .first = {0}, .second = {0}})
            .ok());
    global.Push(kRank0, {});
    global.Push(kRank1, {});
    EXPECT_EQ(global.All<effect::SendVerdict>()[0].verdict.reason,
              "rank 0: moments of bn");
    FakeCohort async(LongRun(AsyncSetup()));
    async.Start();
    async.Push(kRank1, {.moments = moments});
    EXPECT_EQ(async.All<effect::SendVerdict>()[0].verdict.reason,
              "rank 1: moments of bn");
  }
}

// Each rank's mean fits, and the variance of both together does not.
TEST(CoordinatorNonfiniteTest, MomentsTogetherBeyondFloat32AreNotFinite) {
  const auto far = [](double mean) {
    return Moments{.count = 2, .first = {mean}, .second = {0}};
  };
  for (const int64_t inline_max : {int64_t{1} << 20, int64_t{0}}) {
    for (const bool global : {false, true}) {
      FakeSetup setup = global ? GlobalSetup() : SmallSetup();
      setup.options.moments_inline_max = inline_max;
      FakeCohort cohort(LongRun(setup));
      cohort.Start();
      const auto before = *cohort.snapshot()->statistics;
      if (global) {
        ASSERT_TRUE(cohort.Reduce(kRank0, {}, far(1e30)).ok());
        ASSERT_TRUE(cohort.Reduce(kRank1, {}, far(-1e30)).ok());
      }
      cohort.Push(kRank0, {.moments = far(1e30)});
      cohort.Push(kRank1, {.moments = far(-1e30)});
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
  FakeCohort cohort(LongRun(setup));
  cohort.Start();
  cohort.Push(kRank0,
              {.moments = {.count = 2, .first = {1e30}, .second = {0}}});
  const auto verdicts = cohort.All<effect::SendVerdict>();
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].verdict.verdict, Verdict::kRejectedNonfinite);
  EXPECT_EQ(verdicts[0].verdict.reason, "combined moments of bn");
  EXPECT_EQ(cohort.snapshot()->version, Version(0));
}

// A repetition is ignored, so its non-finite values do not matter either.
TEST(CoordinatorNonfiniteTest, ARepetitionCannotSpoilAStep) {
  FakeCohort cohort(LongRun(SmallSetup()));
  cohort.Start();
  cohort.Push(kRank0, {});
  ASSERT_TRUE(
      cohort
          .Close(kRank0,
                 {.moments = {.count = 1, .first = {kNan}, .second = {0}}})
          .ok());
  cohort.Push(kRank1, {});
  EXPECT_EQ(cohort.All<effect::SendVerdict>()[0].verdict.verdict,
            Verdict::kApplied);
}

TEST(CoordinatorNonfiniteTest, AsyncRejectsThePushAlone) {
  FakeCohort cohort(LongRun(AsyncSetup()));
  cohort.Start();
  cohort.Push(kRank0, {.b = {kNan}});
  EXPECT_EQ(cohort.snapshot()->version, Version(0));
  EXPECT_THAT(cohort.weights(1), ElementsAre(3));
  const auto verdicts = cohort.All<effect::SendVerdict>();
  ASSERT_EQ(verdicts.size(), 1);
  EXPECT_EQ(verdicts[0].verdict.verdict, Verdict::kRejectedNonfinite);
  EXPECT_EQ(verdicts[0].verdict.reason, "rank 0: gradient of b");
  EXPECT_EQ(cohort.counter("pushes_rejected_nonfinite"), 1);
  // Its samples are not handed out again.
  EXPECT_EQ(cohort.told(kRank0).range, (IndexRange{4, 6}));
}

TEST(CoordinatorNonfiniteTest, AsyncRejectionsInARowEndTheRun) {
  FakeCohort cohort(LongRun(AsyncSetup()));
  cohort.Start();
  const PushKey under_way = cohort.key(kRank1);
  for (int i = 0; i < 3; ++i) cohort.Push(kRank0, {.b = {kNan}});
  const auto ended = cohort.All<effect::RunEnded>();
  ASSERT_EQ(ended.size(), 1);
  EXPECT_EQ(ended[0].outcome, RunOutcome::kNonfinite);
  EXPECT_THAT(ended[0].reason, HasSubstr("3 pushes in a row"));
  // Later messages change nothing.
  Effects out;
  EXPECT_TRUE(cohort.core()
                  .Open(cohort.sender(kRank1), under_way,
                        {.samples = 2, .loss_weight = 1}, cohort.now(), out)
                  .ok());
  EXPECT_TRUE(out.empty());
  EXPECT_EQ(cohort.snapshot()->version, Version(0));
}

}  // namespace
}  // namespace cohort
