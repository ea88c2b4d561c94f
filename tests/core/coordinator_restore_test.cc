#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

FakeSetup ThreeEpochSetup() {
  // Steps of 4, 4 and 1 samples an epoch.
  FakeSetup setup = Checkpointing(Long(SmallSetup(), 9));
  setup.options.epochs = 3;
  setup.options.optimizer = {.kind = OptimizerKind::kNesterov,
                             .learning_rate = 0.1};
  return setup;
}

// The checkpoint of the first step.
RunState StateAfterAStep(FakeCohort& cohort) {
  cohort.PushBoth({});
  return cohort.Only<effect::WriteCheckpoint>().state;
}

// A contribution that depends only on the weights and the assignment.
FakePush Contribution(FakeCohort& cohort, Rank rank) {
  const Assignment& told = cohort.told(rank);
  const float seed = static_cast<float>(10 * told.data_epoch +
                                        told.range.begin + told.range.end);
  const float w = cohort.weights(0)[0];
  return {.w = {0.3f * w + 0.1f * seed, 0.7f - w},
          .b = {cohort.weights(1)[0] * 0.11f},
          .loss_weight = static_cast<double>(told.range.size()),
          .moments = {.count = told.range.size(),
                      .first = {static_cast<double>(w)},
                      .second = {static_cast<double>(seed)}}};
}

void TrainToTheEnd(FakeCohort& cohort) {
  for (int rounds = 0; !cohort.core().ended(); ++rounds) {
    ASSERT_LT(rounds, 100);
    cohort.EvaluateAll();
    std::vector<std::pair<Rank, FakePush>> pushes;
    for (Rank rank : {kRank1, kRank0}) {
      if (cohort.told(rank).kind == AssignmentKind::kTrain) {
        pushes.emplace_back(rank, Contribution(cohort, rank));
      }
    }
    for (const auto& [rank, push] : pushes) cohort.Push(rank, push);
  }
}

void ExpectSameBits(const ModelSnapshot& a, const ModelSnapshot& b) {
  EXPECT_EQ(a.version, b.version);
  EXPECT_EQ(WeightChecksums(a), WeightChecksums(b));
  EXPECT_EQ(*a.statistics, *b.statistics);
  ASSERT_EQ(a.slots.size(), b.slots.size());
  for (size_t p = 0; p < a.slots.size(); ++p) {
    EXPECT_EQ(RopeOf(a.slots[p].velocity).ToString(),
              RopeOf(b.slots[p].velocity).ToString());
  }
}

TEST(CoordinatorRestoreTest, ARestoredSyncRunEndsWithTheSameBits) {
  StartedCohort undisturbed(ThreeEpochSetup());
  TrainToTheEnd(undisturbed);
  ASSERT_EQ(undisturbed.snapshot()->version, Version(9));
  const auto writes = undisturbed.All<effect::WriteCheckpoint>();
  ASSERT_EQ(writes.size(), 9);
  for (const effect::WriteCheckpoint& write : writes) {
    StartedCohort restored(ThreeEpochSetup(), &write.state);
    TrainToTheEnd(restored);
    ExpectSameBits(*restored.snapshot(), *undisturbed.snapshot());
  }
}

TEST(CoordinatorRestoreTest, NumbersGoOnFromTheCheckpoint) {
  StartedCohort first(ThreeEpochSetup());
  const RunState state = StateAfterAStep(first);
  EXPECT_THAT(state.next_sequences, ElementsAre(Sequence(2), Sequence(2)));
  EXPECT_THAT(state.batch_sizes, ElementsAre(3, 1));
  StartedCohort second(ThreeEpochSetup(), &state);
  EXPECT_EQ(second.told(kRank0).sequence, Sequence(2));
  EXPECT_EQ(second.told(kRank0).version, Version(1));
  EXPECT_EQ(second.told(kRank0).range, (IndexRange{4, 7}));
  EXPECT_GT(second.incarnation(kRank0), first.incarnation(kRank1));
  EXPECT_EQ(second.core().Status(absl::Seconds(101)).samples, 4);
}

TEST(CoordinatorRestoreTest, LivesOfBeforeMustJoinAgainAsNewOnes) {
  StartedCohort first(ThreeEpochSetup());
  const RunState state = StateAfterAStep(first);
  FakeCohort second(ThreeEpochSetup(), &state);
  EXPECT_TRUE(absl::IsAborted(second.Join(kRank0, first.incarnation(kRank0))));
  Effects out;
  EXPECT_TRUE(absl::IsAborted(second.core().Open(
      first.sender(kRank0), first.key(kRank0), {}, absl::Seconds(101), out)));
}

TEST(CoordinatorRestoreTest, TheModelOfLaterRegistrantsIsStillCompared) {
  StartedCohort first(ThreeEpochSetup());
  const RunState state = StateAfterAStep(first);
  FakeSetup other = ThreeEpochSetup();
  other.layout.parameters[1].name = "bias";
  FakeCohort second(other, &state);
  ASSERT_TRUE(second.Join(kRank0).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(second.Register(kRank0)));
}

TEST(CoordinatorRestoreTest, AnEvaluationThatWasLostIsDoneAgain) {
  FakeSetup setup = SmallSetup();
  setup.options.checkpoint_every = 2;
  StartedCohort first(setup);
  for (int step = 0; step < 2; ++step) first.PushBoth({});
  StartedCohort second(setup, &first.All<effect::WriteCheckpoint>()[0].state);
  EXPECT_EQ(second.told(kRank0).kind, AssignmentKind::kEvaluate);
  second.EvaluateAll();
  EXPECT_EQ(second.Only<effect::Evaluated>().record.epochs, 1);
  EXPECT_EQ(second.All<effect::RunEnded>().size(), 1);
}

// When rank 0's first push is committed, rank 1's [2, 4) has been handed out
// and not committed.
TEST(CoordinatorRestoreTest, AsyncIssuesAgainWhatWasBeingApplied) {
  FakeSetup setup = Long(AsyncSetup());
  StartedCohort first(setup);
  const IndexRange under_way = first.told(kRank0).range;
  first.HoldFolds();
  first.Push(kRank0, {});
  const RunState state = OkValue(first.State());
  StartedCohort cohort(setup, &state);
  EXPECT_EQ(cohort.snapshot()->version, Version(0));
  std::vector<IndexRange> issued;
  for (int push = 0; push < 3; ++push) {
    issued.push_back(cohort.told(kRank0).range);
    cohort.Push(kRank0, {});
  }
  issued.push_back(cohort.told(kRank1).range);
  EXPECT_THAT(issued, Contains(under_way));
}

TEST(CoordinatorRestoreTest, AsyncIssuesAgainWhatWasNotCommitted) {
  FakeSetup setup = Checkpointing(AsyncSetup());
  StartedCohort first(setup);
  first.Push(kRank0, {});
  const RunState& state = first.Only<effect::WriteCheckpoint>().state;
  ASSERT_EQ(state.reissue.size(), 1);
  EXPECT_EQ(state.reissue[0].range, (IndexRange{2, 4}));
  EXPECT_EQ(state.cursor, 4);
  StartedCohort second(setup, &state);
  EXPECT_EQ(second.told(kRank0).range, (IndexRange{2, 4}));
  EXPECT_EQ(second.told(kRank1).range, (IndexRange{4, 6}));
  second.Push(kRank0, {});
  EXPECT_EQ(second.told(kRank0).range, (IndexRange{6, 8}));
  second.PushBoth({});
  EXPECT_TRUE(second.All<effect::Committed>()[2].record.epoch_ended);
}

// ---- ranks that are waited for after a restart

FakeSetup LongContinuing() {
  FakeSetup setup = Continuing(Long(WithWorkers(SmallSetup(), 3)));
  setup.options.replacement_deadline = absl::Minutes(10);
  return setup;
}

// A checkpoint of a run that has gone on without rank 1.
RunState StateWithoutRank1() {
  StartedCohort first(LongContinuing());
  first.Leave(kRank1);
  first.Push(kRank0, {});
  first.Push(kRank2, {});
  EXPECT_EQ(first.snapshot()->version, Version(1));
  return *first.State();
}

TEST(CoordinatorRestoreTest, UnderContinueARankThatWasLostIsNotWaitedFor) {
  const RunState state = StateWithoutRank1();
  EXPECT_THAT(state.lost, ElementsAre(kRank1));
  FakeCohort second(LongContinuing(), &state);
  second.StartOne(kRank0);
  EXPECT_FALSE(Trains(second, kRank0));

  second.StartOne(kRank2);
  EXPECT_THAT(second.told(kRank0).members, ElementsAre(kRank0, kRank2));
  EXPECT_THAT(second.log(), HasSubstr("2 of 3 workers are registered"));
  // It may still come, and a restart in between remembers it.
  EXPECT_THAT(second.State()->lost, ElementsAre(kRank1));
  second.StartOne(kRank1);
  second.Push(kRank0, {});
  second.Push(kRank2, {});
  EXPECT_THAT(second.told(kRank0).members, ElementsAre(kRank0, kRank1, kRank2));
}

TEST(CoordinatorRestoreTest, UnderContinueTheOthersAreWaitedForWithALimit) {
  const RunState state = StateWithoutRank1();
  FakeCohort second(LongContinuing(), &state);
  second.StartOne(kRank0);
  second.Pass(absl::Minutes(4));
  StatusView view = second.Status();
  EXPECT_THAT(
      view.state,
      HasSubstr("worker 2 to join and register, starts without it in 6 min"));
  EXPECT_THAT(view.waited_for, ElementsAre(kRank2));
  // The value behind the metric and its alert.
  EXPECT_EQ(view.waiting, absl::Minutes(4));
  second.Pass(absl::Minutes(6));
  EXPECT_THAT(second.told(kRank0).members, ElementsAre(kRank0));
}

TEST(CoordinatorRestoreTest, UnderContinueTheFirstThatComesLateStarts) {
  const RunState state = StateWithoutRank1();
  FakeCohort second(LongContinuing(), &state);
  second.Pass(absl::Seconds(1));
  second.Pass(absl::Minutes(11));
  EXPECT_THAT(second.Status().state,
              HasSubstr("workers 0, 2 to join and register"));
  second.StartOne(kRank2);
  EXPECT_THAT(second.told(kRank2).members, ElementsAre(kRank2));
}

// The bits may depend on each of these ranks.
TEST(CoordinatorRestoreTest, UnderWaitAllWhoTookPartAreWaitedFor) {
  FakeSetup setup = LongContinuing();
  setup.options.on_worker_loss = OnWorkerLoss::kWait;
  StartedCohort first(setup);
  for (Rank rank : {kRank0, kRank1, kRank2}) first.Push(rank, {});
  first.Leave(kRank1);
  const RunState state = *first.State();
  FakeCohort second(setup, &state);
  second.StartOne(kRank0);
  second.StartOne(kRank2);
  second.Pass(absl::Hours(1));
  const StatusView view = second.Status();

  EXPECT_EQ(view.waiting, absl::Hours(1));
  EXPECT_FALSE(Trains(second, kRank0));
}

// A cohort that was enlarged continued without the new rank.
TEST(CoordinatorRestoreTest, ARankThatNeverTookPartIsNotWaitedFor) {
  for (const OnWorkerLoss reaction :
       {OnWorkerLoss::kWait, OnWorkerLoss::kContinue}) {
    FakeSetup setup = LongContinuing();
    setup.options.on_worker_loss = reaction;
    setup.options.workers = 2;
    StartedCohort first(setup);
    ASSERT_TRUE(first.Change({{"workers", "3"}}).ok());
    for (Rank rank : {kRank0, kRank1}) first.Push(rank, {});
    const RunState state = *first.State();
    EXPECT_THAT(state.never_registered, ElementsAre(kRank2));
    setup.options.workers = 3;
    FakeCohort second(setup, &state);
    second.StartOne(kRank0);
    EXPECT_FALSE(Trains(second, kRank0));
    second.StartOne(kRank1);
    EXPECT_THAT(second.told(kRank0).members, ElementsAre(kRank0, kRank1));
  }
}

}  // namespace
}  // namespace cohort
