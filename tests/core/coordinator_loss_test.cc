// Workers that are lost in the middle of a synchronous step.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const FakePush kPush0{.w = {1, 0}, .b = {2}, .loss_weight = 3};
const FakePush kPush1{.w = {3, -2}, .b = {0}, .loss_weight = 1};

// ---- wait

TEST(CoordinatorWaitTest, AReplacementRepeatsTheStepExactly) {
  StartedCohort cohort(SmallSetup());
  const Assignment before = cohort.told(kRank0);
  cohort.Send(kRank0, kPush0, {0});
  cohort.Push(kRank1, kPush1);
  cohort.Leave(kRank0);
  cohort.StartOne(kRank0);
  EXPECT_EQ(cohort.told(kRank0).sequence, before.sequence);
  EXPECT_EQ(cohort.told(kRank0).attempt, before.attempt);
  EXPECT_EQ(cohort.told(kRank0).range, before.range);
  cohort.Push(kRank0, kPush0);
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_THAT(cohort.weights(0), ElementsAre(-1, 3));
  EXPECT_THAT(cohort.weights(1), ElementsAre(2));
  EXPECT_EQ(cohort.counter("pushes_duplicate"), 2);
  EXPECT_EQ(cohort.counter("replay_mismatches"), 0);
  EXPECT_EQ(cohort.counter("steps_aborted"), 0);
}

TEST(CoordinatorWaitTest, AReplacementGetsTheStoredRendezvousResults) {
  StartedCohort cohort(GlobalSetup());
  const Moments a{.count = 3, .first = {1}, .second = {2}};
  const Moments b{.count = 1, .first = {5}, .second = {0}};
  cohort.ReduceBoth({}, a, b);
  const auto first = cohort.All<effect::ReduceResult>();
  cohort.Leave(kRank0);
  cohort.StartOne(kRank0);
  cohort.Clear();
  ASSERT_TRUE(cohort.Reduce(kRank0, {}, a).ok());
  const auto again = cohort.Only<effect::ReduceResult>();
  EXPECT_EQ(again.rank, kRank0);
  EXPECT_EQ(again.incarnation, cohort.incarnation(kRank0));
  EXPECT_EQ(again.moments, first[0].moments);
}

TEST(CoordinatorWaitTest, ACompletePushOfALostRankCounts) {
  StartedCohort cohort(SmallSetup());
  cohort.Push(kRank0, kPush0);
  cohort.Leave(kRank0);
  cohort.Push(kRank1, kPush1);
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_THAT(cohort.weights(0), ElementsAre(-1, 3));
  // The next step waits for the replacement.
  cohort.Push(kRank1, kPush1);
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  cohort.StartOne(kRank0);
  EXPECT_EQ(cohort.told(kRank0).range, (IndexRange{4, 7}));
  cohort.Push(kRank0, kPush0);
  EXPECT_EQ(cohort.snapshot()->version, Version(2));
}

// The others then begin the step again, and one of them sends the state.
TEST(CoordinatorWaitTest, AReplacementThatLacksAStateHasTheStepRepeated) {
  StartedCohort cohort(SmallSetup());
  cohort.Push(kRank1, kPush1);
  cohort.Leave(kRank0);
  cohort.StartOne(kRank0);
  const PushKey before = cohort.key(kRank0);
  ExpectOk(cohort.MissesState(kRank0, before, /*lost=*/false));
  EXPECT_EQ(cohort.All<effect::StepAborted>().size(), 2);
  EXPECT_EQ(cohort.counter("steps_aborted"), 1);
  // A request of the attempt that is over changes nothing.
  ExpectOk(cohort.MissesState(kRank0, before, /*lost=*/false));
  EXPECT_EQ(cohort.counter("steps_aborted"), 1);
  EXPECT_EQ(cohort.snapshot()->version, Version(0));
}

TEST(CoordinatorWaitTest, OnlyWhereAllMembersStepTogetherIsAStateMissed) {
  for (const FakeSetup& setup : {FirstTwo(SmallSetup()), AsyncSetup()}) {
    StartedCohort cohort(setup);
    EXPECT_THAT(cohort.MissesState(kRank0, cohort.key(kRank0), /*lost=*/false),
                IsError(kFailedPrecondition, "--aggregation=sync"));
  }
}

TEST(CoordinatorWaitTest, AStateThatNoMemberHasEndsTheRun) {
  StartedCohort cohort(SmallSetup());
  ExpectOk(cohort.MissesState(kRank0, cohort.key(kRank0), /*lost=*/true));
  EXPECT_EQ(cohort.Only<effect::RunEnded>().outcome, RunOutcome::kWorkerLost);
}

// The replacement is in the forward pass of a step whose push its predecessor
// had completed; it has no stream that the verdict could reach.
TEST(CoordinatorWaitTest, WhoIsOvertakenByTheCommitIsToldOverItsSession) {
  StartedCohort cohort(GlobalSetup());
  cohort.ReduceBoth({}, {.count = 1, .first = {0}, .second = {0}});
  cohort.Push(kRank0, kPush0);
  cohort.Leave(kRank0);
  cohort.StartOne(kRank0);
  cohort.Clear();
  cohort.Push(kRank1, kPush1);
  const auto notices = cohort.All<effect::Notify>();
  ASSERT_EQ(notices.size(), 2);
  EXPECT_EQ(notices[0].session, cohort.session(kRank0));
  EXPECT_EQ(notices[0].assignment.range, (IndexRange{4, 7}));
  // Rank 1 is notified too: it has had no verdict since it joined.
  EXPECT_EQ(notices[1].session, cohort.session(kRank1));
}

TEST(CoordinatorWaitTest, OnlyTheFirstVerdictAfterAJoinIsToldTwice) {
  StartedCohort cohort(SmallSetup());
  cohort.PushBoth(kPush0, kPush1);
  EXPECT_EQ(cohort.told(kRank0).version, Version(1));
  cohort.Clear();
  cohort.PushBoth(kPush0, kPush1);
  EXPECT_THAT(cohort.All<effect::Notify>(), IsEmpty());
  EXPECT_EQ(cohort.All<effect::SendVerdict>().size(), 2);
}

TEST(CoordinatorWaitTest, ARepeatedGradientBringsItsTentativeWeightsAgain) {
  StartedCohort cohort(SmallSetup());
  ASSERT_TRUE(cohort.Open(kRank0, kPush0).ok());
  ASSERT_TRUE(cohort.Open(kRank1, kPush1).ok());
  ASSERT_TRUE(cohort.Gradient(kRank0, 0, kPush0.w).ok());
  ASSERT_TRUE(cohort.Gradient(kRank1, 0, kPush1.w).ok());
  cohort.Leave(kRank0);
  cohort.StartOne(kRank0);
  cohort.Clear();
  cohort.Send(kRank0, kPush0, {0});
  const auto sent = cohort.Only<command::SendWeights>();
  EXPECT_EQ(sent.rank, kRank0);
  EXPECT_EQ(sent.partition, 0);
  EXPECT_EQ(cohort.sent()[0].weights->data()[0], -1);
}

TEST(CoordinatorWaitTest, WhoWaitsIsToldForWhomAndForHowLong) {
  FakeSetup setup = SmallSetup();
  setup.plan.train_samples = 3;
  setup.plan.test_samples = 0;
  StartedCohort cohort(setup);
  EXPECT_EQ(cohort.told(kRank1).kind, AssignmentKind::kWait);
  EXPECT_THAT(cohort.told(kRank1).reason, HasSubstr("up in 5 min"));
  cohort.Clear();
  cohort.Leave(kRank0);
  EXPECT_THAT(cohort.told(kRank1).reason, HasSubstr("0 s, gives up in 10 min"));
  EXPECT_EQ(cohort.told(kRank1).wait, absl::Minutes(10));
}

// A worker with another model that is restarted repeatedly must not keep
// the run waiting for ever.
TEST(CoordinatorWaitTest, ARefusedReplacementDoesNotStartTheWaitAnew) {
  FakeSetup setup = SmallSetup();
  setup.plan.train_samples = 3;
  setup.plan.test_samples = 0;
  setup.options.replacement_deadline = absl::Seconds(10);
  StartedCohort cohort(setup);
  cohort.Leave(kRank0);
  for (int i = 0; i < 3; ++i) {
    cohort.Pass(absl::Seconds(3));
    ASSERT_TRUE(cohort.Join(kRank0).ok());
    cohort.Leave(kRank0);
  }
  EXPECT_THAT(cohort.told(kRank1).reason, HasSubstr("9 s, gives up in 1 s"));
  cohort.Pass(absl::Seconds(2));
  EXPECT_EQ(cohort.Only<effect::RunEnded>().outcome, RunOutcome::kWorkerLost);
}

TEST(CoordinatorWaitTest, ADrainThatWaitsSaysSo) {
  StartedCohort cohort(SmallSetup());
  cohort.BreakSession(kRank0);
  cohort.Drain("enough");
  EXPECT_FALSE(cohort.core().ended());
  EXPECT_THAT(cohort.Status().state,
              HasSubstr("draining after the step in progress; waiting"));
}

// A run that is about to end gets no replacement.
TEST(CoordinatorWaitTest, ADrainWaitsForNobodyWhoIsLost) {
  StartedCohort cohort(SmallSetup());
  cohort.Push(kRank1, kPush1);
  cohort.Leave(kRank0);
  ASSERT_FALSE(cohort.core().ended());
  cohort.Drain("enough");
  const auto ended = cohort.Only<effect::RunEnded>();
  EXPECT_EQ(ended.outcome, RunOutcome::kDrained);
  // The step that the lost rank was missing in is not committed.
  EXPECT_EQ(ended.version->version, Version(0));
}

TEST(CoordinatorWaitTest, ALossDuringADrainEndsIt) {
  StartedCohort cohort(SmallSetup());
  cohort.Push(kRank1, kPush1);
  cohort.Drain("enough");
  EXPECT_FALSE(cohort.core().ended());
  cohort.Leave(kRank0);
  EXPECT_TRUE(cohort.core().ended());
}

TEST(CoordinatorRefusalTest, ARefusedProgramEndsTheRun) {
  for (const FakeSetup& setup : {SmallSetup(), Continuing(SmallSetup())}) {
    StartedCohort cohort(setup);
    cohort.Push(kRank0, kPush0);
    cohort.Clear();
    cohort.Leave(kRank1, Departure::Kind::kRefused);
    const auto ended = cohort.Only<effect::RunEnded>();
    EXPECT_EQ(ended.outcome, RunOutcome::kRefused);
    EXPECT_EQ(ended.reason, "worker 1 was refused: asked to");
    EXPECT_EQ(cohort.snapshot()->version, Version(0));
    EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kFinished);
  }
}

TEST(CoordinatorRefusalTest, ARefusalBeforeTheStartIsALoss) {
  FakeCohort cohort(SmallSetup());
  cohort.StartOne(kRank0);
  cohort.Leave(kRank0, Departure::Kind::kRefused);
  EXPECT_FALSE(cohort.core().ended());
}

// ---- continue

class CoordinatorContinueTest : public testing::Test {
 protected:
  StartedCohort cohort_{Continuing(SmallSetup())};
};

TEST_F(CoordinatorContinueTest, TheOthersRepeatTheStepWithoutTheLostRank) {
  const PushKey before = cohort_.key(kRank0);
  cohort_.Push(kRank0, kPush0);
  ASSERT_TRUE(cohort_.Open(kRank1, kPush1).ok());
  cohort_.Clear();
  cohort_.Leave(kRank1);
  const auto aborted = cohort_.Only<effect::StepAborted>();
  EXPECT_EQ(aborted.session, cohort_.session(kRank0));
  EXPECT_EQ(aborted.step, Version(0));
  EXPECT_EQ(aborted.attempt, Attempt(0));
  EXPECT_THAT(aborted.members, ElementsAre(kRank0));
  EXPECT_EQ(aborted.reason, "rank 1 has left: asked to");
  EXPECT_EQ(cohort_.told(kRank0).attempt, Attempt(1));
  EXPECT_GT(cohort_.key(kRank0).sequence, before.sequence);
  EXPECT_EQ(cohort_.told(kRank0).range, (IndexRange{0, 3}));
  EXPECT_EQ(cohort_.counter("steps_aborted"), 1);

  // This is exactly the step of one worker: scale 4 / 4, rate 0.5.
  FakePush alone = kPush0;
  alone.loss_weight = 4;
  cohort_.Push(kRank0, alone);
  EXPECT_EQ(cohort_.snapshot()->version, Version(1));
  EXPECT_THAT(cohort_.weights(0), ElementsAre(0.5, 2));
  EXPECT_THAT(cohort_.weights(1), ElementsAre(2));
  EXPECT_EQ(cohort_.told(kRank0).range, (IndexRange{3, 6}));
}

TEST_F(CoordinatorContinueTest, ACompletePushOfALostRankCounts) {
  cohort_.Push(kRank1, kPush1);
  cohort_.Leave(kRank1);
  EXPECT_EQ(cohort_.counter("steps_aborted"), 0);
  cohort_.Push(kRank0, kPush0);
  EXPECT_THAT(cohort_.weights(0), ElementsAre(-1, 3));
  EXPECT_THAT(cohort_.All<effect::Committed>()[0].record.members,
              ElementsAre(kRank0, kRank1));
  // The next step has one member.
  EXPECT_THAT(cohort_.told(kRank0).members, ElementsAre(kRank0));
}

TEST_F(CoordinatorContinueTest, WaitersOfARendezvousAreReleased) {
  StartedCohort cohort(Continuing(GlobalSetup()));
  const Moments moments{.count = 1, .first = {0}, .second = {0}};
  ASSERT_TRUE(cohort.Reduce(kRank0, {}, moments).ok());
  cohort.Clear();
  cohort.Leave(kRank1);
  EXPECT_EQ(cohort.Only<effect::ReduceAborted>().rank, kRank0);
  cohort.Clear();
  // The new attempt has its own rendezvous, of one member.
  ASSERT_TRUE(cohort.Reduce(kRank0, {.attempt = Attempt(1)}, moments).ok());
  EXPECT_EQ(cohort.All<effect::ReduceResult>().size(), 1);
}

TEST_F(CoordinatorContinueTest, LateMessagesOfTheOldAttemptChangeNothing) {
  const PushKey old = cohort_.key(kRank0);
  ASSERT_TRUE(cohort_.Open(kRank0, kPush0).ok());
  cohort_.Leave(kRank1);
  cohort_.Clear();
  Effects out;
  ExpectOk(cohort_.core().Gradient(cohort_.sender(kRank0), old,
                                   {.partition = 1, .bytes = 4}, cohort_.now(),
                                   out));
  EXPECT_TRUE(IsForgotten(out));
  EXPECT_EQ(cohort_.CloseAgain(kRank0, old).verdict.verdict, Verdict::kDropped);
  cohort_.Push(kRank0, {.w = {1, 0}, .b = {2}, .loss_weight = 4});
  EXPECT_THAT(cohort_.weights(1), ElementsAre(2));
}

TEST_F(CoordinatorContinueTest, FoldsOfTheOldAttemptAreIgnored) {
  cohort_.HoldFolds();
  cohort_.Push(kRank0, kPush0);
  cohort_.Send(kRank1, kPush1, {0});
  ASSERT_EQ(cohort_.held_folds().size(), 1);
  cohort_.Leave(kRank1);
  cohort_.Clear();
  cohort_.RunFolds();
  EXPECT_THAT(cohort_.All<command::SendWeights>(), IsEmpty());
  cohort_.Push(kRank0, {.w = {1, 0}, .b = {2}, .loss_weight = 4});
  cohort_.RunFolds();
  EXPECT_THAT(cohort_.weights(0), ElementsAre(0.5, 2));
}

// A broken stream is not a loss: a step that starts then must include the
// rank.
TEST_F(CoordinatorContinueTest, AReconnectingRankIsAMemberOfTheNextStep) {
  cohort_.Push(kRank1, kPush1);
  cohort_.BreakSession(kRank1);
  cohort_.Push(kRank0, kPush0);
  EXPECT_THAT(cohort_.told(kRank0).members, ElementsAre(kRank0, kRank1));
  ASSERT_TRUE(cohort_.Join(kRank1, cohort_.incarnation(kRank1)).ok());
  EXPECT_EQ(cohort_.told(kRank1).range, (IndexRange{7, 8}));
}

TEST_F(CoordinatorContinueTest, IfItDoesNotReturnTheAttemptEnds) {
  cohort_.Push(kRank1, kPush1);
  cohort_.BreakSession(kRank1);
  cohort_.Push(kRank0, kPush0);
  cohort_.Pass(absl::Milliseconds(500));
  EXPECT_THAT(cohort_.told(kRank0).members, ElementsAre(kRank0));
  EXPECT_EQ(cohort_.told(kRank0).attempt, Attempt(1));
}

TEST_F(CoordinatorContinueTest, ANewcomerJoinsAtTheNextStep) {
  cohort_.Leave(kRank1);
  cohort_.StartOne(kRank1);
  EXPECT_EQ(cohort_.told(kRank1).kind, AssignmentKind::kWait);
  cohort_.Push(kRank0, kPush0);
  EXPECT_THAT(cohort_.told(kRank0).members, ElementsAre(kRank0, kRank1));
  EXPECT_EQ(cohort_.told(kRank1).range, (IndexRange{6, 7}));
}

// The first was lost long ago, and the run continued without it.
TEST(CoordinatorLossTest, TheLastOneMayReconnectLikeAnyOther) {
  FakeSetup setup = Continuing(Long(SmallSetup()));
  setup.options.replacement_deadline = absl::Seconds(10);
  StartedCohort cohort(setup);
  cohort.Leave(kRank0);
  for (int i = 0; i < 3; ++i) cohort.Pass(absl::Seconds(4));
  cohort.BreakSession(kRank1);
  cohort.Pass(absl::Milliseconds(100));
  EXPECT_FALSE(cohort.core().ended());
  EXPECT_THAT(cohort.Status().state, HasSubstr("gives up in 9.9 s"));
  ExpectOk(cohort.Join(kRank1, cohort.incarnation(kRank1)));
  for (int i = 0; i < 3; ++i) cohort.Pass(absl::Seconds(4));
  EXPECT_FALSE(cohort.core().ended());
  cohort.Leave(kRank1);
  for (int i = 0; i < 3; ++i) cohort.Pass(absl::Seconds(4));
  EXPECT_TRUE(cohort.core().ended());
}

TEST_F(CoordinatorContinueTest, WithNobodyLeftTheStepWaitsForAnyone) {
  cohort_.Leave(kRank0);
  cohort_.Leave(kRank1);
  EXPECT_FALSE(cohort_.core().ended());
  cohort_.StartOne(kRank1);
  EXPECT_THAT(cohort_.told(kRank1).members, ElementsAre(kRank1));
  EXPECT_EQ(cohort_.told(kRank1).range, (IndexRange{0, 1}));
}

// ---- evaluation

TEST(CoordinatorEvaluationTest, ALostRanksShardGoesToWhoeverIsFree) {
  StartedCohort cohort(Continuing(SmallSetup()));
  for (int step = 0; step < 2; ++step) cohort.PushBoth(kPush0, kPush1);
  ASSERT_EQ(cohort.told(kRank1).kind, AssignmentKind::kEvaluate);
  const IndexRange lost = cohort.told(kRank1).range;
  ASSERT_TRUE(cohort.Report(kRank0).ok());
  EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kWait);
  cohort.Leave(kRank1);
  EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kEvaluate);
  EXPECT_EQ(cohort.told(kRank0).range, lost);
  ASSERT_TRUE(cohort.Report(kRank0).ok());
  EXPECT_EQ(cohort.All<effect::Evaluated>().size(), 1);
  EXPECT_EQ(cohort.All<effect::RunEnded>().size(), 1);
}

TEST(CoordinatorEvaluationTest, ARepeatedReportCountsOnce) {
  StartedCohort cohort(SmallSetup());
  for (int step = 0; step < 2; ++step) cohort.PushBoth(kPush0, kPush1);
  const Assignment shard = cohort.told(kRank0);
  Effects out;
  const Instant now = absl::Seconds(101);
  for (int i = 0; i < 2; ++i) {
    const Assignment next = OkValue(cohort.core().ReportEvaluation(
        cohort.sender(kRank0), shard.sequence,
        {.samples = 2, .correct = 2, .labels = 2}, now, out));
    EXPECT_EQ(next.kind, AssignmentKind::kWait);
  }
  EXPECT_THAT(cohort.core().ReportEvaluation(cohort.sender(kRank0),
                                             Sequence(99), {}, now, out),
              IsError(kFailedPrecondition, "assignment 99"));
  EXPECT_THAT(
      cohort.core().ReportEvaluation(cohort.sender(kRank0), shard.sequence,
                                     {.correct = 2, .labels = 1}, now, out),
      IsError(kInvalidArgument, ""));
  ASSERT_TRUE(cohort.Report(kRank1).ok());
  EXPECT_EQ(cohort.Only<effect::Evaluated>().record.sums().samples, 4);
}

// Such a report is refused and its assignment stays, so that the run can
// continue once another process has taken the rank.
TEST(CoordinatorEvaluationTest, MeasuresThatTheOthersLackAreRefused) {
  StartedCohort cohort(SmallSetup());
  for (int step = 0; step < 2; ++step) cohort.PushBoth(kPush0, kPush1);
  ASSERT_TRUE(cohort.Report(kRank0).ok());
  Effects out;
  EXPECT_THAT(cohort.core().ReportEvaluation(
                  cohort.sender(kRank1), cohort.told(kRank1).sequence,
                  {.samples = 2,
                   .labels = 2,
                   .classes = {{.predicted = 2, .actual = 2}}},
                  absl::Seconds(101), out),
              IsError(kInvalidArgument, ""));
  ASSERT_TRUE(cohort.Report(kRank1).ok());
  EXPECT_EQ(cohort.All<effect::Evaluated>().size(), 1);
}

// The server stays up so that people can inspect it.
TEST(CoordinatorRefusalTest,
     GradientsOfAStepThatNeverCommitsAreDroppedAtTheEnd) {
  FakeSetup setup = SmallSetup();
  setup.options.replacement_deadline = absl::Seconds(10);
  StartedCohort cohort(setup);
  cohort.Send(kRank0, kPush0, {0});
  cohort.Leave(kRank1);
  cohort.Pass(absl::Seconds(11));
  ASSERT_EQ(cohort.All<effect::RunEnded>().size(), 1);
  EXPECT_EQ(cohort.Only<command::Drop>().push.rank, kRank0);
}

}  // namespace
}  // namespace cohort
