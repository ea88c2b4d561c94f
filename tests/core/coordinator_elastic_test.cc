// Elastic cohorts: --workers=MIN:MAX.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr Rank kRank3{3};

// Batches of 2 and 40 samples an epoch; ranks 0 to 3, of which two are needed.
FakeSetup ElasticSetup() {
  FakeSetup setup = SmallSetup();
  setup.options.workers_min = 2;
  setup.options.workers = 4;
  setup.options.on_worker_loss = OnWorkerLoss::kContinue;
  setup.options.replacement_deadline = absl::Seconds(60);
  setup.plan.train_samples = 40;
  setup.batch_sizes.assign(4, 2);
  return setup;
}

FakeSetup ElasticAsyncSetup() {
  FakeSetup setup = AsyncSetup();
  const FakeSetup elastic = ElasticSetup();
  setup.options.workers_min = elastic.options.workers_min;
  setup.options.workers = elastic.options.workers;
  setup.options.on_worker_loss = elastic.options.on_worker_loss;
  setup.options.replacement_deadline = elastic.options.replacement_deadline;
  setup.plan.train_samples = 40;
  setup.batch_sizes.assign(4, 2);
  return setup;
}

std::string StateOf(FakeCohort& cohort) {
  return cohort.core().Status(cohort.now()).state;
}

TEST(CoordinatorElasticTest, StartsWithAnyRanksOnceEnoughAreThere) {
  FakeCohort cohort(ElasticSetup());
  cohort.StartOne(kRank2);
  EXPECT_FALSE(Trains(cohort, kRank2));
  EXPECT_EQ(StateOf(cohort),
            "waiting for 1 more worker to join and register (--workers=2:4)");
  cohort.StartOne(kRank1);
  EXPECT_THAT(cohort.told(kRank1).members, ElementsAre(kRank1, kRank2));
  EXPECT_EQ(StateOf(cohort), "training, 2 workers (2:4)");
}

TEST(CoordinatorElasticTest, AnotherWorkerIsTakenInBetweenSteps) {
  FakeCohort cohort(ElasticSetup());
  cohort.StartOne(kRank0);
  cohort.StartOne(kRank1);
  const Assignment step = cohort.told(kRank0);
  cohort.StartOne(kRank3);
  // The step goes on as it began.
  EXPECT_FALSE(Trains(cohort, kRank3));
  cohort.Push(kRank0, PushOf(1));
  cohort.Push(kRank1, PushOf(1));
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_EQ(cohort.counter("steps_aborted"), 0);
  for (Rank rank : {kRank0, kRank1, kRank3}) {
    EXPECT_THAT(cohort.told(rank).members, ElementsAre(kRank0, kRank1, kRank3));
  }
  EXPECT_EQ(cohort.told(kRank0).range.begin, step.range.begin + 4);
}

TEST(CoordinatorElasticTest, GoesOnWithoutTheOneThatLeft) {
  FakeCohort cohort(ElasticSetup());
  for (Rank rank : {kRank0, kRank1, kRank2}) cohort.StartOne(rank);
  // It began with two. The three make the next step.
  cohort.Push(kRank0, PushOf(1));
  cohort.Push(kRank1, PushOf(1));
  cohort.Leave(kRank0);
  EXPECT_THAT(cohort.told(kRank2).members, ElementsAre(kRank1, kRank2));
  cohort.Push(kRank1, PushOf(1));
  cohort.Push(kRank2, PushOf(1));
  EXPECT_EQ(cohort.snapshot()->version, Version(2));
}

TEST(CoordinatorElasticTest, PausesBelowTheMinimum) {
  FakeCohort cohort(ElasticSetup());
  cohort.StartOne(kRank0);
  cohort.StartOne(kRank1);
  cohort.Leave(kRank1);
  cohort.Pass(absl::Seconds(1));
  EXPECT_EQ(StateOf(cohort),
            "waiting for 1 more worker: 1 here, want at least 2, gives up in "
            "59 s");
  // Any rank will do.
  cohort.StartOne(kRank3);
  EXPECT_THAT(cohort.told(kRank0).members, ElementsAre(kRank0, kRank3));
  EXPECT_EQ(cohort.told(kRank0).range.begin, 0);
}

TEST(CoordinatorElasticTest, EndsIfNobodyComes) {
  FakeCohort cohort(ElasticSetup());
  cohort.StartOne(kRank0);
  cohort.StartOne(kRank1);
  cohort.Leave(kRank1);
  for (int i = 0; i < 13; ++i) cohort.Pass(absl::Seconds(5));
  const auto ended = cohort.All<effect::RunEnded>();
  ASSERT_EQ(ended.size(), 1);
  EXPECT_EQ(ended[0].outcome, RunOutcome::kWorkerLost);
  EXPECT_THAT(ended[0].reason, HasSubstr("1 worker for"));
  EXPECT_THAT(ended[0].reason, HasSubstr("want at least 2"));
}

TEST(CoordinatorElasticTest, AnAsynchronousCohortPausesToo) {
  FakeCohort cohort(ElasticAsyncSetup());
  cohort.StartOne(kRank0);
  EXPECT_FALSE(Trains(cohort, kRank0));
  cohort.StartOne(kRank1);
  ASSERT_TRUE(Trains(cohort, kRank0));
  cohort.Leave(kRank1);
  // The assignment that was given counts.
  cohort.Push(kRank0, PushOf(1));
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_FALSE(Trains(cohort, kRank0));
  cohort.StartOne(kRank2);
  EXPECT_TRUE(Trains(cohort, kRank0));
  EXPECT_TRUE(Trains(cohort, kRank2));
}

// The rate is that of the batch of all who are there.
TEST(CoordinatorElasticTest, SharesAreThoseOfTheWorkersThatAreThere) {
  FakeSetup setup = ElasticAsyncSetup();
  setup.options.workers_min = 1;
  FakeCohort cohort(setup);
  cohort.StartOne(kRank0);
  cohort.StartOne(kRank1);
  const float before = cohort.weights(0)[0];
  cohort.Push(kRank0, PushOf(1));
  const float of_two = before - cohort.weights(0)[0];
  cohort.Leave(kRank1);
  const float then = cohort.weights(0)[0];
  cohort.Push(kRank0, PushOf(1));
  EXPECT_EQ(then - cohort.weights(0)[0], 2 * of_two);
}

TEST(CoordinatorElasticTest, TheMinimumChangesWhileItRuns) {
  FakeCohort cohort(ElasticSetup());
  cohort.StartOne(kRank0);
  cohort.StartOne(kRank1);
  ASSERT_TRUE(cohort.Change({{"workers", "3:4"}}).ok());
  cohort.Push(kRank0, PushOf(1));
  cohort.Push(kRank1, PushOf(1));
  EXPECT_THAT(StateOf(cohort), HasSubstr("2 here, want at least 3"));
  ASSERT_TRUE(cohort.Change({{"workers", "1:2"}}).ok());
  EXPECT_TRUE(Trains(cohort, kRank0));
  EXPECT_TRUE(Trains(cohort, kRank1));
}

// The time begins with the change, not with an old loss.
TEST(CoordinatorElasticTest, ARaisedMinimumGivesWorkersTimeToCome) {
  FakeCohort cohort(ElasticSetup());
  for (Rank rank : {kRank0, kRank1, kRank2}) cohort.StartOne(rank);
  cohort.Leave(kRank2);
  for (int i = 0; i < 20; ++i) cohort.Pass(absl::Seconds(5));
  ASSERT_TRUE(cohort.Change({{"workers", "3:4"}}).ok());
  cohort.Push(kRank0, PushOf(1));
  cohort.Push(kRank1, PushOf(1));
  cohort.Pass(absl::Seconds(5));
  cohort.Pass(absl::Seconds(50));
  EXPECT_FALSE(cohort.core().ended());
  EXPECT_THAT(StateOf(cohort), HasSubstr("gives up in 10 s"));
  cohort.StartOne(kRank3);
  EXPECT_TRUE(Trains(cohort, kRank3));
}

TEST(CoordinatorElasticTest, AFixedCohortWaitsForNobodyWhoLeftBefore) {
  FakeCohort cohort(ElasticSetup());
  for (Rank rank : {kRank0, kRank1, kRank2}) cohort.StartOne(rank);
  cohort.Leave(kRank2);
  ASSERT_TRUE(
      cohort.Change({{"workers", "3"}, {"on_worker_loss", "wait"}}).ok());
  for (int step = 0; step < 2; ++step) {
    cohort.Push(kRank0, PushOf(1));
    cohort.Push(kRank1, PushOf(1));
  }
  EXPECT_EQ(cohort.snapshot()->version, Version(2));
  cohort.StartOne(kRank2);
  cohort.Push(kRank0, PushOf(1));
  cohort.Push(kRank1, PushOf(1));
  EXPECT_THAT(cohort.told(kRank2).members, ElementsAre(kRank0, kRank1, kRank2));
}

TEST(CoordinatorElasticTest, AFixedCohortBecomesElasticAndContinues) {
  FakeSetup setup = SmallSetup();
  setup.options.given.insert("on_worker_loss");
  FakeCohort cohort(setup);
  cohort.Start();
  cohort.Leave(kRank1);
  EXPECT_THAT(StateOf(cohort), HasSubstr("replacement"));
  ASSERT_TRUE(cohort.Change({{"workers", "1:2"}}).ok());
  EXPECT_THAT(cohort.told(kRank0).members, ElementsAre(kRank0));
  EXPECT_EQ(cohort.core().Policy(cohort.now()).settings.at("on_worker_loss"),
            "continue");
}

// Both at one version: an elastic cohort never waits, not even until then.
TEST(CoordinatorElasticTest, TheReactionToLossesChangesWithTheSize) {
  FakeCohort cohort(ElasticSetup());
  cohort.StartOne(kRank0);
  cohort.StartOne(kRank1);
  ASSERT_TRUE(
      cohort.Change({{"workers", "3"}, {"on_worker_loss", "wait"}}).ok());
  const auto reaction = [&] {
    return cohort.core().Policy(cohort.now()).settings.at("on_worker_loss");
  };
  EXPECT_EQ(reaction(), "continue");
  // Something that acts at once does not bring it forward.
  ASSERT_TRUE(cohort.Change({{"lease", "20s"}}).ok());
  EXPECT_EQ(reaction(), "continue");
  cohort.Push(kRank0, PushOf(1));
  cohort.Push(kRank1, PushOf(1));
  EXPECT_EQ(reaction(), "wait");
  EXPECT_EQ(cohort.core().Policy(cohort.now()).settings.at("workers"), "3");
  EXPECT_EQ(cohort.core().Policy(cohort.now()).history.size(), 3);
}

TEST(CoordinatorElasticTest, AChangeThatPausesTrainingSaysSo) {
  FakeCohort cohort(ElasticSetup());
  cohort.StartOne(kRank0);
  cohort.StartOne(kRank1);
  const auto answer = cohort.Change({{"workers", "4:4"}});
  ASSERT_TRUE(answer.ok());
  EXPECT_THAT(answer->text,
              HasSubstr("training pauses until 2 more workers join, for at "
                        "most 1 min"));
}

TEST(CoordinatorElasticTest, WaitingForALostWorkerIsRefused) {
  FakeCohort cohort(ElasticSetup());
  const auto refused = cohort.Change({{"on_worker_loss", "wait"}});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("want continue with --workers=2:4"));
}

}  // namespace
}  // namespace cohort
