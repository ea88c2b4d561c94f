// The number of workers changes: before the start, and in the middle of events
// that use a rank afterwards. The address sanitizer finds reads of freed
// memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using testing::ElementsAre;

constexpr Rank kRank3{3};

// Batches of 2 and 40 samples an epoch; room for nine ranks.
FakeSetup ResizeSetup(int32_t workers) {
  FakeSetup setup = Long(WithWorkers(SmallSetup(), 9, 2));
  setup.options.workers = workers;
  return setup;
}

SettingValues Workers(int32_t count) {
  return {{"workers", absl::StrCat(count)}};
}

TEST(CoordinatorResizeTest, GrowthBeforeTheLastHasRegisteredIsWaitedFor) {
  FakeCohort cohort(ResizeSetup(2));
  cohort.StartOne(kRank0);
  ASSERT_TRUE(cohort.Join(kRank1).ok());
  ASSERT_TRUE(cohort.Change(Workers(4)).ok());
  ASSERT_TRUE(cohort.Register(kRank1).ok());
  EXPECT_FALSE(Trains(cohort, kRank1));
  EXPECT_THAT(cohort.Status().waited_for, ElementsAre(kRank2, kRank3));
  cohort.StartOne(kRank2);
  cohort.StartOne(kRank3);
  for (int32_t rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(Trains(cohort, Rank(rank))) << rank;
  }
}

TEST(CoordinatorResizeTest, ShrinkBeforeTheStartTakesEffectAtOnce) {
  FakeCohort cohort(ResizeSetup(2));
  cohort.StartOne(kRank0);
  const auto answer = OkValue(cohort.Change(Workers(1)));
  EXPECT_FALSE(answer.pending);
  EXPECT_THAT(cohort.told(kRank0).members, ElementsAre(kRank0));
}

TEST(CoordinatorResizeTest, ShrinkBeforeTheStartSendsTheSurplusHome) {
  FakeCohort cohort(ResizeSetup(3));
  cohort.StartOne(kRank2);
  ASSERT_TRUE(cohort.Change(Workers(2)).ok());
  EXPECT_EQ(cohort.told(kRank2).kind, AssignmentKind::kFinished);
  EXPECT_EQ(cohort.told(kRank2).reason, "the run continues with 2 workers");
  cohort.StartOne(kRank0);
  cohort.StartOne(kRank1);
  EXPECT_THAT(cohort.told(kRank0).members, ElementsAre(kRank0, kRank1));
}

TEST(CoordinatorResizeTest, AWorkerReturnsToACohortOfAnotherSize) {
  for (const int32_t workers : {1, 9}) {
    FakeCohort cohort(ResizeSetup(2));
    cohort.StartOne(kRank0);
    cohort.BreakSession(kRank0);
    ASSERT_TRUE(cohort.Change(Workers(workers)).ok());
    if (workers > 1) cohort.StartOne(kRank1);
    ASSERT_TRUE(cohort.Join(kRank0, cohort.incarnation(kRank0)).ok());
    EXPECT_EQ(cohort.Status().workers_expected, workers);
    EXPECT_EQ(Trains(cohort, kRank0), workers == 1);
  }
}

// Two ranks fall silent together; losing the first one lets the change take
// effect.
TEST(CoordinatorResizeTest, TwoRanksAreLostInOneTickWhileAResizeIsPending) {
  for (const int32_t workers : {1, 2, 9}) {
    StartedCohort cohort(Continuing(ResizeSetup(3)));
    const auto answer = cohort.Change(Workers(workers));
    ASSERT_TRUE(answer.ok() && answer->pending);
    cohort.PassWithHeartbeatsOf({kRank0}, absl::Seconds(11));
    EXPECT_EQ(cohort.Status().workers_expected, workers);
    EXPECT_THAT(cohort.told(kRank0).members, ElementsAre(kRank0));
    EXPECT_EQ(cohort.Status().workers_live, 1);
  }
}

// The work of two lost ranks is withdrawn. Without the second rank the step
// commits, which lets the change take effect in the middle of the withdrawal.
TEST(CoordinatorResizeTest, AStepCommitsWhileLostRanksAreWithdrawn) {
  for (const int32_t workers : {2, 9}) {
    FakeSetup setup = ResizeSetup(3);
    setup.options.policy.pushes_min = 2;
    StartedCohort cohort(setup);
    cohort.Push(kRank2, PushOf(0));
    cohort.Leave(kRank0);
    cohort.Leave(kRank1);
    ASSERT_TRUE(cohort.Change(Workers(workers)).ok());
    EXPECT_EQ(cohort.snapshot()->version, Version(1));
    EXPECT_EQ(cohort.Status().workers_expected, workers);
  }
}

// The rank was asked to leave, so messages that it still sends are not errors.
TEST(CoordinatorResizeTest, WhatASurplusRankSendsIsFenced) {
  StartedCohort cohort(ResizeSetup(2));
  const PushKey key = cohort.key(kRank1);
  ASSERT_TRUE(cohort.Change(Workers(1)).ok());
  cohort.PushBoth(PushOf(0));
  ASSERT_EQ(cohort.told(kRank1).kind, AssignmentKind::kFinished);
  Effects out;
  EXPECT_THAT(
      cohort.core().Close(cohort.sender(kRank1), key, {}, cohort.now(), out),
      IsError(kAborted, "continues with 1 workers"));
  Sender never = cohort.sender(kRank1);
  never.rank = Rank(7);
  EXPECT_THAT(cohort.core().Close(never, key, {}, cohort.now(), out),
              IsError(kInvalidArgument, "rank 7, want 0 to 0"));
}

// Ensures that a key never names two pushes, even of different processes.
TEST(CoordinatorResizeTest, ARankThatComesAgainGoesOnWithItsNumbers) {
  StartedCohort cohort(ResizeSetup(2));
  ASSERT_TRUE(cohort.Change(Workers(1)).ok());
  cohort.PushBoth(PushOf(0));
  const RunState small = *cohort.State();
  EXPECT_EQ(small.batch_sizes.size(), 1);
  ASSERT_TRUE(cohort.Change(Workers(2)).ok());
  cohort.Push(kRank0, PushOf(0));
  cohort.StartOne(kRank1);
  cohort.Push(kRank0, PushOf(0));
  ASSERT_TRUE(Trains(cohort, kRank1));
  EXPECT_EQ(cohort.told(kRank1).sequence, Sequence(2));

  StartedCohort restored(ResizeSetup(2), &small);
  EXPECT_EQ(restored.told(kRank1).sequence, Sequence(2));
}

TEST(CoordinatorResizeTest, APendingGrowthIsNamedToThoseWhoComeTooEarly) {
  StartedCohort cohort(ResizeSetup(2));
  ASSERT_TRUE(cohort.Change(Workers(3)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(cohort.Join(kRank2)));
  Effects out;
  EXPECT_THAT(
      cohort.core().Join(SessionId(90), {.batch_size = 1}, cohort.now(), out),
      IsError(kResourceExhausted,
              "all 2 ranks are taken; the change of workers to 3"));
  // A rank that the change does not add either is an error.
  EXPECT_TRUE(absl::IsOutOfRange(cohort.Join(kRank3)));
  cohort.PushBoth(PushOf(0));
  EXPECT_TRUE(cohort.Join(kRank2).ok());
}

}  // namespace
}  // namespace cohort
