#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <variant>
#include <vector>

#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"
#include "tests/core/float_values.h"
#include "tests/fakes/statuses.h"

// Steps of several optimizers: the first updates w, the second b.
namespace cohort {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr float kBroken = std::numeric_limits<float>::quiet_NaN();

// Sends the update of one parameter; the other has no gradient.
void SendW(FakeCohort& cohort, Rank rank, float gradient, int32_t update = 0) {
  ExpectOk(cohort.Open(rank, {.update = update, .continues = true}));
  ExpectOk(cohort.Gradient(rank, 0, {gradient, 0}));
  ExpectOk(cohort.Gradient(rank, 1, {}, {0}));
}
void SendB(FakeCohort& cohort, Rank rank, float gradient, int32_t update = 1) {
  ExpectOk(cohort.Open(rank, {.update = update, .optimizer = 1}));
  ExpectOk(cohort.Gradient(rank, 0, {}, {0}));
  ExpectOk(cohort.Gradient(rank, 1, {gradient}));
}
void Finish(FakeCohort& cohort, float gradient, int32_t update = 1) {
  for (const Rank rank : {kRank0, kRank1}) {
    SendB(cohort, rank, gradient, update);
    // The verdict changes the key of the rank.
    ExpectOk(cohort.Close(rank, FakePush()));
  }
}

FakeSetup Adam(FakeSetup setup) {
  setup.options.optimizer.kind = OptimizerKind::kAdam;
  return setup;
}

std::vector<float> SentOf(const FakeCohort& cohort, size_t number) {
  return ValuesOf(cohort.sent()[number].weights);
}

TEST(CoordinatorUpdatesTest, AllUpdatesTogetherMakeOneVersion) {
  StartedCohort cohort(Long(SmallSetup()));
  cohort.Clear();
  SendW(cohort, kRank0, 1);
  EXPECT_THAT(cohort.sent(), IsEmpty());
  SendW(cohort, kRank1, 3);
  // Loss weights of 2 in all, and a reference of 4: twice the sum.
  ASSERT_THAT(cohort.sent(), SizeIs(4));
  EXPECT_THAT(SentOf(cohort, 0), ElementsAre(-3, 2));
  EXPECT_THAT(SentOf(cohort, 2), ElementsAre(3));
  for (const auto& send : cohort.All<command::SendWeights>()) {
    EXPECT_EQ(send.key.update, 0);
    EXPECT_EQ(send.version, Version(1));
  }
  EXPECT_EQ(cohort.snapshot()->version, Version(0));
  EXPECT_THAT(cohort.weights(0), ElementsAre(1, 2));
  EXPECT_THAT(cohort.All<effect::Committed>(), IsEmpty());

  cohort.Clear();
  Finish(cohort, 1);
  EXPECT_EQ(cohort.All<command::SendWeights>().back().key.update, 1);
  EXPECT_EQ(cohort.Only<effect::Committed>().record.version, Version(1));
  for (const auto& sent : cohort.All<effect::SendVerdict>()) {
    EXPECT_EQ(sent.verdict.verdict, Verdict::kApplied);
    EXPECT_EQ(sent.weights_partitions, 2);
  }
  EXPECT_THAT(cohort.weights(0), ElementsAre(-3, 2));
  EXPECT_THAT(cohort.weights(1), ElementsAre(1));
  EXPECT_EQ(cohort.told(kRank0).range, (IndexRange{4, 7}));
}

TEST(CoordinatorUpdatesTest, AnOptimizerMayUpdateTwiceFromItsOwnResult) {
  StartedCohort cohort(Long(Adam(SmallSetup())));
  for (const int32_t update : {0, 1}) {
    for (const Rank rank : {kRank0, kRank1}) SendW(cohort, rank, 1, update);
  }
  Finish(cohort, 1, /*update=*/2);
  const SharedSnapshot after = cohort.snapshot();
  EXPECT_THAT(after->slots[0].updates, ElementsAre(2));
  EXPECT_THAT(after->slots[1].updates, ElementsAre(1));
  // Adam's step has the length of the rate for a gradient that does not change.
  EXPECT_NEAR(cohort.weights(0)[0], 1 - 2 * 0.5, 1e-6);
  EXPECT_NEAR(cohort.weights(1)[0], 3 - 0.5, 1e-6);
}

// The average moves once a step, as where it is computed after the loop's body.
TEST(CoordinatorUpdatesTest, TheAverageMovesWithTheLastUpdate) {
  FakeSetup setup = Long(SmallSetup());
  setup.options.optimizer.ema_decay = 0.5;
  StartedCohort cohort(setup);
  StartedCohort once(setup);
  for (const Rank rank : {kRank0, kRank1}) SendW(cohort, rank, 1);
  Finish(cohort, 1);
  once.PushBoth({.w = {1, 0}, .b = {1}});
  EXPECT_EQ(cohort.weights(0), once.weights(0));
  for (const size_t p : {0, 1}) {
    EXPECT_EQ(cohort.snapshot()->slots[p].average->Checksum(),
              once.snapshot()->slots[p].average->Checksum());
  }
}

TEST(CoordinatorUpdatesTest, AReplacementBetweenUpdatesBeginsTheStepAgain) {
  StartedCohort undisturbed(Long(Adam(SmallSetup())));
  StartedCohort cohort(Long(Adam(SmallSetup())));
  for (FakeCohort* one : {static_cast<FakeCohort*>(&undisturbed),
                          static_cast<FakeCohort*>(&cohort)}) {
    for (const Rank rank : {kRank0, kRank1}) SendW(*one, rank, 1);
    SendB(*one, kRank0, 2);
  }
  cohort.Leave(kRank1);
  cohort.StartOne(kRank1);
  EXPECT_EQ(cohort.told(kRank1).attempt, Attempt(0));
  cohort.Clear();
  // It knows nothing of the first update.
  ExpectOk(cohort.Open(kRank1, {.continues = true}));
  EXPECT_THAT(cohort.All<effect::StepAborted>(), SizeIs(2));
  EXPECT_THAT(cohort.weights(0), ElementsAre(1, 2));
  for (const Rank rank : {kRank0, kRank1}) {
    EXPECT_EQ(cohort.told(rank).attempt, Attempt(1));
    EXPECT_EQ(cohort.told(rank).version, Version(0));
    SendW(cohort, rank, 1);
  }
  Finish(cohort, 2);
  SendB(undisturbed, kRank1, 2);
  for (const Rank rank : {kRank0, kRank1}) {
    ExpectOk(undisturbed.Close(rank, FakePush()));
  }
  EXPECT_EQ(WeightChecksums(*cohort.snapshot()),
            WeightChecksums(*undisturbed.snapshot()));
}

// Its connection broke before the weights came; the others have them.
TEST(CoordinatorUpdatesTest,
     AMemberThatRepeatsAnUpdateThatIsOverIsNotLeftWaiting) {
  StartedCohort cohort(Long(SmallSetup()));
  for (const Rank rank : {kRank0, kRank1}) SendW(cohort, rank, 1);
  ExpectOk(cohort.Open(kRank1, {.continues = true}));
  SendB(cohort, kRank0, 1);
  EXPECT_EQ(cohort.told(kRank1).attempt, Attempt(0));
  ExpectOk(cohort.Gradient(kRank1, 0, {1, 0}));
  EXPECT_EQ(cohort.told(kRank1).attempt, Attempt(1));
  // Also if a message of its former connection has opened the next one since.
  for (const Rank rank : {kRank0, kRank1}) SendW(cohort, rank, 1);
  PushKey first = cohort.key(kRank1);
  ExpectOk(cohort.Open(kRank1, {.continues = true}));
  ExpectOk(cohort.Open(kRank1, {.update = 1, .optimizer = 1}));
  first.update = 0;
  Effects out;
  ASSERT_TRUE(cohort.core()
                  .Gradient(cohort.sender(kRank1), first,
                            {.partition = 0, .bytes = 8}, cohort.now(), out)
                  .ok());
  EXPECT_EQ(cohort.counter("steps_aborted"), 2);
}

// The sender's connection broke before the verdict came.
TEST(CoordinatorUpdatesTest, AnUpdateOfADecidedPushIsAnsweredByItsVerdict) {
  StartedCohort cohort(Long(SmallSetup()));
  const PushKey key = cohort.key(kRank1);
  for (const Rank rank : {kRank0, kRank1}) SendW(cohort, rank, 1);
  Finish(cohort, 1);
  Effects out;
  ExpectOk(cohort.core().Open(cohort.sender(kRank1), key,
                              {.samples = 1, .continues = true}, cohort.now(),
                              out));
  ASSERT_THAT(out, SizeIs(1));
  const auto& sent = std::get<effect::SendVerdict>(out.front());
  EXPECT_EQ(sent.key, key);
  EXPECT_TRUE(sent.verdict.duplicate);
  EXPECT_EQ(sent.verdict.version, Version(1));
}

TEST(CoordinatorUpdatesTest, AnUpdateThatIsNotFiniteSkipsTheWholeStep) {
  for (const double clip_norm : {0.0, 1.0}) {
    FakeSetup setup = Long(SmallSetup());
    setup.options.optimizer.clip_norm = clip_norm;
    StartedCohort cohort(setup);
    cohort.Clear();
    SendW(cohort, kRank0, 1);
    SendW(cohort, kRank1, kBroken);
    // The members finish the step with the weights that it began with.
    ASSERT_THAT(cohort.sent(), SizeIs(4));
    for (const auto& send : cohort.All<command::SendWeights>()) {
      if (send.partition == 0) {
        EXPECT_EQ(send.version, Version(0));
      }
    }
    cohort.Clear();
    for (const Rank rank : {kRank0, kRank1}) SendW(cohort, rank, 1, 1);
    EXPECT_THAT(cohort.All<command::Prepare>(), IsEmpty());
    ASSERT_THAT(cohort.sent(), SizeIs(4));
    EXPECT_THAT(SentOf(cohort, 0), ElementsAre(1, 2));
    Finish(cohort, 1, 2);
    for (const auto& sent : cohort.All<effect::SendVerdict>()) {
      EXPECT_EQ(sent.verdict.verdict, Verdict::kSkipped);
      EXPECT_EQ(sent.verdict.reason, "rank 1: gradient of w");
      EXPECT_EQ(sent.weights_partitions, 0);
    }
    EXPECT_EQ(cohort.snapshot()->version, Version(1));
    EXPECT_THAT(cohort.weights(0), ElementsAre(1, 2));
    EXPECT_THAT(cohort.weights(1), ElementsAre(3));
    EXPECT_EQ(cohort.core().inflight_bytes(), 0);
    // The next step begins as any. Its gradient is 4, or 1 when clipped.
    cohort.PushBoth({.w = {1, 0}});
    EXPECT_THAT(cohort.weights(0), ElementsAre(clip_norm > 0 ? 0.5 : -1, 2));
  }
}

TEST(CoordinatorUpdatesTest, ALastUpdateThatIsNotFiniteTakesTheOthersBack) {
  StartedCohort cohort(Long(SmallSetup()));
  for (const Rank rank : {kRank0, kRank1}) SendW(cohort, rank, 1);
  Finish(cohort, kBroken);
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_THAT(cohort.weights(0), ElementsAre(1, 2));
}

TEST(CoordinatorUpdatesTest, MembersThatStepOtherOptimizersEndTheRun) {
  for (const FakePush& other :
       {FakePush{.optimizer = 1, .continues = true}, FakePush{}}) {
    StartedCohort cohort(Long(SmallSetup()));
    ExpectOk(cohort.Open(kRank0, {.continues = true}));
    ExpectOk(cohort.Open(kRank1, other));
    const auto ended = cohort.Only<effect::RunEnded>();
    EXPECT_EQ(ended.outcome, RunOutcome::kRefused);
    EXPECT_THAT(ended.reason, HasSubstr("rank 1"));
  }
}

TEST(CoordinatorUpdatesTest, AnUpdateBeginsAfterTheOneBefore) {
  StartedCohort cohort(Long(SmallSetup()));
  SendW(cohort, kRank0, 1);
  for (const int32_t update : {1, 2}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(
        cohort.Open(kRank0, {.update = update, .optimizer = 1})));
  }
  ExpectOk(cohort.Open(kRank0, {.continues = true}));
  EXPECT_TRUE(absl::IsFailedPrecondition(cohort.Close(kRank0, FakePush())));
  SendW(cohort, kRank1, 1);
  SendB(cohort, kRank0, 1);
  EXPECT_EQ(cohort.key(kRank0).update, 1);
}

TEST(CoordinatorUpdatesTest, OnlyStepsOfAllMembersHaveSeveralUpdates) {
  for (const FakeSetup& setup : {AsyncSetup(), FirstTwo(SmallSetup())}) {
    StartedCohort cohort(setup);
    EXPECT_TRUE(
        absl::IsFailedPrecondition(cohort.Open(kRank0, {.continues = true})));
    EXPECT_TRUE(absl::IsFailedPrecondition(cohort.Open(kRank0, {.update = 1})));
    ExpectOk(cohort.Open(kRank0, FakePush()));
  }
}

// Rank 0 leaves the layer out in its first update, in which rank 1 waits for
// it.
TEST(CoordinatorUpdatesTest, AMemberThatAwaitsWeightsMakesNoRankWaitForIt) {
  StartedCohort cohort(Long(GlobalSetup()));
  SendW(cohort, kRank0, 1);
  cohort.Pass(absl::Seconds(5));
  EXPECT_THAT(cohort.Status().waited_for, ElementsAre(kRank1));
  cohort.Clear();
  ExpectOk(cohort.Meet(kRank1, {}));
  EXPECT_EQ(cohort.Only<effect::ReduceResult>().rank, kRank1);
  SendW(cohort, kRank1, 1);
  EXPECT_THAT(cohort.sent(), SizeIs(4));
  // Both compute again, so that a call of one waits for the other.
  cohort.Clear();
  ExpectOk(cohort.Meet(kRank1, {.call = 1}));
  EXPECT_THAT(cohort.All<effect::ReduceResult>(), IsEmpty());
}

TEST(CoordinatorUpdatesTest, TheEndOfTheRunAnswersWhoAwaitsWeights) {
  StartedCohort cohort(Long(SmallSetup()));
  SendW(cohort, kRank0, 1);
  cohort.Clear();
  ExpectOk(cohort.Open(kRank1, FakePush()));
  ASSERT_TRUE(cohort.core().ended());
  const auto sent = cohort.Only<effect::SendVerdict>();
  EXPECT_EQ(sent.rank, kRank0);
  EXPECT_EQ(sent.verdict.verdict, Verdict::kDropped);
  EXPECT_EQ(sent.verdict.next.kind, AssignmentKind::kFinished);
}

}  // namespace
}  // namespace cohort
