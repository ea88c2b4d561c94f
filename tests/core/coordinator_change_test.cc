// Changing settings during the run.

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
using testing::Not;

// Two workers with batches of 2 and 40 samples an epoch.
FakeSetup LongSetup(AggregationKind kind = AggregationKind::kSync) {
  FakeSetup setup = Long(AsyncSetup());
  setup.options.policy = {.aggregation = kind,
                          .normalization = NormalizationKind::kLocal};
  return setup;
}

const SettingValues kToAsync = {{"aggregation", "async"}};
const SettingValues kToSync = {{"aggregation", "sync"}};

TEST(CoordinatorChangeTest, SyncTurnsAsyncAfterTheStepUnderWay) {
  StartedCohort cohort(LongSetup());
  cohort.Push(kRank0, PushOf(0));
  const auto answer = OkValue(cohort.Change(kToAsync));
  EXPECT_TRUE(answer.pending);
  EXPECT_EQ(answer.policy_epoch, 2);
  EXPECT_THAT(cohort.core().Policy({}).pending_reason, HasSubstr("worker 1"));

  EXPECT_THAT(cohort.All<effect::PolicyChanged>(), IsEmpty());

  cohort.Push(kRank1, PushOf(0));
  const auto changed = cohort.Only<effect::PolicyChanged>();
  EXPECT_EQ(changed.record.version, Version(1));
  EXPECT_EQ(changed.record.policy_epoch, 2);
  EXPECT_EQ(changed.record.changed, kToAsync);
  // Only the history has the consequences, too.
  EXPECT_THAT(cohort.log(), HasSubstr("aggregation sync -> async"));
  EXPECT_THAT(cohort.log(), Not(HasSubstr(changed.record.text)));
  // Each rank gets its own range, and its push is applied alone.
  ASSERT_TRUE(Trains(cohort, kRank0));
  EXPECT_THAT(cohort.told(kRank0).members, IsEmpty());
  EXPECT_EQ(cohort.told(kRank0).policy_epoch, 2);
  cohort.Push(kRank1, PushOf(0));
  EXPECT_EQ(cohort.snapshot()->version, Version(2));
}

TEST(CoordinatorChangeTest, AsyncTurnsSyncOnceNothingIsInFlight) {
  StartedCohort cohort(LongSetup(AggregationKind::kAsync));
  ASSERT_TRUE(cohort.Change(kToSync).ok());
  cohort.Push(kRank0, PushOf(0));
  // The other rank is still working, so no rank gets an assignment.
  EXPECT_FALSE(Trains(cohort, kRank0));

  EXPECT_THAT(cohort.All<effect::PolicyChanged>(), IsEmpty());
  cohort.Push(kRank1, PushOf(0));
  EXPECT_EQ(cohort.Only<effect::PolicyChanged>().record.version, Version(2));
  EXPECT_THAT(cohort.told(kRank0).members, ElementsAre(kRank0, kRank1));
  EXPECT_EQ(cohort.told(kRank0).range, (IndexRange{4, 6}));
  EXPECT_EQ(cohort.told(kRank1).range, (IndexRange{6, 8}));
}

TEST(CoordinatorChangeTest, WhatALostRankHeldIsWithdrawnAndIssuedAgain) {
  StartedCohort cohort(LongSetup(AggregationKind::kAsync));
  const IndexRange lost = cohort.told(kRank1).range;
  cohort.Leave(kRank1);
  ASSERT_TRUE(cohort.Change(kToSync).ok());
  cohort.Push(kRank0, PushOf(0));
  ASSERT_EQ(cohort.All<effect::PolicyChanged>().size(), 1);
  // Under `wait` the step needs both ranks; the withdrawn range is issued
  // first.
  cohort.StartOne(kRank1);
  ASSERT_TRUE(Trains(cohort, kRank0));
  EXPECT_EQ(cohort.told(kRank0).range, lost);
  cohort.Push(kRank0, PushOf(0));
  EXPECT_EQ(cohort.snapshot()->version, Version(2));
  EXPECT_EQ(cohort.told(kRank0).range, (IndexRange{4, 6}));
}

TEST(CoordinatorChangeTest, AStepThatWaitsForALostRankGivesWay) {
  StartedCohort cohort(LongSetup());
  cohort.Push(kRank0, PushOf(1));
  cohort.Leave(kRank1);
  EXPECT_EQ(cohort.snapshot()->version, Version(0));
  ASSERT_TRUE(cohort.Change(kToAsync).ok());
  EXPECT_EQ(cohort.Only<effect::PolicyChanged>().record.version, Version(0));
  // Rank 0's share is computed again, and the push of the old step is not
  // applied.
  EXPECT_TRUE(Trains(cohort, kRank0));
  EXPECT_EQ(cohort.told(kRank0).range, (IndexRange{0, 2}));
  EXPECT_THAT(cohort.weights(0), ElementsAre(1, 2));
  cohort.Push(kRank0, PushOf(0));
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
}

// Workers know already that attempt 0 of the step is over.
TEST(CoordinatorChangeTest, AnAttemptThatGaveWayIsNotRepeatedUnderItsNumber) {
  StartedCohort cohort(LongSetup());
  cohort.Push(kRank0, PushOf(1));
  cohort.Leave(kRank1);
  ASSERT_TRUE(cohort.Change({{"learning_rate", "0.25"}}).ok());
  cohort.StartOne(kRank1);
  EXPECT_EQ(cohort.told(kRank0).version, Version(0));
  EXPECT_EQ(cohort.told(kRank0).attempt, Attempt(1));
}

TEST(CoordinatorChangeTest, ALossWhileItDrainsDoesNotHoldItUp) {
  StartedCohort cohort(LongSetup(AggregationKind::kAsync));
  ASSERT_TRUE(cohort.Change(kToSync).ok());
  cohort.Push(kRank0, PushOf(0));
  EXPECT_THAT(cohort.All<effect::PolicyChanged>(), IsEmpty());
  cohort.Leave(kRank1);
  EXPECT_EQ(cohort.All<effect::PolicyChanged>().size(), 1);
}

TEST(CoordinatorChangeTest, EverySampleIsUsedOnceOverChanges) {
  StartedCohort cohort(LongSetup());
  std::vector<int> used(40);
  const std::vector<SettingValues> changes = {
      kToAsync, {{"aggregation", "bounded"}, {"max_lead", "1"}}, kToSync};
  size_t next_change = 0;
  for (int pushes = 0; !cohort.core().ended(); ++pushes) {
    ASSERT_LT(pushes, 100);
    cohort.EvaluateAll();
    for (Rank rank : {kRank0, kRank1}) {
      if (!Trains(cohort, rank)) continue;
      const IndexRange range = cohort.told(rank).range;
      for (int64_t i = range.begin; i < range.end; ++i) {
        ++used[static_cast<size_t>(i)];
      }
      cohort.Push(rank, PushOf(0));
    }
    if (pushes % 3 == 2 && next_change < changes.size()) {
      ASSERT_TRUE(cohort.Change(changes[next_change++]).ok());
    }
  }
  EXPECT_THAT(used, testing::Each(1));
  EXPECT_EQ(cohort.counter("policy_changes"), 3);
}

TEST(CoordinatorChangeTest, ALearningRateTakesEffectAtAVersion) {
  StartedCohort cohort(LongSetup());
  cohort.Push(kRank0, PushOf(2));
  ASSERT_TRUE(cohort.Change({{"learning_rate", "0.25"}}).ok());
  // The step in progress keeps the old rate: scale 4/4, gradient 2, rate 0.5.
  cohort.Push(kRank1, PushOf(0));
  EXPECT_THAT(cohort.weights(0), ElementsAre(1 - 1, 2));
  cohort.PushBoth(PushOf(2), PushOf(0));
  EXPECT_THAT(cohort.weights(0), ElementsAre(0 - 0.5, 2));
}

TEST(CoordinatorChangeTest, ALeaseActsAtOnceAlsoOnTheWaitInProgress) {
  StartedCohort cohort(LongSetup());
  cohort.PassWithHeartbeatsOf({kRank0}, absl::Seconds(3));
  EXPECT_EQ(cohort.counter("workers_lost"), 0);
  const auto answer = OkValue(cohort.Change({{"lease", "2s"}}));
  EXPECT_FALSE(answer.pending);
  cohort.PassWithHeartbeatsOf({kRank0}, absl::ZeroDuration());
  EXPECT_EQ(cohort.counter("workers_lost"), 1);
}

TEST(CoordinatorChangeTest, ContinueFreesThoseWhoWait) {
  StartedCohort cohort(LongSetup());
  cohort.Push(kRank0, PushOf(0));
  cohort.Leave(kRank1);
  EXPECT_FALSE(Trains(cohort, kRank0) &&
               cohort.told(kRank0).attempt == Attempt(1));
  ASSERT_TRUE(cohort.Change({{"on_worker_loss", "continue"}}).ok());
  EXPECT_EQ(cohort.told(kRank0).attempt, Attempt(1));
  EXPECT_THAT(cohort.told(kRank0).members, ElementsAre(kRank0));
}

// Whatever time they had under `continue`, which waits for none.
TEST(CoordinatorChangeTest, WaitGivesTimeToThoseWhoWereLostBefore) {
  FakeSetup setup = Continuing(LongSetup());
  setup.options.replacement_deadline = absl::Seconds(10);
  StartedCohort cohort(setup);
  cohort.Leave(kRank1);
  for (int i = 0; i < 3; ++i) cohort.Pass(absl::Seconds(4));
  ASSERT_TRUE(cohort.Change({{"on_worker_loss", "wait"}}).ok());
  cohort.Pass(absl::Seconds(9));
  EXPECT_FALSE(cohort.core().ended());
  cohort.Pass(absl::Seconds(2));
  EXPECT_TRUE(cohort.core().ended());
}

TEST(CoordinatorChangeTest, MoreWorkersJoinAndFewerAreSentHome) {
  FakeSetup setup = LongSetup();
  setup.batch_sizes = {2, 2, 2};
  StartedCohort cohort(setup);
  ASSERT_TRUE(cohort.Change({{"workers", "3"}}).ok());
  cohort.PushBoth(PushOf(0));
  // The server does not wait for a rank that never came.
  EXPECT_THAT(cohort.told(kRank0).members, ElementsAre(kRank0, kRank1));
  cohort.StartOne(kRank2);
  cohort.PushBoth(PushOf(0));
  EXPECT_THAT(cohort.told(kRank2).members, ElementsAre(kRank0, kRank1, kRank2));

  ASSERT_TRUE(cohort.Change({{"workers", "1"}}).ok());
  for (Rank rank : {kRank0, kRank1, kRank2}) cohort.Push(rank, PushOf(0));
  EXPECT_EQ(cohort.told(kRank2).kind, AssignmentKind::kFinished);
  EXPECT_FALSE(cohort.told(kRank2).unfinished);

  EXPECT_THAT(cohort.told(kRank0).members, ElementsAre(kRank0));
  EXPECT_TRUE(Trains(cohort, kRank0));
  // A replacement that was ordered before the change is not an error.
  EXPECT_THAT(cohort.Join(kRank2),
              IsError(kOutOfRange, "1 workers, ranks 0 to 0"));
}

TEST(CoordinatorChangeTest, AnEvictedRankIsLost) {
  StartedCohort cohort(Continuing(LongSetup()));
  ASSERT_TRUE(cohort.Evict(kRank1).ok());
  EXPECT_EQ(cohort.Only<effect::EndSession>().session, cohort.session(kRank1));
  EXPECT_THAT(cohort.told(kRank0).members, ElementsAre(kRank0));
  EXPECT_TRUE(absl::IsFailedPrecondition(cohort.Evict(kRank1)));
  EXPECT_TRUE(absl::IsInvalidArgument(cohort.Evict(kRank2)));
}

TEST(CoordinatorChangeTest, ADrainedWorkerLeavesAfterItsPushCounted) {
  for (const AggregationKind kind :
       {AggregationKind::kSync, AggregationKind::kAsync}) {
    StartedCohort cohort(Continuing(LongSetup(kind)));
    ASSERT_TRUE(cohort.DrainWorker(kRank1).ok());
    EXPECT_TRUE(Trains(cohort, kRank1));
    cohort.PushBoth(PushOf(0));
    EXPECT_EQ(cohort.told(kRank1).kind, AssignmentKind::kFinished);
    EXPECT_EQ(cohort.told(kRank1).reason, "drained: told to");
    EXPECT_TRUE(cohort.told(kRank1).unfinished);
    EXPECT_FALSE(cohort.told(kRank1).failed);
    EXPECT_TRUE(Trains(cohort, kRank0));
    const Version before = cohort.snapshot()->version;
    cohort.Leave(kRank1);
    // The step in progress is not restarted for it.
    EXPECT_EQ(cohort.counter("steps_aborted"), 0);
    cohort.Push(kRank0, PushOf(0));
    EXPECT_EQ(cohort.snapshot()->version, before.Next());
  }
}

TEST(CoordinatorChangeTest, ADrainedWorkerIsReplacedUnderWait) {
  StartedCohort cohort(LongSetup());
  ASSERT_TRUE(cohort.DrainWorker(kRank1).ok());
  cohort.PushBoth(PushOf(0));
  cohort.Leave(kRank1);
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  // Its next incarnation stays.
  for (int step = 0; step < 2; ++step) {
    if (step == 0) cohort.StartOne(kRank1);
    EXPECT_TRUE(Trains(cohort, kRank1));
    cohort.PushBoth(PushOf(0));
  }
  EXPECT_EQ(cohort.snapshot()->version, Version(3));
}

TEST(CoordinatorChangeTest, ADrainedWorkerThatWaitsLeavesAtOnce) {
  FakeCohort cohort(LongSetup());
  cohort.StartOne(kRank0);
  ASSERT_EQ(cohort.told(kRank0).kind, AssignmentKind::kWait);
  ASSERT_TRUE(cohort.DrainWorker(kRank0).ok());
  EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kFinished);
  EXPECT_THAT(std::string(cohort.DrainWorker(kRank1).message()),
              HasSubstr("rank 1 is vacant"));
  EXPECT_THAT(std::string(cohort.DrainWorker(kRank2).message()),
              HasSubstr("want 0 to 1"));
}

TEST(CoordinatorChangeTest, WhatMakesNoSenseIsRefusedAndChangesNothing) {
  FakeSetup setup = LongSetup();
  setup.options.policy.normalization = NormalizationKind::kGlobal;
  StartedCohort cohort(setup);
  const SettingValues before = cohort.core().Policy({}).settings;
  const std::vector<std::pair<std::string, SettingValues>> cases = {
      {"--normalization", kToAsync},
      {"--min_pushes", {{"min_pushes", "3"}}},
      {"--agregation", {{"agregation", "async"}}},
      {"--learning_rate", {{"learning_rate", "-1"}}},
      {"--workers", {{"workers", "0"}}},
      // One bad value refuses the good ones with it.
      {"--lease", {{"learning_rate", "0.01"}, {"lease", "x"}}}};
  for (const auto& [flag, values] : cases) {
    EXPECT_THAT(cohort.Change(values), IsError(kInvalidArgument, flag));
  }
  Effects out;
  const auto other = cohort.core().Change(
      {.run_id = "other", .values = {{"lease", "3s"}}}, {}, out);
  EXPECT_TRUE(absl::IsFailedPrecondition(other.status())) << other.status();
  EXPECT_EQ(cohort.core().Policy({}).settings, before);
  EXPECT_THAT(cohort.core().Policy({}).pending, IsEmpty());
  EXPECT_TRUE(Trains(cohort, kRank0));
}

TEST(CoordinatorChangeTest, ADryRunOnlyAnswers) {
  StartedCohort cohort(LongSetup());
  Effects out;
  const auto answer = OkValue(cohort.core().Change(
      {.values = {{"aggregation", "async"}, {"lease", "3s"}}, .dry_run = true},
      absl::Seconds(101), out));
  EXPECT_TRUE(answer.pending);
  EXPECT_THAT(answer.text,
              HasSubstr("aggregation sync -> async, lease 10s -> 3s"));
  EXPECT_THAT(out, IsEmpty());
  EXPECT_THAT(cohort.core().Policy({}).pending, IsEmpty());
}

TEST(CoordinatorChangeTest, ASecondRequestAddsToTheFirstOrTakesItBack) {
  StartedCohort cohort(LongSetup());
  ASSERT_TRUE(cohort.Change(kToAsync).ok());
  ASSERT_TRUE(cohort.Change({{"learning_rate", "0.1"}}).ok());
  EXPECT_EQ(
      cohort.core().Policy({}).pending,
      (SettingValues{{"aggregation", "async"}, {"learning_rate", "0.1"}}));
  ExpectOk(cohort.Change({{"aggregation", "sync"}, {"learning_rate", "0.5"}}));
  EXPECT_THAT(cohort.core().Policy({}).pending, IsEmpty());
  for (Rank rank : {kRank0, kRank1}) cohort.Push(rank, PushOf(0));
  EXPECT_EQ(cohort.counter("policy_changes"), 0);
  EXPECT_THAT(cohort.told(kRank0).members, ElementsAre(kRank0, kRank1));
}

TEST(CoordinatorChangeTest, AChangeIsPendingUntilItIsRecorded) {
  StartedCohort cohort(LongSetup());
  const auto outcome_of = [&](const AwaitedChange& change) {
    return *OutcomeOf(cohort.core().Policy(cohort.now()), change);
  };
  const ChangeAnswer answer = *cohort.Change(kToAsync);
  EXPECT_EQ(answer.awaited.values, kToAsync);
  EXPECT_EQ(outcome_of(answer.awaited), std::nullopt);
  // What acts at once is in force though another change waits, under the epoch
  // of its entry in the history.
  const SettingValues values = {{"lease", "3s"}};
  const ChangeAnswer lease = *cohort.Change(values);
  EXPECT_FALSE(lease.pending);
  EXPECT_EQ(lease.policy_epoch, 2);
  EXPECT_EQ(outcome_of(lease.awaited)->changed, values);
  // Asking for what is in force changes nothing, and names its record.
  EXPECT_EQ(cohort.Change(values)->awaited, lease.awaited);
  EXPECT_EQ(cohort.counter("policy_changes"), 1);
  EXPECT_EQ(cohort.core().Policy({}).pending, kToAsync);
  for (Rank rank : {kRank0, kRank1}) cohort.Push(rank, PushOf(0));
  EXPECT_EQ(outcome_of(answer.awaited)->policy_epoch, 3);
}

TEST(CoordinatorChangeTest, AChangeThatAnotherOneReplacesIsLost) {
  StartedCohort cohort(LongSetup());
  const ChangeAnswer first = *cohort.Change({{"learning_rate", "0.1"}});
  const ChangeAnswer next = *cohort.Change({{"learning_rate", "0.2"}});
  EXPECT_TRUE(next.pending);
  EXPECT_EQ(next.text,
            "learning_rate 0.5 -> 0.2; replaces the pending learning_rate=0.1");
  PolicyView policy = cohort.core().Policy(cohort.now());
  EXPECT_THAT(OutcomeOf(policy, first.awaited),
              IsError(kAborted, "learning_rate is to be 0.2, not 0.1"));
  policy.over = "the server is stopping";
  EXPECT_THAT(OutcomeOf(policy, next.awaited),
              IsError(kAborted, "the server is stopping"));
  for (Rank rank : {kRank0, kRank1}) cohort.Push(rank, PushOf(0));
  policy = cohort.core().Policy(cohort.now());
  EXPECT_TRUE(absl::IsAborted(OutcomeOf(policy, first.awaited).status()));
  EXPECT_TRUE(OutcomeOf(policy, next.awaited).ok());
}

TEST(CoordinatorChangeTest, TakingARequestBackWakesThoseWhoWaitForIt) {
  StartedCohort cohort(LongSetup(AggregationKind::kAsync));
  ASSERT_TRUE(cohort.Change(kToSync).ok());
  cohort.Push(kRank0, PushOf(0));
  EXPECT_FALSE(Trains(cohort, kRank0));
  ASSERT_TRUE(cohort.Change(kToAsync).ok());
  EXPECT_TRUE(Trains(cohort, kRank0));
}

TEST(CoordinatorChangeTest, TheHistoryIsKeptAndRestored) {
  FakeSetup setup = LongSetup();
  StartedCohort cohort(setup);
  ASSERT_TRUE(cohort.Change(kToAsync).ok());
  for (Rank rank : {kRank0, kRank1}) cohort.Push(rank, PushOf(0));
  const RunState state = *cohort.State();
  ASSERT_EQ(state.policy_history.size(), 2);
  EXPECT_EQ(state.policy_history[0].changed.size(), SettingNames().size());
  EXPECT_EQ(state.policy_history[1].version, Version(1));
  EXPECT_EQ(state.settings.at("aggregation"), "async");

  // Continued with the process's own flags, which say sync again.
  FakeCohort restored(setup, &state);
  const PolicyView view = restored.core().Policy({});
  EXPECT_EQ(view.policy_epoch, 3);
  ASSERT_EQ(view.history.size(), 3);
  EXPECT_EQ(view.history[1], state.policy_history[1]);
  EXPECT_THAT(view.history[2].text,
              HasSubstr("flags: aggregation async -> sync"));
}

}  // namespace
}  // namespace cohort
