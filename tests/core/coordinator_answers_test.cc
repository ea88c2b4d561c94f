// Every push is answered exactly once, even if it comes too late or twice, or
// has a key that the server never gave out.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "server/core/coordinator.h"
#include "server/core/ledger/push_history.h"
#include "tests/core/fake_cohort.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

const FakePush kAnyPush;

PushKey PushKeyOf(int64_t sequence, int32_t attempt = 0) {
  return {.sequence = Sequence(sequence), .attempt = Attempt(attempt)};
}

// The three parts of a push of rank 0 under `key`, and the answer to each.
struct Received {
  absl::Status opened;
  absl::Status gradient;
  absl::Status closed;
  // The verdicts that answered the closing.
  std::vector<effect::SendVerdict> verdicts;
};

Received PushAs(FakeCohort& cohort, const PushKey& key) {
  const Instant now = cohort.now();
  const Sender sender = cohort.sender(kRank0);
  Received received;
  Effects out;
  received.opened = cohort.core().Open(sender, key, {.samples = 3}, now, out);
  EXPECT_THAT(out, IsEmpty());
  received.gradient =
      cohort.core().Gradient(sender, key, {.bytes = 8}, now, out).status();
  EXPECT_TRUE(!received.gradient.ok() || IsForgotten(out));
  received.closed = cohort.core().Close(
      sender, key,
      {.batch_norm_calls = {1},
       .moments = {{.moments = {.count = 1, .first = {0}, .second = {0}}}}},
      now, out);
  for (const Effect& effect : out) {
    if (const auto* sent = std::get_if<effect::SendVerdict>(&effect)) {
      received.verdicts.push_back(*sent);
    }
  }
  return received;
}

TEST(CoordinatorAnswersTest, AKeyThatWasNeverGivenIsRefusedInEveryPart) {
  StartedCohort cohort(Long(SmallSetup()));
  cohort.PushBoth(kAnyPush);
  // The server has given out sequences 1 and 2, attempt 0 each.
  for (const PushKey& key :
       {PushKeyOf(0), PushKeyOf(-1), PushKeyOf(1, 1), PushKeyOf(2, 1),
        PushKeyOf(2, -1), PushKeyOf(3), PushKeyOf(int64_t{1} << 62)}) {
    const Received received = PushAs(cohort, key);
    EXPECT_TRUE(absl::IsFailedPrecondition(received.opened)) << key.sequence;
    EXPECT_TRUE(absl::IsFailedPrecondition(received.gradient));
    EXPECT_TRUE(absl::IsFailedPrecondition(received.closed));
    EXPECT_THAT(received.verdicts, IsEmpty());
  }
}

TEST(CoordinatorAnswersTest, ARepetitionOfAnyRememberedStepIsADuplicate) {
  StartedCohort cohort(Long(SmallSetup()));
  for (int i = 0; i < 4; ++i) cohort.PushBoth(kAnyPush);
  const PushVerdict verdict = cohort.CloseAgain(kRank0, PushKeyOf(1)).verdict;
  EXPECT_EQ(verdict.verdict, Verdict::kApplied);
  EXPECT_TRUE(verdict.duplicate);
  EXPECT_EQ(verdict.version, Version(1));
  EXPECT_EQ(verdict.next.sequence, Sequence(5));
  EXPECT_EQ(cohort.counter("pushes_duplicate"), 1);
}

TEST(CoordinatorAnswersTest, OfAForgottenPushNothingIsClaimed) {
  StartedCohort cohort(Long(SmallSetup(), 1000));
  for (size_t i = 0; i < PushHistory::kKept + 1; ++i) cohort.PushBoth(kAnyPush);
  EXPECT_TRUE(PushAs(cohort, PushKeyOf(1)).opened.ok());
  const PushVerdict verdict = cohort.CloseAgain(kRank0, PushKeyOf(1)).verdict;
  EXPECT_EQ(verdict.verdict, Verdict::kDropped);
  EXPECT_TRUE(verdict.duplicate);
  EXPECT_THAT(verdict.reason, HasSubstr("decided long ago"));
}

// A worker that lost the answer may ask the server that was started again.
TEST(CoordinatorAnswersTest, APushOfBeforeTheRestartIsOver) {
  FakeSetup setup = Checkpointing(Long(SmallSetup()));
  StartedCohort first(setup);
  first.PushBoth(kAnyPush);
  StartedCohort cohort(setup, &first.All<effect::WriteCheckpoint>()[0].state);
  const PushVerdict verdict = cohort.CloseAgain(kRank0, PushKeyOf(1)).verdict;
  EXPECT_EQ(verdict.verdict, Verdict::kDropped);
  EXPECT_TRUE(verdict.duplicate);
}

// The sender has been replaced when its push is applied. The successor that
// repeats it receives the verdict that it counts.
TEST(CoordinatorAnswersTest, AVerdictIsKeptForTheSuccessorOfItsSender) {
  StartedCohort cohort(Continuing(Long(AsyncSetup())));
  const PushKey key = cohort.key(kRank0);
  cohort.HoldFolds();
  cohort.Push(kRank0, kAnyPush);
  cohort.Leave(kRank0);
  cohort.StartOne(kRank0);
  cohort.RunFolds();
  const PushVerdict verdict = cohort.CloseAgain(kRank0, key).verdict;
  EXPECT_EQ(verdict.verdict, Verdict::kApplied);
  EXPECT_EQ(verdict.version, Version(1));
}

// The successor repeats it while it is still being folded.
TEST(CoordinatorAnswersTest, ASuccessorThatAskedBeforeTheVerdictIsAnswered) {
  StartedCohort cohort(Continuing(Long(AsyncSetup())));
  const PushKey key = cohort.key(kRank0);
  cohort.HoldFolds();
  cohort.Push(kRank0, kAnyPush);
  cohort.Leave(kRank0);
  cohort.StartOne(kRank0);
  EXPECT_THAT(PushAs(cohort, key).verdicts, IsEmpty());
  cohort.RunFolds();
  const auto verdicts = cohort.All<effect::SendVerdict>();
  ASSERT_EQ(verdicts.size(), 1);
  EXPECT_EQ(verdicts[0].incarnation, cohort.incarnation(kRank0));
  EXPECT_EQ(verdicts[0].key, key);
  EXPECT_EQ(verdicts[0].verdict.verdict, Verdict::kApplied);
}

TEST(CoordinatorAnswersTest, AnEvaluationsNumberIsNoPushs) {
  FakeSetup setup = SmallSetup();
  setup.options.epochs = 2;
  StartedCohort cohort(setup);
  cohort.PushBoth(kAnyPush);
  cohort.PushBoth(kAnyPush);
  ASSERT_EQ(cohort.told(kRank0).kind, AssignmentKind::kEvaluate);
  const PushKey key = cohort.key(kRank0);
  EXPECT_TRUE(absl::IsFailedPrecondition(PushAs(cohort, key).closed));
  cohort.EvaluateAll();
  EXPECT_TRUE(absl::IsFailedPrecondition(PushAs(cohort, key).closed));
}

// Rank 1 is lost under `continue`, which ends the attempt.
TEST(CoordinatorAnswersTest, ThePushOfAnAbortedAttemptIsAnsweredOnce) {
  StartedCohort cohort(Continuing(Long(SmallSetup())));
  const PushKey key = cohort.key(kRank0);
  cohort.Push(kRank0, kAnyPush);
  cohort.Leave(kRank1);
  const auto sent = cohort.Only<effect::SendVerdict>();
  EXPECT_EQ(sent.key, key);
  EXPECT_EQ(sent.verdict.verdict, Verdict::kDropped);
  EXPECT_FALSE(sent.verdict.duplicate);
  EXPECT_THAT(sent.verdict.reason, HasSubstr("rank 1 has left: asked to"));
  EXPECT_EQ(sent.verdict.next.attempt, Attempt(1));
  EXPECT_TRUE(cohort.CloseAgain(kRank0, key).verdict.duplicate);
}

TEST(CoordinatorAnswersTest, APushClosedAfterItsAttemptIsAnsweredThen) {
  StartedCohort cohort(Continuing(Long(SmallSetup())));
  const PushKey key = cohort.key(kRank0);
  ASSERT_TRUE(cohort.Open(kRank0, kAnyPush).ok());
  cohort.Leave(kRank1);
  EXPECT_THAT(cohort.All<effect::SendVerdict>(), IsEmpty());
  const Received late = PushAs(cohort, key);
  ASSERT_EQ(late.verdicts.size(), 1);
  EXPECT_EQ(late.verdicts[0].verdict.verdict, Verdict::kDropped);
  EXPECT_FALSE(late.verdicts[0].verdict.duplicate);
}

TEST(CoordinatorAnswersTest, APushUnderWayWhenTheRunEndsIsAnswered) {
  StartedCohort cohort(Long(SmallSetup()));
  const PushKey closed = cohort.key(kRank0);
  cohort.Push(kRank0, kAnyPush);
  cohort.Leave(kRank1);
  cohort.Pass(absl::Minutes(11));
  ASSERT_TRUE(cohort.core().ended());
  const auto sent = cohort.Only<effect::SendVerdict>();
  EXPECT_EQ(sent.key, closed);
  EXPECT_EQ(sent.verdict.verdict, Verdict::kDropped);
  EXPECT_THAT(sent.verdict.reason, HasSubstr("no replacement for rank 1"));
  EXPECT_EQ(sent.verdict.next.kind, AssignmentKind::kFinished);
}

TEST(CoordinatorAnswersTest, APushClosedAfterTheRunsEndIsAnswered) {
  StartedCohort cohort(Long(SmallSetup()));
  const PushKey key = cohort.key(kRank0);
  cohort.Leave(kRank1);
  // Rank 0 is working all the time.
  cohort.Pass(absl::Minutes(3));
  ASSERT_TRUE(cohort.Open(kRank0, kAnyPush).ok());
  cohort.Pass(absl::Minutes(3));
  ASSERT_TRUE(cohort.Gradient(kRank0, 0, kAnyPush.w).ok());
  cohort.Pass(absl::Minutes(3));
  ASSERT_TRUE(cohort.Gradient(kRank0, 1, kAnyPush.b).ok());
  cohort.Pass(absl::Minutes(3));
  ASSERT_TRUE(cohort.core().ended());
  const Received late = PushAs(cohort, key);
  ASSERT_EQ(late.verdicts.size(), 1);
  EXPECT_EQ(late.verdicts[0].verdict.verdict, Verdict::kDropped);
  EXPECT_FALSE(late.verdicts[0].verdict.duplicate);
  EXPECT_TRUE(absl::IsFailedPrecondition(PushAs(cohort, PushKeyOf(99)).closed));
}

// Rank 0's push is being folded and rank 1's is queued. The run ends because
// rank 0's push is not finite.
TEST(CoordinatorAnswersTest, AnAsynchronousPushInTheQueueIsAnsweredOnce) {
  FakeSetup setup = Long(AsyncSetup());
  setup.options.nonfinite_max = 1;
  StartedCohort cohort(setup);
  cohort.HoldFolds();
  FakePush bad;
  bad.w = {std::numeric_limits<float>::quiet_NaN(), 0};
  const PushKey first = cohort.key(kRank0);
  cohort.PushBoth(bad, kAnyPush);
  // A repetition of the push is not answered before the push itself.
  EXPECT_THAT(PushAs(cohort, first).verdicts, IsEmpty());
  cohort.RunFolds();
  ASSERT_TRUE(cohort.core().ended());
  const auto verdicts = cohort.All<effect::SendVerdict>();
  ASSERT_EQ(verdicts.size(), 2);
  EXPECT_EQ(verdicts[0].verdict.verdict, Verdict::kRejectedNonfinite);
  EXPECT_EQ(verdicts[1].rank, kRank1);
  EXPECT_EQ(verdicts[1].verdict.verdict, Verdict::kDropped);
}

// The stream broke half-way, and the assignment was given again.
TEST(CoordinatorAnswersTest, AnAsynchronousAttemptThatIsOverIsAnswered) {
  StartedCohort cohort(Long(AsyncSetup()));
  const PushKey before = cohort.key(kRank0);
  ASSERT_TRUE(cohort.Open(kRank0, kAnyPush).ok());
  cohort.BreakSession(kRank0);
  ASSERT_TRUE(cohort.Join(kRank0, cohort.incarnation(kRank0)).ok());
  EXPECT_EQ(cohort.key(kRank0), PushKeyOf(1, 1));
  const Received late = PushAs(cohort, before);
  ASSERT_EQ(late.verdicts.size(), 1);
  EXPECT_EQ(late.verdicts[0].verdict.verdict, Verdict::kDropped);
  EXPECT_THAT(late.verdicts[0].verdict.reason,
              HasSubstr("issued again as attempt 1"));
  EXPECT_TRUE(
      absl::IsFailedPrecondition(PushAs(cohort, PushKeyOf(1, 2)).closed));
}

TEST(CoordinatorAnswersTest, AReportOfAnImpossibleNumberIsRefused) {
  FakeSetup setup = SmallSetup();
  setup.options.epochs = 2;
  StartedCohort cohort(setup);
  cohort.PushBoth(kAnyPush);
  cohort.PushBoth(kAnyPush);
  Effects out;
  for (int64_t sequence : {int64_t{0}, int64_t{-5}}) {
    EXPECT_THAT(
        cohort.core().ReportEvaluation(
            cohort.sender(kRank0), Sequence(sequence), {}, cohort.now(), out),
        IsError(kFailedPrecondition, ""));
    EXPECT_THAT(
        cohort.core().ReportMoments(cohort.sender(kRank0), Sequence(sequence),
                                    {}, cohort.now(), out),
        IsError(kFailedPrecondition, ""));
  }
}

// There is no step 5, whether or not a round is in progress.
TEST(CoordinatorAnswersTest, ARendezvousOfALaterStepIsRefused) {
  FakeSetup setup = GlobalSetup();
  setup.plan.test_samples = 0;
  setup.options.policy.statistics = {StatisticsKind::kSync,
                                     StatisticsKind::kAfter};
  StartedCohort cohort(setup);
  const Moments moments{.count = 1, .first = {0}, .second = {0}};
  const ReduceKey later{.step = Version(5)};
  EXPECT_TRUE(
      absl::IsFailedPrecondition(cohort.Reduce(kRank0, later, moments)));
  cohort.PushBoth(kAnyPush);
  cohort.PushBoth(kAnyPush);
  ASSERT_EQ(cohort.told(kRank0).kind, AssignmentKind::kCollectMoments);
  EXPECT_TRUE(
      absl::IsFailedPrecondition(cohort.Reduce(kRank0, later, moments)));
}

}  // namespace
}  // namespace cohort
