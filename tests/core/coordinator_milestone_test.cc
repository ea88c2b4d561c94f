// States that are on disk before any process acts on them, with several shards.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"

namespace cohort {
namespace {

using ::testing::IsEmpty;

FakeSetup TwoShards() {
  FakeSetup setup = SmallSetup();
  setup.options.shards = 2;
  return setup;
}

// The state after the last step.
RunState TrainedState() {
  FakeSetup setup = SmallSetup();
  setup.options.checkpoint_every = 1;
  StartedCohort cohort(setup);
  while (Trains(cohort, kRank0)) {
    cohort.PushBoth({});
  }
  return cohort.All<effect::WriteCheckpoint>().back().state;
}

// The state of a run that is over.
RunState EndedState() {
  const RunState trained = TrainedState();
  StartedCohort cohort(TwoShards(), &trained);
  cohort.EvaluateAll();
  return cohort.All<effect::WriteCheckpoint>().back().state;
}

TEST(CoordinatorMilestoneTest, NoWorkerBeginsBeforeTheInitialValuesAreStored) {
  StartedCohort cohort(TwoShards());
  cohort.Pass(absl::Seconds(1));
  const auto write = cohort.Only<effect::WriteCheckpoint>();
  EXPECT_TRUE(write.awaited);
  EXPECT_EQ(write.state.snapshot->version, Version(0));
  EXPECT_FALSE(write.state.ended.has_value());
  EXPECT_FALSE(Trains(cohort, kRank0));
  EXPECT_FALSE(Trains(cohort, kRank1));
  cohort.CheckpointStored();
  EXPECT_TRUE(Trains(cohort, kRank0));
  EXPECT_TRUE(Trains(cohort, kRank1));
}

TEST(CoordinatorMilestoneTest, OneServerWaitsForNoCheckpoint) {
  StartedCohort cohort(SmallSetup());
  EXPECT_TRUE(Trains(cohort, kRank0));
  EXPECT_THAT(cohort.All<effect::WriteCheckpoint>(), IsEmpty());
}

// A run may be drained while it waits.
TEST(CoordinatorMilestoneTest, ADrainedRunDoesNotBegin) {
  StartedCohort cohort(TwoShards());
  cohort.Drain("no more");
  EXPECT_TRUE(cohort.core().ended());
  cohort.CheckpointStored();
  EXPECT_FALSE(Trains(cohort, kRank0));
}

TEST(CoordinatorMilestoneTest, NoWorkerIsToldOfTheEndBeforeItIsStored) {
  const RunState trained = TrainedState();
  StartedCohort cohort(TwoShards(), &trained);
  EXPECT_THAT(cohort.All<effect::WriteCheckpoint>(), IsEmpty());
  cohort.EvaluateAll();
  cohort.Pass(absl::Seconds(1));
  EXPECT_FALSE(cohort.core().ended());
  const auto write = cohort.Only<effect::WriteCheckpoint>();
  EXPECT_TRUE(write.awaited);
  EXPECT_EQ(write.state.ended, "all 1 epochs are done");
  EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kWait);
  cohort.CheckpointStored();
  EXPECT_TRUE(cohort.core().ended());
  EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kFinished);
  EXPECT_EQ(cohort.told(kRank1).kind, AssignmentKind::kFinished);
}

TEST(CoordinatorMilestoneTest, ARunThatIsOverEndsWithoutWorkers) {
  const RunState ended = EndedState();
  ASSERT_TRUE(ended.ended.has_value());
  FakeCohort cohort(TwoShards(), &ended);
  EXPECT_FALSE(cohort.core().ended());
  cohort.Pass(absl::Milliseconds(50));
  const auto end = cohort.Only<effect::RunEnded>();
  EXPECT_EQ(end.outcome, RunOutcome::kFinished);
  EXPECT_EQ(end.reason, *ended.ended);
  EXPECT_EQ(end.version->version, ended.snapshot->version);
  // A worker that was not notified comes back.
  ASSERT_TRUE(cohort.Join(kRank0).ok());
  EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kFinished);
}

TEST(CoordinatorMilestoneTest, ALongerRunGoesOnFromItsEnd) {
  const RunState ended = EndedState();
  FakeSetup longer = SmallSetup();
  longer.options.epochs = 2;
  StartedCohort cohort(longer, &ended);
  // The epoch that has ended is evaluated once more.
  cohort.EvaluateAll();
  EXPECT_TRUE(Trains(cohort, kRank0));
}

}  // namespace
}  // namespace cohort
