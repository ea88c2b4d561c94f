#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const FakePush kPush{.w = {1, -2}, .b = {0}, .loss_weight = 2, .loss_sum = 6};

TEST(CoordinatorAsyncTest, APushIsAppliedOnArrivalWithItsShareOfTheRate) {
  StartedCohort cohort(AsyncSetup());
  cohort.Push(kRank0, kPush);
  // Scale 4 / 2, rate 0.5 * 2 / (2 + 2).
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_THAT(cohort.weights(0), ElementsAre(1 - 0.5, 2 + 1));
  const auto verdicts = cohort.Only<effect::SendVerdict>();
  EXPECT_EQ(verdicts.rank, kRank0);
  EXPECT_EQ(verdicts.verdict.version, Version(1));
  EXPECT_EQ(verdicts.weights_partitions, 2);
  EXPECT_EQ(verdicts.verdict.next.range, (IndexRange{4, 6}));
  const auto sent = cohort.All<command::SendWeights>();
  ASSERT_EQ(sent.size(), 2);
  EXPECT_EQ(sent[0].version, Version(1));
  const CommitRecord record = cohort.All<effect::Committed>()[0].record;
  EXPECT_FLOAT_EQ(record.loss, 3);
  EXPECT_EQ(record.commit_samples, 2);
  // The rate of the schedule; the push's share of it shows in the weights.
  EXPECT_FLOAT_EQ(record.learning_rate, 0.5);
}

// The velocity of the first push must not act on behalf of the second.
TEST(CoordinatorAsyncTest, APushWithoutWeightChangesNoWeights) {
  FakeSetup setup = AsyncSetup();
  setup.options.optimizer.kind = OptimizerKind::kMomentum;
  setup.options.optimizer.numbers.momentum = 0.9;
  setup.options.optimizer.weight_decay = 0.1;
  StartedCohort cohort(setup);
  cohort.Push(kRank0, kPush);
  const std::vector<float> before = cohort.weights(0);
  cohort.Push(kRank1, {.loss_weight = 0, .labels = 0});
  EXPECT_EQ(cohort.snapshot()->version, Version(2));
  EXPECT_EQ(cohort.weights(0), before);
  const auto verdicts = cohort.All<effect::SendVerdict>();
  ASSERT_EQ(verdicts.size(), 2);
  EXPECT_EQ(verdicts[1].verdict.verdict, Verdict::kApplied);
  const CommitRecord record = cohort.All<effect::Committed>()[1].record;
  EXPECT_EQ(record.commit_samples, 2);
  EXPECT_EQ(record.loss_weight, 0);
  EXPECT_EQ(record.labels, 0);
  // The push has no loss, so the newest loss is still that of the first.
  EXPECT_FLOAT_EQ(*cohort.core().Status(absl::Seconds(101)).train_loss, 3);
}

TEST(CoordinatorAsyncTest, PushesAreAppliedOneByOneInOrderOfArrival) {
  StartedCohort cohort(AsyncSetup());
  cohort.HoldFolds();
  cohort.Push(kRank1, kPush);
  cohort.Push(kRank0, kPush);
  ASSERT_EQ(cohort.held_folds().size(), 2);
  EXPECT_EQ(cohort.held_folds()[0].contributions[0].rank, kRank1);
  cohort.RunFolds();
  const auto committed = cohort.All<effect::Committed>();
  ASSERT_EQ(committed.size(), 2);
  EXPECT_THAT(committed[0].record.members, ElementsAre(kRank1));
  EXPECT_THAT(committed[1].record.members, ElementsAre(kRank0));
  EXPECT_THAT(cohort.weights(0), ElementsAre(0, 4));
}

TEST(CoordinatorAsyncTest, APushThatIsNotWholeCannotBeClosed) {
  StartedCohort cohort(AsyncSetup());
  cohort.Send(kRank0, kPush, {0});
  EXPECT_THAT(cohort.Close(kRank0, kPush),
              IsError(kFailedPrecondition, "rank 0 closed its push"));
}

TEST(CoordinatorAsyncTest, AVersionOfTheFutureCannotHaveBeenRead) {
  StartedCohort cohort(AsyncSetup());
  Effects out;
  EXPECT_THAT(cohort.core().Open(cohort.sender(kRank0), cohort.key(kRank0),
                                 {.version = Version(1), .samples = 2},
                                 absl::Seconds(101), out),
              IsError(kInvalidArgument, ""));
}

TEST(CoordinatorAsyncTest, StatisticsAreFoldedPerPushByItsShare) {
  StartedCohort cohort(AsyncSetup());
  FakePush push = kPush;
  push.moments = {.count = 2, .first = {3}, .second = {0}};
  cohort.PushBoth(push);
  const LayerStatistics& statistics =
      cohort.snapshot()->statistics->front().layers.front();
  // Two halves decay like one step: 0.9.
  EXPECT_NEAR(statistics.mean[0], 3 * 0.1, 1e-6);
  EXPECT_NEAR(statistics.variance[0], 0.9, 1e-6);
  EXPECT_EQ(statistics.num_batches_tracked, 2);
}

TEST(CoordinatorAsyncTest, ARepeatedPushIsADuplicate) {
  StartedCohort cohort(AsyncSetup());
  const PushKey key = cohort.key(kRank0);
  cohort.Push(kRank0, kPush);
  EXPECT_TRUE(cohort.CloseAgain(kRank0, key).verdict.duplicate);
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
}

TEST(CoordinatorAsyncTest, ContinueGivesALostRangeToTheNextWhoAsks) {
  StartedCohort cohort(Continuing(AsyncSetup()));
  const IndexRange lost = cohort.told(kRank1).range;
  ASSERT_TRUE(cohort.Open(kRank1, kPush).ok());
  cohort.Leave(kRank1);
  cohort.Push(kRank0, kPush);
  EXPECT_EQ(cohort.told(kRank0).range, lost);
}

TEST(CoordinatorAsyncTest, ContinueWakesAWaitingWorkerForALostRange) {
  FakeSetup setup = Continuing(AsyncSetup());
  setup.plan.train_samples = 4;
  StartedCohort cohort(setup);
  cohort.Push(kRank0, kPush);
  EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kWait);
  EXPECT_THAT(cohort.told(kRank0).reason, HasSubstr("up in 5 min"));
  cohort.Leave(kRank1);
  EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kTrain);
  EXPECT_EQ(cohort.told(kRank0).range, (IndexRange{2, 4}));
}

TEST(CoordinatorAsyncTest, WaitKeepsTheRangeForTheReplacement) {
  StartedCohort cohort(AsyncSetup());
  const Assignment before = cohort.told(kRank1);
  ASSERT_TRUE(cohort.Open(kRank1, kPush).ok());
  cohort.Leave(kRank1);
  cohort.Push(kRank0, kPush);
  EXPECT_EQ(cohort.told(kRank0).range, (IndexRange{4, 6}));
  cohort.StartOne(kRank1);
  EXPECT_EQ(cohort.told(kRank1).range, before.range);
  EXPECT_EQ(cohort.told(kRank1).sequence, before.sequence);
  // The worker reads newer weights, so this is not the same push.
  EXPECT_EQ(cohort.told(kRank1).attempt, before.attempt.Next());
  EXPECT_EQ(cohort.told(kRank1).version, Version(1));
  cohort.Push(kRank1, kPush);
  EXPECT_EQ(cohort.snapshot()->version, Version(2));
}

TEST(CoordinatorAsyncTest, AReconnectStartsTheHalfPushAgain) {
  StartedCohort cohort(AsyncSetup());
  const PushKey old = cohort.key(kRank0);
  ASSERT_TRUE(cohort.Open(kRank0, kPush).ok());
  ASSERT_TRUE(cohort.Gradient(kRank0, 0, {100, 100}).ok());
  cohort.BreakSession(kRank0);
  ASSERT_TRUE(cohort.Join(kRank0, cohort.incarnation(kRank0)).ok());
  EXPECT_EQ(cohort.told(kRank0).attempt, old.attempt.Next());
  // Messages of the old stream are ignored.
  Effects out;
  ExpectOk(cohort.core().Gradient(cohort.sender(kRank0), old, {.bytes = 8},
                                  absl::Seconds(101), out));
  EXPECT_TRUE(IsForgotten(out));
  cohort.Push(kRank0, kPush);
  EXPECT_THAT(cohort.weights(0), ElementsAre(0.5, 3));
  EXPECT_EQ(cohort.counter("replay_mismatches"), 0);
}

TEST(CoordinatorAsyncTest, ACompletePushOfALostRankIsApplied) {
  StartedCohort cohort(Continuing(AsyncSetup()));
  cohort.HoldFolds();
  cohort.Push(kRank0, kPush);
  cohort.Leave(kRank0);
  cohort.RunFolds();
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_THAT(cohort.All<effect::SendVerdict>(), IsEmpty());
}

TEST(CoordinatorAsyncTest, DrainWaitsForWhatIsOutstanding) {
  StartedCohort cohort(AsyncSetup());
  cohort.Drain("enough");
  cohort.Push(kRank0, kPush);
  EXPECT_FALSE(cohort.core().ended());
  EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kWait);
  cohort.Push(kRank1, kPush);
  EXPECT_EQ(cohort.Only<effect::RunEnded>().outcome, RunOutcome::kDrained);
}

TEST(CoordinatorAsyncTest, DrainWaitsForNobodyWhoIsLost) {
  StartedCohort cohort(AsyncSetup());
  cohort.Leave(kRank1);
  cohort.Drain("enough");
  EXPECT_FALSE(cohort.core().ended());
  cohort.Push(kRank0, kPush);
  EXPECT_TRUE(cohort.core().ended());
}

TEST(CoordinatorAsyncTest, ALossIsToldWhileTheOthersTrainOn) {
  StartedCohort cohort(AsyncSetup());
  cohort.Leave(kRank1);
  cohort.Push(kRank0, kPush);
  EXPECT_THAT(cohort.core().Status(absl::Seconds(130)).state,
              HasSubstr("worker 1, 30 s, gives up in 9 min 30 s"));
}

}  // namespace
}  // namespace cohort
