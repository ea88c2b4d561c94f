#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr Moments (*kOne)(double) = [](double mean) {
  return Moments{.count = 1, .first = {mean}, .second = {0}};
};

ReduceKey Key(int64_t step, int32_t layer, int32_t call, int32_t attempt = 0) {
  return {.step = Version(step),
          .attempt = Attempt(attempt),
          .place = {.layer = layer, .call = call}};
}

TEST(CoordinatorRendezvousTest, AnswersAllMembersInRankOrder) {
  StartedCohort cohort(GlobalSetup());
  EXPECT_TRUE(cohort.told(kRank0).global_normalization);
  ASSERT_TRUE(cohort.Reduce(kRank1, {}, kOne(6)).ok());
  EXPECT_THAT(cohort.All<effect::ReduceResult>(), IsEmpty());
  ASSERT_TRUE(cohort.Reduce(kRank0, {}, kOne(2)).ok());
  const auto results = cohort.All<effect::ReduceResult>();
  ASSERT_EQ(results.size(), 2);
  EXPECT_EQ(results[0].rank, kRank0);
  EXPECT_EQ(results[1].rank, kRank1);
  EXPECT_EQ(results[0].moments->count, 2);
  EXPECT_THAT(results[0].moments->first, ElementsAre(4));
  EXPECT_THAT(results[0].moments->second, ElementsAre(8));
}

// There is one layer, so a rank may wait in 66 calls. No other rank comes.
TEST(CoordinatorRendezvousTest, RankThatWaitsInTooManyCallsIsRefused) {
  StartedCohort cohort(GlobalSetup());
  for (int32_t call = 0; call < 66; ++call) {
    ASSERT_TRUE(cohort.Reduce(kRank1, Key(0, 0, call), kOne(6)).ok());
  }
  EXPECT_TRUE(
      absl::IsResourceExhausted(cohort.Reduce(kRank1, Key(0, 0, 66), kOne(6))));
  // A repetition holds nothing more, and the other ranks are not affected.
  EXPECT_TRUE(cohort.Reduce(kRank1, Key(0, 0, 65), kOne(6)).ok());
  EXPECT_TRUE(cohort.Reduce(kRank0, {}, kOne(2)).ok());
  EXPECT_TRUE(cohort.Reduce(kRank1, Key(0, 0, 66), kOne(6)).ok());
}

TEST(CoordinatorRendezvousTest, StatisticsAreUpdatedOnceFromTheCombined) {
  StartedCohort cohort(GlobalSetup());
  cohort.ReduceBoth({}, kOne(2), kOne(6));
  cohort.PushBoth({});
  const LayerStatistics& statistics =
      cohort.snapshot()->statistics->front().layers.front();
  EXPECT_EQ(statistics.num_batches_tracked, 1);
  EXPECT_FLOAT_EQ(statistics.mean[0], 0.1 * 4);
  EXPECT_FLOAT_EQ(statistics.variance[0], 0.9 + 0.1 * 8);
}

TEST(CoordinatorRendezvousTest, RefusesWhatDoesNotFit) {
  StartedCohort cohort(GlobalSetup());
  EXPECT_THAT(cohort.Reduce(kRank0, Key(0, 1, 0), kOne(0)),
              IsError(kInvalidArgument, "got layer 1, want below 1"));
  EXPECT_THAT(cohort.Reduce(kRank0, {}, {.count = 1}),
              IsError(kInvalidArgument, "bn: got moments of 0 and 0 channels"));
  EXPECT_THAT(
      cohort.Reduce(kRank0, {}, {.count = -1, .first = {0}, .second = {0}}),
      IsError(kInvalidArgument, "bn: got call 0 with count -1"));
  EXPECT_TRUE(
      absl::IsFailedPrecondition(cohort.Reduce(kRank0, Key(1, 0, 0), kOne(0))));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      cohort.Reduce(kRank0, Key(0, 0, 0, 1), kOne(0))));
}

TEST(CoordinatorRendezvousTest, LocalNormalisationHasNone) {
  StartedCohort cohort(SmallSetup());
  EXPECT_THAT(cohort.Reduce(kRank0, {}, kOne(0)),
              IsError(kFailedPrecondition, "--aggregation=sync"));
}

TEST(CoordinatorRendezvousTest, AContributionToAnOldStepIsAborted) {
  StartedCohort cohort(GlobalSetup());
  cohort.ReduceBoth({}, kOne(0));
  cohort.PushBoth({});
  cohort.Clear();
  ASSERT_TRUE(cohort.Reduce(kRank0, {}, kOne(0)).ok());
  const auto aborted = cohort.Only<effect::ReduceAborted>();
  EXPECT_EQ(aborted.rank, kRank0);
  EXPECT_EQ(aborted.reason, "step 0 attempt 0 is over");
}

TEST(CoordinatorRendezvousTest, ARankWithoutSamplesMayNotTakePart) {
  FakeSetup setup = GlobalSetup();
  setup.plan.train_samples = 3;
  StartedCohort cohort(setup);
  EXPECT_TRUE(absl::IsFailedPrecondition(cohort.Reduce(kRank1, {}, kOne(0))));
}

TEST(CoordinatorRendezvousTest, AfterTheEndAContributionIsAborted) {
  StartedCohort cohort(GlobalSetup());
  ASSERT_TRUE(cohort.Reduce(kRank1, {}, kOne(0)).ok());
  cohort.Leave(kRank0);
  cohort.Pass(absl::Minutes(11));
  ASSERT_TRUE(cohort.core().ended());
  cohort.Clear();
  ASSERT_TRUE(cohort.Reduce(kRank1, Key(0, 0, 1), kOne(0)).ok());
  EXPECT_EQ(cohort.All<effect::ReduceAborted>().size(), 1);
}

// Ranks 0 and 1 are one group; rank 2 is alone in the other.
TEST(CoordinatorRendezvousTest, GroupsNormaliseApartAndStatisticsAreOfAll) {
  FakeSetup setup = WithWorkers(GlobalSetup(), 3);
  setup.options.policy.normalization_group = 2;
  StartedCohort cohort(setup);
  ASSERT_TRUE(cohort.Reduce(kRank2, {}, kOne(9)).ok());
  ASSERT_TRUE(cohort.Reduce(kRank1, {}, kOne(6)).ok());
  ASSERT_TRUE(cohort.Reduce(kRank0, {}, kOne(0)).ok());
  const auto results = cohort.All<effect::ReduceResult>();
  ASSERT_EQ(results.size(), 3);
  EXPECT_EQ(results[0].rank, kRank2);
  EXPECT_THAT(results[0].moments->first, ElementsAre(9));
  EXPECT_EQ(results[1].rank, kRank0);
  EXPECT_THAT(results[1].moments->first, ElementsAre(3));
  EXPECT_THAT(results[2].moments->first, ElementsAre(3));
  for (Rank rank : {kRank0, kRank1, kRank2}) cohort.Push(rank, {});
  // 0, 6 and 9 have the mean 5 and the unbiased variance (25 + 1 + 16) / 2.
  const LayerStatistics& statistics =
      cohort.snapshot()->statistics->front().layers.front();
  EXPECT_EQ(statistics.num_batches_tracked, 1);
  EXPECT_FLOAT_EQ(statistics.mean[0], 0.1 * 5);
  EXPECT_FLOAT_EQ(statistics.variance[0], 0.9 + 0.1 * 21);
}

}  // namespace
}  // namespace cohort
