// Workers that want the score of an epoch before they train the next one.

#include <gtest/gtest.h>

#include "absl/time/time.h"
#include "server/core/events/effects.h"
#include "server/core/views.h"
#include "tests/core/fake_cohort.h"

namespace cohort {
namespace {

// Two epochs of two steps, and four test samples.
FakeSetup ScoredSetup() {
  FakeSetup setup = SmallSetup();
  setup.options.epochs = 2;
  setup.plan.awaits_scores = true;
  return setup;
}

void TrainAnEpoch(FakeCohort& cohort) {
  for (int step = 0; step < 2; ++step) cohort.PushBoth({});
}

TEST(CoordinatorScoreTest, AllHaveItInTheFirstStepOfTheNextEpoch) {
  StartedCohort cohort(ScoredSetup());
  EXPECT_FALSE(cohort.told(kRank0).score.has_value());
  TrainAnEpoch(cohort);
  ASSERT_EQ(cohort.told(kRank1).kind, AssignmentKind::kEvaluate);
  ASSERT_TRUE(cohort.Report(kRank0).ok());
  EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kWait);
  EXPECT_EQ(cohort.core().Status(absl::Seconds(1)).phase,
            StatusView::Phase::kEvaluating);
  ASSERT_TRUE(cohort.Report(kRank1).ok());
  for (const Rank rank : {kRank0, kRank1}) {
    const Assignment& next = cohort.told(rank);
    ASSERT_EQ(next.kind, AssignmentKind::kTrain);
    ASSERT_TRUE(next.score.has_value());
    EXPECT_EQ(next.score->version, Version(2));
    EXPECT_EQ(next.score->epochs, 1);
    EXPECT_EQ(next.score->loss, 1);
    EXPECT_EQ(next.score->accuracy, 0.5);
    EXPECT_FALSE(next.score->mean_iou.has_value());
  }
  TrainAnEpoch(cohort);
  cohort.EvaluateAll();
  ASSERT_EQ(cohort.told(kRank0).kind, AssignmentKind::kFinished);
  EXPECT_EQ(cohort.told(kRank0).score->epochs, 2);
}

TEST(CoordinatorScoreTest, AnotherRankComputesWhatALostOneOwes) {
  StartedCohort cohort(Continuing(ScoredSetup()));
  TrainAnEpoch(cohort);
  ASSERT_TRUE(cohort.Report(kRank0).ok());
  cohort.Leave(kRank1);
  ASSERT_EQ(cohort.told(kRank0).kind, AssignmentKind::kEvaluate);
  ASSERT_TRUE(cohort.Report(kRank0).ok());
  ASSERT_EQ(cohort.told(kRank0).kind, AssignmentKind::kTrain);
  EXPECT_EQ(cohort.told(kRank0).score->epochs, 1);
}

// The one that has reported waits for it, and is not to blame.
TEST(CoordinatorScoreTest, ARankThatDoesNotReportIsLost) {
  FakeSetup setup = ScoredSetup();
  setup.options.step_deadline = absl::Minutes(5);
  StartedCohort cohort(setup);
  TrainAnEpoch(cohort);
  ASSERT_TRUE(cohort.Report(kRank0).ok());
  EXPECT_EQ(cohort.core().Status(absl::Seconds(101)).waited_for.size(), 0u);
  cohort.Pass(absl::Minutes(5) + absl::Seconds(1));
  EXPECT_EQ(cohort.counter("workers_lost"), 1);
  EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kEvaluate);
}

TEST(CoordinatorScoreTest, ARestoredRunHasIt) {
  StartedCohort first(Checkpointing(ScoredSetup()));
  TrainAnEpoch(first);
  first.EvaluateAll();
  first.PushBoth({});
  const RunState state = first.All<effect::WriteCheckpoint>().back().state;
  ASSERT_EQ(state.snapshot->version, Version(3));
  StartedCohort second(ScoredSetup(), &state);
  ASSERT_EQ(second.told(kRank1).kind, AssignmentKind::kTrain);
  ASSERT_TRUE(second.told(kRank1).score.has_value());
  EXPECT_EQ(second.told(kRank1).score->epochs, 1);
}

TEST(CoordinatorScoreTest, WithoutStepsOfAllNothingWaits) {
  FakeSetup setup = AsyncSetup();
  setup.options.epochs = 2;
  setup.plan.awaits_scores = true;
  StartedCohort cohort(setup);
  for (int i = 0; i < 2; ++i) cohort.PushBoth({});
  EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kTrain);
  EXPECT_EQ(cohort.told(kRank0).data_epoch, 1);
  EXPECT_FALSE(cohort.told(kRank0).score.has_value());
  ASSERT_EQ(cohort.told(kRank1).kind, AssignmentKind::kEvaluate);
  // It computes both shares.
  cohort.EvaluateAll();
  ASSERT_EQ(cohort.told(kRank1).kind, AssignmentKind::kTrain);
  EXPECT_EQ(cohort.told(kRank1).score->epochs, 1);
}

}  // namespace
}  // namespace cohort
