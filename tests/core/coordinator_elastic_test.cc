// Elastic cohorts: --workers=MIN:MAX.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr Rank kRank3{3};

// Batches of 2 and 40 samples an epoch; ranks 0 to 3, of which two are needed.
FakeSetup ElasticSetup(const FakeSetup& setup = SmallSetup()) {
  FakeSetup elastic = Continuing(Long(WithWorkers(setup, 4, 2)));
  elastic.options.workers_min = 2;
  elastic.options.replacement_deadline = absl::Seconds(60);
  return elastic;
}

// Ranks 0 and 1 train.
class TwoOfFour : public FakeCohort {
 public:
  explicit TwoOfFour(const FakeSetup& setup = ElasticSetup())
      : FakeCohort(setup) {
    StartOne(kRank0);
    StartOne(kRank1);
  }
};

std::string StateOf(FakeCohort& cohort) { return cohort.Status().state; }

TEST(CoordinatorElasticTest, StartsWithAnyRanksOnceEnoughAreThere) {
  FakeCohort cohort(ElasticSetup());
  cohort.StartOne(kRank2);
  EXPECT_FALSE(Trains(cohort, kRank2));
  EXPECT_THAT(StateOf(cohort), HasSubstr("--workers=2:4"));
  cohort.StartOne(kRank1);
  EXPECT_THAT(cohort.told(kRank1).members, ElementsAre(kRank1, kRank2));
  EXPECT_EQ(StateOf(cohort), "training, 2 workers (2:4)");
}

TEST(CoordinatorElasticTest, AnotherWorkerIsTakenInBetweenSteps) {
  TwoOfFour cohort;
  const Assignment step = cohort.told(kRank0);
  cohort.StartOne(kRank3);
  // The step continues as it began.
  EXPECT_FALSE(Trains(cohort, kRank3));
  cohort.PushBoth(PushOf(1));
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_EQ(cohort.counter("steps_aborted"), 0);
  for (Rank rank : {kRank0, kRank1, kRank3}) {
    EXPECT_THAT(cohort.told(rank).members, ElementsAre(kRank0, kRank1, kRank3));
  }
  EXPECT_EQ(cohort.told(kRank0).range.begin, step.range.begin + 4);
}

TEST(CoordinatorElasticTest, GoesOnWithoutTheOneThatLeft) {
  TwoOfFour cohort;
  cohort.StartOne(kRank2);
  // It began with two. The three make the next step.
  cohort.PushBoth(PushOf(1));
  cohort.Leave(kRank0);
  EXPECT_THAT(cohort.told(kRank2).members, ElementsAre(kRank1, kRank2));
  cohort.Push(kRank1, PushOf(1));
  cohort.Push(kRank2, PushOf(1));
  EXPECT_EQ(cohort.snapshot()->version, Version(2));
}

TEST(CoordinatorElasticTest, PausesBelowTheMinimum) {
  TwoOfFour cohort;
  cohort.Leave(kRank1);
  cohort.Pass(absl::Seconds(1));
  EXPECT_THAT(StateOf(cohort),
              HasSubstr("1 here, want at least 2, gives up in 59 s"));
  // Any rank will do.
  cohort.StartOne(kRank3);
  EXPECT_THAT(cohort.told(kRank0).members, ElementsAre(kRank0, kRank3));
  EXPECT_EQ(cohort.told(kRank0).range.begin, 0);
}

TEST(CoordinatorElasticTest, EndsIfNobodyComes) {
  TwoOfFour cohort;
  cohort.Leave(kRank1);
  for (int i = 0; i < 13; ++i) cohort.Pass(absl::Seconds(5));
  const auto ended = cohort.Only<effect::RunEnded>();
  EXPECT_EQ(ended.outcome, RunOutcome::kWorkerLost);
  EXPECT_THAT(ended.reason, HasSubstr("1 worker for"));
}

TEST(CoordinatorElasticTest, AnAsynchronousCohortPausesToo) {
  FakeCohort cohort(ElasticSetup(AsyncSetup()));
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
  FakeSetup setup = ElasticSetup(AsyncSetup());
  setup.options.workers_min = 1;
  TwoOfFour cohort(setup);
  const float before = cohort.weights(0)[0];
  cohort.Push(kRank0, PushOf(1));
  const float of_two = before - cohort.weights(0)[0];
  cohort.Leave(kRank1);
  const float then = cohort.weights(0)[0];
  cohort.Push(kRank0, PushOf(1));
  EXPECT_EQ(then - cohort.weights(0)[0], 2 * of_two);
}

TEST(CoordinatorElasticTest, TheMinimumChangesWhileItRuns) {
  TwoOfFour cohort;
  ASSERT_TRUE(cohort.Change({{"workers", "3:4"}}).ok());
  cohort.PushBoth(PushOf(1));
  EXPECT_FALSE(Trains(cohort, kRank0));
  ASSERT_TRUE(cohort.Change({{"workers", "1:2"}}).ok());
  EXPECT_TRUE(Trains(cohort, kRank0));
  EXPECT_TRUE(Trains(cohort, kRank1));
}

// The time begins with the change, not with an old loss.
TEST(CoordinatorElasticTest, ARaisedMinimumGivesWorkersTimeToCome) {
  TwoOfFour cohort;
  cohort.StartOne(kRank2);
  cohort.Leave(kRank2);
  for (int i = 0; i < 20; ++i) cohort.Pass(absl::Seconds(5));
  ASSERT_TRUE(cohort.Change({{"workers", "3:4"}}).ok());
  cohort.PushBoth(PushOf(1));
  cohort.Pass(absl::Seconds(5));
  cohort.Pass(absl::Seconds(50));
  EXPECT_FALSE(cohort.core().ended());
  EXPECT_THAT(StateOf(cohort), HasSubstr("gives up in 10 s"));
  cohort.StartOne(kRank3);
  EXPECT_TRUE(Trains(cohort, kRank3));
}

TEST(CoordinatorElasticTest, AFixedCohortWaitsForNoneThatLeftBefore) {
  TwoOfFour cohort;
  cohort.StartOne(kRank2);
  cohort.Leave(kRank2);
  ExpectOk(cohort.Change({{"workers", "3"}, {"on_worker_loss", "wait"}}));
  for (int step = 0; step < 2; ++step) cohort.PushBoth(PushOf(1));
  EXPECT_EQ(cohort.snapshot()->version, Version(2));
  cohort.StartOne(kRank2);
  cohort.PushBoth(PushOf(1));
  EXPECT_THAT(cohort.told(kRank2).members, ElementsAre(kRank0, kRank1, kRank2));
}

TEST(CoordinatorElasticTest,
     AFixedCohortDoesNotEndBecauseOfThoseWhoLeftBefore) {
  for (const AggregationKind kind :
       {AggregationKind::kSync, AggregationKind::kBounded}) {
    FakeSetup setup = ElasticSetup();
    setup.options.policy.aggregation = kind;
    setup.options.policy.lead_max = 2;
    TwoOfFour cohort(setup);
    cohort.StartOne(kRank2);
    cohort.Leave(kRank2);
    ExpectOk(cohort.Change({{"workers", "3"}, {"on_worker_loss", "wait"}}));
    cohort.PushBoth(PushOf(1));
    for (int i = 0; i < 7; ++i) {
      ASSERT_TRUE(Trains(cohort, kRank0));
      cohort.PushBoth(PushOf(1));
      cohort.Pass(absl::Seconds(10));
    }
    EXPECT_FALSE(cohort.core().ended());
    EXPECT_EQ(StateOf(cohort), "training, 2 of 3 workers");
  }
}

// No worker is left, and so it was for long when the size was fixed.
TEST(CoordinatorElasticTest, AFixedCohortWaitsAnewIfNoWorkerIsThere) {
  FakeSetup setup = ElasticSetup();
  setup.options.workers_min = 1;
  TwoOfFour cohort(setup);
  cohort.Leave(kRank1);
  cohort.Pass(absl::Seconds(9));
  cohort.Leave(kRank0);
  for (int i = 0; i < 6; ++i) cohort.Pass(absl::Seconds(9));
  ExpectOk(cohort.Change({{"workers", "2"}}));
  cohort.Pass(absl::Seconds(9));
  EXPECT_FALSE(cohort.core().ended());
  for (int i = 0; i < 6; ++i) cohort.Pass(absl::Seconds(9));
  EXPECT_TRUE(cohort.core().ended());
}

// Those who were there took their batch sizes along.
TEST(CoordinatorElasticTest, StatisticsAreNotCollectedWhileNoWorkerIsThere) {
  FakeSetup setup = ElasticSetup();
  setup.options.workers_min = 1;
  setup.options.policy.statistics = {StatisticsKind::kAfter};
  TwoOfFour cohort(setup);
  cohort.Leave(kRank0);
  cohort.Leave(kRank1);
  EXPECT_THAT(cohort.Collect(), IsError(kFailedPrecondition, "no worker"));
  cohort.Drain("enough");
  EXPECT_FALSE(cohort.core().ended());
  cohort.StartOne(kRank2);
  EXPECT_EQ(cohort.told(kRank2).kind, AssignmentKind::kCollectMoments);
}

TEST(CoordinatorElasticTest, AFixedCohortBecomesElasticAndContinues) {
  FakeSetup setup = SmallSetup();
  setup.options.given.insert("on_worker_loss");
  StartedCohort cohort(setup);
  cohort.Leave(kRank1);
  EXPECT_FALSE(cohort.Status().waited_for.empty());
  ASSERT_TRUE(cohort.Change({{"workers", "1:2"}}).ok());
  EXPECT_THAT(cohort.told(kRank0).members, ElementsAre(kRank0));
  EXPECT_EQ(cohort.core().Policy(cohort.now()).settings.at("on_worker_loss"),
            "continue");
}

// Both at one version: an elastic cohort never waits, not even until then.
TEST(CoordinatorElasticTest, TheReactionToLossesChangesWithTheSize) {
  TwoOfFour cohort;
  ExpectOk(cohort.Change({{"workers", "3"}, {"on_worker_loss", "wait"}}));
  const auto reaction = [&] {
    return cohort.core().Policy(cohort.now()).settings.at("on_worker_loss");
  };
  EXPECT_EQ(reaction(), "continue");
  // Something that acts at once does not bring it forward.
  ASSERT_TRUE(cohort.Change({{"lease", "20s"}}).ok());
  EXPECT_EQ(reaction(), "continue");
  cohort.PushBoth(PushOf(1));
  EXPECT_EQ(reaction(), "wait");
  EXPECT_EQ(cohort.core().Policy(cohort.now()).settings.at("workers"), "3");
  EXPECT_EQ(cohort.core().Policy(cohort.now()).history.size(), 3);
}

TEST(CoordinatorElasticTest, AChangeThatPausesTrainingSaysSo) {
  TwoOfFour cohort;
  const auto answer = OkValue(cohort.Change({{"workers", "4:4"}}));
  EXPECT_THAT(answer.text, HasSubstr("until 2 more workers join"));
}

TEST(CoordinatorElasticTest, WaitingForALostWorkerIsRefused) {
  FakeCohort cohort(ElasticSetup());
  EXPECT_THAT(cohort.Change({{"on_worker_loss", "wait"}}),
              IsError(kInvalidArgument, "--workers=2:4"));
}

}  // namespace
}  // namespace cohort
