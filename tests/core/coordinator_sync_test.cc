#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Sums of the gradients: w {4, -2}, b {2}.
const FakePush kPush0{.w = {1, 0}, .b = {2}, .loss_weight = 3, .loss_sum = 6};
const FakePush kPush1{.w = {3, -2}, .b = {0}, .loss_weight = 1, .loss_sum = 2};

TEST(CoordinatorSyncTest, AStepGivesTheHandComputedWeights) {
  StartedCohort cohort(SmallSetup());
  cohort.Push(kRank1, kPush1);
  EXPECT_EQ(cohort.snapshot()->version, Version(0));
  cohort.Push(kRank0, kPush0);
  // Scale 4 / (3 + 1), rate 0.5.
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_THAT(cohort.weights(0), ElementsAre(1 - 2, 2 + 1));
  EXPECT_THAT(cohort.weights(1), ElementsAre(3 - 1));
}

TEST(CoordinatorSyncTest, UnevenLossWeightsScaleTheSum) {
  StartedCohort cohort(SmallSetup());
  FakePush heavy = kPush0;
  heavy.loss_weight = 7;
  cohort.PushBoth(heavy, kPush1);
  // Scale 4 / (7 + 1).
  EXPECT_THAT(cohort.weights(0), ElementsAre(1 - 1, 2 + 0.5));
  EXPECT_THAT(cohort.weights(1), ElementsAre(3 - 0.5));
}

// A front-end that knows the step's weight sends gradients of the whole mean.
TEST(CoordinatorSyncTest, GradientWeightsScaleTheSumAndLossWeightsTheLoss) {
  StartedCohort cohort(SmallSetup());
  FakePush first = kPush0;
  FakePush second = kPush1;
  first.gradient_weight = second.gradient_weight = 1;
  cohort.PushBoth(first, second);
  // Scale 4 / (1 + 1).
  EXPECT_THAT(cohort.weights(0), ElementsAre(1 - 4, 2 + 2));
  EXPECT_THAT(cohort.weights(1), ElementsAre(3 - 2));
  const CommitRecord& record = cohort.Only<effect::Committed>().record;
  EXPECT_FLOAT_EQ(record.loss, (6 + 2) / (3 + 1.0));
}

// In float64, 1e20 - 1e20 + 1 is 1, but 1 - 1e20 + 1e20 is 0.
TEST(CoordinatorSyncTest, GradientsAreAddedInRankOrderNotInOrderOfArrival) {
  const std::vector<float> gradients = {1e20f, -1e20f, 1};
  for (const std::vector<int32_t>& order :
       {std::vector<int32_t>{0, 1, 2}, std::vector<int32_t>{2, 1, 0}}) {
    StartedCohort cohort(WithWorkers(SmallSetup(), 3));
    for (int32_t rank : order) {
      const float g = gradients[static_cast<size_t>(rank)];
      const double loss_weight = rank == 0 ? 2 : 1;
      cohort.Push(Rank(rank), {.w = {g, g}, .loss_weight = loss_weight});
    }
    EXPECT_THAT(cohort.weights(0), ElementsAre(1 - 0.5, 2 - 0.5));
  }
}

TEST(CoordinatorSyncTest, APartitionIsPreparedOnceAndWithItsGradients) {
  StartedCohort cohort(SmallSetup());
  cohort.HoldFolds();
  for (const Rank rank : {kRank0, kRank1}) {
    cohort.Send(rank, kPush0, {0});
  }
  ASSERT_EQ(cohort.held_folds().size(), 1);
  const auto check = [&, transaction = cohort.held_folds()[0].transaction](
                         int32_t partition) {
    return cohort.core().CheckFolded(
        {.transaction = transaction, .partition = partition, .prepared = true});
  };
  EXPECT_TRUE(check(0).ok());
  // Its gradients have not come.
  EXPECT_TRUE(absl::IsInvalidArgument(check(1)));
  cohort.RunFolds();
  EXPECT_TRUE(absl::IsInvalidArgument(check(0)));
}

TEST(CoordinatorSyncTest, APartitionFoldsAsSoonAsAllHaveOpenedAndSentIt) {
  StartedCohort cohort(SmallSetup());
  cohort.HoldFolds();
  cohort.Send(kRank0, kPush0, {1});
  ASSERT_TRUE(cohort.Gradient(kRank0, 0, kPush0.w).ok());
  ASSERT_TRUE(cohort.Open(kRank1, kPush1).ok());
  EXPECT_THAT(cohort.held_folds(), IsEmpty());
  ASSERT_TRUE(cohort.Gradient(kRank1, 1, kPush1.b).ok());
  ASSERT_EQ(cohort.held_folds().size(), 1);
  EXPECT_EQ(cohort.held_folds()[0].partition, 1);
  cohort.Clear();
  cohort.RunFolds();
  // Both get the tentative weights before either has closed.
  const auto sent = cohort.All<command::SendWeights>();
  ASSERT_EQ(sent.size(), 2);
  EXPECT_EQ(sent[0].rank, kRank0);
  EXPECT_EQ(sent[1].rank, kRank1);
  EXPECT_EQ(sent[0].version, Version(1));
  EXPECT_EQ(cohort.sent()[0].weights->data()[0], 2);
  EXPECT_EQ(cohort.snapshot()->version, Version(0));
}

// And holds no other back.
TEST(CoordinatorSyncTest, ACommitSaysWhichVersionsAreStillRead) {
  StartedCohort cohort(SmallSetup());
  SharedVersion read = *cohort.core().Read(std::nullopt);
  const auto held_after_a_step = [&cohort] {
    cohort.PushBoth(kPush0, kPush1);
    return cohort.All<command::Commit>().back().held;
  };
  EXPECT_THAT(held_after_a_step(), ElementsAre(Version(0), Version(1)));
  read = nullptr;
  EXPECT_THAT(held_after_a_step(), ElementsAre(Version(2)));
}

TEST(CoordinatorSyncTest, TheVerdictCarriesTheNextAssignment) {
  StartedCohort cohort(SmallSetup());
  const PushKey key = cohort.key(kRank0);
  cohort.PushBoth(kPush0, kPush1);
  const auto verdicts = cohort.All<effect::SendVerdict>();
  ASSERT_EQ(verdicts.size(), 2);
  EXPECT_EQ(verdicts[0].key, key);
  EXPECT_EQ(verdicts[0].verdict.verdict, Verdict::kApplied);
  EXPECT_EQ(verdicts[0].verdict.version, Version(1));
  EXPECT_EQ(verdicts[0].weights_partitions, 2);
  const Assignment& next = verdicts[0].verdict.next;
  EXPECT_EQ(next.kind, AssignmentKind::kTrain);
  EXPECT_EQ(next.version, Version(1));
  EXPECT_EQ(next.sequence, key.sequence.Next());
  EXPECT_EQ(next.range, (IndexRange{4, 7}));
  EXPECT_THAT(next.members, ElementsAre(kRank0, kRank1));
}

TEST(CoordinatorSyncTest, TheCommitRecordAddsUp) {
  StartedCohort cohort(SmallSetup());
  cohort.PushBoth(kPush0, kPush1);
  const CommitRecord& record = cohort.Only<effect::Committed>().record;
  EXPECT_EQ(record.version, Version(1));
  EXPECT_EQ(record.samples, 4);
  EXPECT_EQ(record.commit_samples, 4);
  EXPECT_FLOAT_EQ(record.loss, (6 + 2) / (3 + 1.0));
  EXPECT_FLOAT_EQ(record.accuracy, 2 / 4.0);
  EXPECT_FLOAT_EQ(record.loss_weight, 3 + 1);
  EXPECT_EQ(record.labels, 4);
  EXPECT_FLOAT_EQ(record.learning_rate, 0.5);
  EXPECT_THAT(record.members, ElementsAre(kRank0, kRank1));
  EXPECT_FALSE(record.epoch_ended);
}

TEST(CoordinatorSyncTest, ARunEndsAfterItsLastEvaluation) {
  StartedCohort cohort(SmallSetup());
  for (int step = 0; step < 2; ++step) cohort.PushBoth(kPush0, kPush1);
  EXPECT_TRUE(cohort.All<effect::Committed>()[1].record.epoch_ended);
  EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kEvaluate);
  EXPECT_EQ(cohort.told(kRank0).range, (IndexRange{0, 2}));
  EXPECT_EQ(cohort.told(kRank1).range, (IndexRange{2, 4}));
  EXPECT_EQ(cohort.told(kRank1).split, DataSplit::kTest);
  EXPECT_THAT(cohort.All<effect::RunEnded>(), IsEmpty());
  cohort.EvaluateAll();
  const auto evaluated = cohort.Only<effect::Evaluated>();
  EXPECT_EQ(evaluated.record.version, Version(2));
  EXPECT_EQ(evaluated.record.epochs, 1);
  EXPECT_FLOAT_EQ(evaluated.record.accuracy(), 0.5);
  const auto ended = cohort.Only<effect::RunEnded>();
  EXPECT_EQ(ended.outcome, RunOutcome::kFinished);
  EXPECT_EQ(ended.reason, "all 1 epochs are done");
  EXPECT_EQ(ended.version->version, Version(2));
  EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kFinished);
  EXPECT_EQ(cohort.told(kRank1).kind, AssignmentKind::kFinished);
}

// 4 + 1 samples: the second step has one sample, for rank 0.
TEST(CoordinatorSyncTest, ARankWithoutSamplesIsNoMember) {
  FakeSetup setup = SmallSetup();
  setup.plan.train_samples = 5;
  setup.plan.test_samples = 0;
  StartedCohort cohort(setup);
  cohort.PushBoth(kPush0, kPush1);
  EXPECT_EQ(cohort.told(kRank0).range, (IndexRange{4, 5}));
  EXPECT_THAT(cohort.told(kRank0).members, ElementsAre(kRank0));
  EXPECT_EQ(cohort.told(kRank1).kind, AssignmentKind::kWait);
  cohort.Push(kRank0, kPush0);
  EXPECT_EQ(cohort.All<effect::RunEnded>().size(), 1);
  EXPECT_EQ(cohort.told(kRank1).kind, AssignmentKind::kFinished);
}

TEST(CoordinatorSyncTest, RepeatedMessagesCountOnceAndAreAnsweredOnce) {
  StartedCohort cohort(SmallSetup());
  cohort.Push(kRank0, kPush0);
  cohort.Push(kRank0, kPush0);
  EXPECT_EQ(cohort.counter("pushes_duplicate"), 4);
  EXPECT_EQ(cohort.counter("replay_mismatches"), 0);
  cohort.Push(kRank1, kPush1);
  EXPECT_EQ(cohort.All<effect::SendVerdict>().size(), 2);
  EXPECT_THAT(cohort.weights(0), ElementsAre(-1, 3));
}

TEST(CoordinatorSyncTest, APushRepeatedAfterTheCommitIsADuplicate) {
  StartedCohort cohort(SmallSetup());
  const PushKey key = cohort.key(kRank0);
  cohort.PushBoth(kPush0, kPush1);
  const effect::SendVerdict sent = cohort.CloseAgain(kRank0, key);
  EXPECT_TRUE(sent.verdict.duplicate);
  EXPECT_EQ(sent.verdict.verdict, Verdict::kApplied);
  EXPECT_EQ(sent.verdict.version, Version(1));
  EXPECT_EQ(sent.weights_partitions, 0);
  EXPECT_EQ(sent.verdict.next.sequence, key.sequence.Next());
  EXPECT_THAT(cohort.weights(0), ElementsAre(-1, 3));
}

TEST(CoordinatorSyncTest, AReplayWithOtherContentIsCountedAndTheFirstCounts) {
  StartedCohort cohort(SmallSetup());
  cohort.Push(kRank0, kPush0);
  FakePush other = kPush0;
  other.w = {100, 100};
  cohort.Push(kRank0, other);
  EXPECT_EQ(cohort.counter("replay_mismatches"), 1);
  EXPECT_THAT(cohort.log(), HasSubstr("rank 0 sent a message twice"));
  cohort.Push(kRank1, kPush1);
  EXPECT_THAT(cohort.weights(0), ElementsAre(-1, 3));
}

TEST(CoordinatorSyncTest, AParameterAbsentOnSomeRanksAddsNothing) {
  StartedCohort cohort(SmallSetup());
  ASSERT_TRUE(cohort.Open(kRank0, kPush0).ok());
  ASSERT_TRUE(cohort.Gradient(kRank0, 0, {0, 0}, {0}).ok());
  ASSERT_TRUE(cohort.Gradient(kRank0, 1, kPush0.b).ok());
  ASSERT_TRUE(cohort.Close(kRank0, kPush0).ok());
  cohort.Push(kRank1, kPush1);
  // Rank 0's samples stay in the denominator.
  EXPECT_THAT(cohort.weights(0), ElementsAre(1 - 1.5, 2 + 1));
}

TEST(CoordinatorSyncTest, AParameterAbsentOnAllRanksIsLeftAlone) {
  FakeSetup setup = SmallSetup();
  setup.options.optimizer.weight_decay = 1;
  StartedCohort cohort(setup);
  for (Rank rank : {kRank0, kRank1}) {
    ASSERT_TRUE(cohort.Open(rank, kPush0).ok());
    ASSERT_TRUE(cohort.Gradient(rank, 0, {0, 0}, {0}).ok());
    ASSERT_TRUE(cohort.Gradient(rank, 1, {0}).ok());
    ASSERT_TRUE(cohort.Close(rank, kPush0).ok());
  }
  EXPECT_THAT(cohort.weights(0), ElementsAre(1, 2));
  // With decay: 3 - 0.5 * 3.
  EXPECT_THAT(cohort.weights(1), ElementsAre(1.5));
}

TEST(CoordinatorSyncTest, FrozenParametersNeitherTravelNorChange) {
  FakeSetup setup = SmallSetup();
  setup.layout.parameters[1].trainable = false;
  StartedCohort cohort(setup);
  ASSERT_TRUE(cohort.Open(kRank0, kPush0).ok());
  EXPECT_THAT(cohort.Gradient(kRank0, 1, {1}),
              IsError(kInvalidArgument, "partition 1: got 4 bytes, want none"));
  ASSERT_TRUE(cohort.Gradient(kRank0, 0, kPush0.w).ok());
  ASSERT_TRUE(cohort.Close(kRank0, kPush0).ok());
  cohort.Send(kRank1, kPush1, {0});
  ASSERT_TRUE(cohort.Close(kRank1, kPush1).ok());
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_THAT(cohort.weights(0), ElementsAre(-1, 3));
  EXPECT_THAT(cohort.weights(1), ElementsAre(3));
  EXPECT_EQ(cohort.All<effect::SendVerdict>()[0].weights_partitions, 1);
}

TEST(CoordinatorSyncTest, ACheckpointIsWrittenEverySoManyCommits) {
  FakeSetup setup = SmallSetup();
  setup.options.checkpoint_every = 2;
  StartedCohort cohort(setup);
  cohort.PushBoth(kPush0, kPush1);
  EXPECT_THAT(cohort.All<effect::WriteCheckpoint>(), IsEmpty());
  cohort.PushBoth(kPush0, kPush1);
  const auto write = cohort.Only<effect::WriteCheckpoint>();
  EXPECT_EQ(write.state.snapshot->version, Version(2));
  EXPECT_EQ(write.state.samples, 8);
  EXPECT_EQ(write.state.data_epoch, 1);
  EXPECT_EQ(write.state.cursor, 0);
}

TEST(CoordinatorSyncTest, DrainEndsTheRunAtTheNextCommit) {
  FakeSetup setup = SmallSetup();
  setup.options.epochs = 5;
  StartedCohort cohort(setup);
  cohort.Push(kRank0, kPush0);
  cohort.Drain("enough");
  EXPECT_FALSE(cohort.core().ended());
  cohort.Push(kRank1, kPush1);
  const auto ended = cohort.Only<effect::RunEnded>();
  EXPECT_EQ(ended.outcome, RunOutcome::kDrained);
  EXPECT_EQ(ended.reason, "enough");
  EXPECT_EQ(ended.version->version, Version(1));
}

TEST(CoordinatorSyncTest, StatusSaysWhereTheRunIs) {
  StartedCohort cohort(SmallSetup());
  cohort.PushBoth(kPush0, kPush1);
  const StatusView view = cohort.core().Status(absl::Seconds(101));
  EXPECT_EQ(view.state, "training, 2 of 2 workers");
  EXPECT_EQ(view.version, Version(1));
  EXPECT_EQ(view.samples, 4);
  EXPECT_EQ(view.samples_total, 8);
  EXPECT_EQ(cohort.core().Policy(absl::Seconds(101)).text,
            "sync, local normalisation, sync statistics");
  EXPECT_FLOAT_EQ(*view.train_loss, 2);
  EXPECT_EQ(view.counts.pushes_applied, 2);
  ASSERT_EQ(view.workers.size(), 2);
  EXPECT_EQ(view.workers[1].state, "live");
  EXPECT_EQ(view.workers[1].description, "host1");
  EXPECT_EQ(view.workers[1].sequence, Sequence(2));
}

TEST(CoordinatorSyncTest, OldVersionsAreNotHeld) {
  StartedCohort cohort(SmallSetup());
  cohort.PushBoth(kPush0, kPush1);
  EXPECT_TRUE(cohort.core().Read(Version(1)).ok());
  EXPECT_TRUE(absl::IsOutOfRange(cohort.core().Read(Version(0)).status()));
  EXPECT_TRUE(absl::IsOutOfRange(cohort.core().Read(Version(2)).status()));
}

// ---- refusals

TEST(CoordinatorRefusalTest, OpeningsThatDoNotFitTheAssignment) {
  StartedCohort cohort(SmallSetup());
  const Sender sender = cohort.sender(kRank0);
  const PushKey key = cohort.key(kRank0);
  Effects out;
  const Instant now = absl::Seconds(101);
  EXPECT_THAT(cohort.core().Open(sender, key, {.samples = 2}, now, out),
              IsError(kInvalidArgument, "got 2 samples, want 3"));
  EXPECT_THAT(cohort.core().Open(
                  sender, key, {.version = Version(1), .samples = 3}, now, out),
              IsError(kInvalidArgument, "got weights version 1, want 0"));
  EXPECT_THAT(cohort.core().Open(sender, key, {.samples = 3, .loss_weight = -1},
                                 now, out),
              IsError(kInvalidArgument, "got weight -1"));
  for (const double weight : {0.0, 1e99}) {
    EXPECT_THAT(cohort.core().Open(
                    sender, key,
                    {.samples = 3, .loss_weight = 3, .gradient_weight = weight},
                    now, out),
                IsError(kInvalidArgument, ""));
  }
  EXPECT_THAT(cohort.core().Open(sender, {.sequence = Sequence(9)},
                                 {.samples = 3}, now, out),
              IsError(kFailedPrecondition,
                      "assignment 9 attempt 0 was not given to rank 0"));
  EXPECT_THAT(out, IsEmpty());
}

TEST(CoordinatorRefusalTest, GradientsOfTheWrongShape) {
  StartedCohort cohort(SmallSetup());
  EXPECT_THAT(cohort.Gradient(kRank0, 0, {1, 2}),
              IsError(kFailedPrecondition, "gradient of partition 0"));
  ASSERT_TRUE(cohort.Open(kRank0, kPush0).ok());
  EXPECT_THAT(cohort.Gradient(kRank0, 2, {1}),
              IsError(kInvalidArgument, "got partition 2, want below 2"));
  EXPECT_THAT(cohort.Gradient(kRank0, 0, {1}),
              IsError(kInvalidArgument, "partition 0: got 4 bytes, want 8"));
}

// If counted twice, an absence on one rank would pass for one on all.
TEST(CoordinatorRefusalTest, AnAbsentSliceNamedTwiceOrUnknown) {
  StartedCohort cohort(SmallSetup());
  ASSERT_TRUE(cohort.Open(kRank0, kPush0).ok());
  EXPECT_THAT(cohort.Gradient(kRank0, 0, {0, 0}, {0, 0}),
              IsError(kInvalidArgument, "got absent slice 0"));
  EXPECT_TRUE(absl::IsInvalidArgument(cohort.Gradient(kRank0, 0, {0, 0}, {1})));
}

TEST(CoordinatorRefusalTest, ClosingsThatContradictThemselves) {
  StartedCohort cohort(SmallSetup());
  const auto call = [](const std::vector<double>& first,
                       const std::vector<double>& second) {
    return CallMoments{
        .moments = {.count = 1, .first = first, .second = second}};
  };
  const CallMoments good = call({0}, {0});
  const std::vector<std::pair<PushClosing, std::string>> cases = {
      {{.batch_norm_calls = {}}, "counts of 0 batch-norm layers"},
      {{.batch_norm_calls = {2}, .moments = {good}},
       "moments of 1 batch-norm calls, want 2"},
      {{.batch_norm_calls = {2}, .moments = {good, good}},
       "bn call 0 are out of order"},
      {{.batch_norm_calls = {1}, .moments = {call({0, 1}, {0, 1})}},
       "bn: got moments of 2 and 2 channels"},
      {{.batch_norm_calls = {1}, .moments = {call({0}, {-1})}},
       "bn: got a negative M2, -1"}};
  Effects out;
  for (const auto& [closing, part] : cases) {
    EXPECT_THAT(cohort.core().Close(cohort.sender(kRank0), cohort.key(kRank0),
                                    closing, absl::Seconds(101), out),
                IsError(kInvalidArgument, part));
  }
}

// A milestone belongs to the step that begins at its sample.
TEST(CoordinatorSyncTest, TheRateIsThatOfTheSamplesBeforeTheStep) {
  FakeSetup setup = SmallSetup();
  setup.options.epochs = 2;
  setup.options.optimizer.schedule = ScheduleKind::kStep;
  // Steps of 4 samples, 8 of them an epoch.
  setup.options.optimizer.step_epochs = {0.75};
  setup.options.optimizer.step_gamma = 0.5;
  StartedCohort cohort(setup);
  for (int step = 0; step < 3; ++step) {
    for (Rank rank : {kRank0, kRank1}) cohort.Push(rank, {});
    cohort.EvaluateAll();
  }
  std::vector<double> rates;
  for (const auto& committed : cohort.All<effect::Committed>()) {
    rates.push_back(committed.record.learning_rate);
  }
  EXPECT_THAT(rates, ElementsAre(0.5, 0.5, 0.25));
}

}  // namespace
}  // namespace cohort
