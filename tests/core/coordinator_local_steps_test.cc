// Pushes that are the sum of several local steps: --local_steps.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using Ranges = std::vector<IndexRange>;

// Batches of 3 and 1, three local steps, 18 samples an epoch.
FakeSetup Local(FakeSetup setup) {
  setup = Long(std::move(setup), 18);
  setup.options.policy.normalization = NormalizationKind::kAuto;
  setup.options.policy.local_steps = 3;
  return setup;
}

// Turns local steps off, with all that must be named.
SettingValues Gradients() {
  return {
      {"local_steps", "0"}, {"learning_rate", "0.1"}, {"weight_decay", "0"}};
}

TEST(CoordinatorLocalStepsTest, AnAssignmentHasOrderedCuts) {
  StartedCohort cohort(Local(SmallSetup()));
  const Assignment& first = cohort.told(kRank0);
  EXPECT_EQ(first.local_steps, (Ranges{{0, 3}, {4, 7}, {8, 11}}));
  EXPECT_EQ(first.range, (IndexRange{0, 9}));
  EXPECT_FALSE(first.global_normalization);
  EXPECT_FALSE(first.moves_statistics);
  EXPECT_EQ(first.local_rate_factor, 1);
  EXPECT_EQ(cohort.told(kRank1).local_steps,
            (Ranges{{3, 4}, {7, 8}, {11, 12}}));
  EXPECT_EQ(cohort.Status().step_samples, 12);
}

// The epoch has 6 samples left: one whole cut, and two samples of rank 0.
TEST(CoordinatorLocalStepsTest, AnEpochEndsWithFewerCuts) {
  StartedCohort cohort(Local(SmallSetup()));
  cohort.PushBoth(PushOf(1));
  EXPECT_EQ(cohort.told(kRank0).local_steps, (Ranges{{12, 15}, {16, 18}}));
  EXPECT_EQ(cohort.told(kRank1).local_steps, (Ranges{{15, 16}, {18, 18}}));
  cohort.PushBoth(PushOf(1));
  cohort.EvaluateAll();
  EXPECT_EQ(cohort.Status().samples, 18);
  EXPECT_EQ(cohort.Status().local_steps, 5);
  EXPECT_TRUE(cohort.Status().ended);
}

// (2 * 1 + 2 * 3) / 4 = 2 samples weigh alike; the outer rate is 0.5.
TEST(CoordinatorLocalStepsTest, TheOuterRuleTakesTheMeanOfThePushes) {
  FakeSetup setup = Local(SmallSetup());
  setup.options.optimizer.schedule = ScheduleKind::kCosine;
  StartedCohort cohort(setup);
  FakePush push = PushOf(2);
  push.gradient_weight = 9;
  FakePush other = PushOf(6);
  other.gradient_weight = 3;
  cohort.PushBoth(push, other);
  // 8 * 4 (the loss reference) / 12 samples, whatever the schedule.
  EXPECT_FLOAT_EQ(cohort.weights(0)[0], 1 - 0.5F * 8 * 4 / 12);
  cohort.Clear();
  EXPECT_NEAR(cohort.told(kRank0).local_rate_factor, 0.25, 1e-12);
}

// As one update of weight 1 - 0.9^3 by the ranks' moments.
TEST(CoordinatorLocalStepsTest, StatisticsMoveAsByAllSteps) {
  StartedCohort cohort(Local(SmallSetup()));
  FakePush push = PushOf(1);
  push.moments = {.count = 6, .first = {1}, .second = {12}};
  FakePush other = PushOf(1);
  other.moments = {.count = 2, .first = {5}, .second = {0}};
  cohort.PushBoth(push, other);
  // Mean 2, variance (12 + 6 * 1 + 2 * 9) / 8 = 4.5; held: 0 and 1.
  const double a = 1 - 0.9 * 0.9 * 0.9;
  const LayerStatistics& bn =
      cohort.snapshot()->statistics->front().layers.front();
  EXPECT_FLOAT_EQ(static_cast<float>(bn.mean[0]), static_cast<float>(2 * a));
  EXPECT_FLOAT_EQ(static_cast<float>(bn.variance[0]),
                  static_cast<float>(1 - a + 4.5 * a + a * (1 - a) * 4));
  EXPECT_EQ(bn.num_batches_tracked, 3);
}

TEST(CoordinatorLocalStepsTest, RefusesClosingsOfAnotherKind) {
  StartedCohort cohort(Local(SmallSetup()));
  cohort.Send(kRank0, PushOf(1), {0, 1});
  const auto closing = [](std::vector<CallMoments> moments) {
    return PushClosing{.batch_norm_calls = {1, 1, 1},
                       .moments = std::move(moments)};
  };
  const Moments one{.count = 2, .first = {0}, .second = {2}};
  // Those of single calls.
  EXPECT_THAT(cohort.Close(kRank0, closing({{.moments = one},
                                            {.call = 1, .moments = one},
                                            {.call = 2, .moments = one}})),
              IsError(kInvalidArgument, ""));
  EXPECT_THAT(cohort.Close(kRank0, closing({{.moments = one}})),
              IsError(kInvalidArgument, ""));
  PushClosing changed = closing({{.moments = one, .weight = 1, .updates = 3}});
  changed.changes = {{.layer = 0, .calls = {{.momentum = 0.5}}}};
  EXPECT_THAT(cohort.Close(kRank0, changed), IsError(kInvalidArgument, ""));
  changed.changes.clear();
  EXPECT_TRUE(cohort.Close(kRank0, changed).ok());
}

TEST(CoordinatorLocalStepsTest, OtherStepsTakeMomentsOfSingleCalls) {
  StartedCohort cohort(SmallSetup());
  cohort.Send(kRank0, PushOf(1), {0, 1});
  PushClosing closing{
      .batch_norm_calls = {1},
      .moments = {{.moments = {.count = 2, .first = {0}, .second = {2}},
                   .weight = 1,
                   .updates = 1}}};
  EXPECT_THAT(cohort.Close(kRank0, closing), IsError(kInvalidArgument, ""));
}

TEST(CoordinatorLocalStepsTest, ALostRankLeavesItsCutsToTheOthers) {
  StartedCohort cohort(Continuing(Local(SmallSetup())));
  cohort.Leave(kRank1);
  EXPECT_EQ(cohort.told(kRank0).local_steps, (Ranges{{0, 3}, {3, 6}, {6, 9}}));
}

// Three local steps may take three times as long as one.
TEST(CoordinatorLocalStepsTest, TheDeadlineIsThatOfEachLocalStep) {
  FakeSetup setup = Local(SmallSetup());
  setup.options.step_deadline = absl::Seconds(10);
  StartedCohort cohort(setup);
  cohort.Push(kRank0, PushOf(1));
  cohort.Pass(absl::Seconds(29));
  EXPECT_EQ(cohort.counter("workers_lost"), 0);
  cohort.Pass(absl::Seconds(2));
  EXPECT_EQ(cohort.counter("workers_lost"), 1);
}

TEST(CoordinatorLocalStepsTest, AChangeNamesTheRateThatItGivesAnotherMeaning) {
  StartedCohort cohort(Local(SmallSetup()));
  EXPECT_THAT(cohort.Change({{"local_steps", "0"}}).status(),
              IsError(kInvalidArgument, ""));
  EXPECT_THAT(
      cohort.Change({{"local_steps", "0"}, {"learning_rate", "0.1"}}).status(),
      IsError(kInvalidArgument, "weight_decay"));
  ASSERT_TRUE(cohort.Change(Gradients()).ok());
  cohort.PushBoth(PushOf(1));
  EXPECT_EQ(cohort.told(kRank0).local_steps, Ranges());
  EXPECT_EQ(cohort.told(kRank0).range, (IndexRange{12, 15}));
  EXPECT_TRUE(cohort.told(kRank0).global_normalization);
}

// A velocity of gradients is in other units than one of differences.
TEST(CoordinatorLocalStepsTest, TheyBeginAndEndWithoutAVelocity) {
  FakeSetup setup = Long(SmallSetup());
  setup.options.policy.normalization = NormalizationKind::kAuto;
  setup.options.optimizer.kind = OptimizerKind::kMomentum;
  StartedCohort cohort(setup);
  const SettingValues local = {{"local_steps", "2"},
                               {"learning_rate", "0.7"},
                               {"optimizer", "nesterov"}};
  const auto step = [&cohort] {
    const CallPlace place;
    ExpectOk(cohort.Meet(kRank0, place));
    ExpectOk(cohort.Meet(kRank1, place));
    cohort.PushBoth(PushOf(1));
  };
  step();
  EXPECT_THAT(cohort.Change(local).status(),
              IsError(kFailedPrecondition, "momentum"));
  ExpectOk(cohort.Change({{"optimizer", "sgd"}}).status());
  step();
  // It is in force, but no version was made by it.
  EXPECT_THAT(cohort.Change(local).status(),
              IsError(kFailedPrecondition, "sgd"));
  step();
  ExpectOk(cohort.Change(local).status());
  step();
  EXPECT_EQ(cohort.told(kRank0).local_steps.size(), 2);
  cohort.PushBoth(PushOf(1));
  EXPECT_THAT(cohort.Change(Gradients()).status(),
              IsError(kFailedPrecondition, "nesterov"));
}

TEST(CoordinatorLocalStepsTest, AScriptDecidesWhetherThereAreAny) {
  FakeSetup setup = Local(SmallSetup());
  setup.options.policy.local_steps = 0;
  setup.options.optimizer = {.kind = OptimizerKind::kAuto};
  setup.plan.optimizer = {{"optimizer", "sgd"},
                          {"local_steps", "3"},
                          {"learning_rate", "0.4"},
                          {"weight_decay", "0"}};
  StartedCohort cohort(setup);
  EXPECT_EQ(cohort.told(kRank0).local_steps.size(), 3);
  EXPECT_THAT(cohort.Change(Gradients()).status(),
              IsError(kFailedPrecondition, "program"));
  // Their number may change, and the outer rate stays theirs.
  ExpectOk(cohort.Change({{"local_steps", "1"}}).status());
  cohort.PushBoth(PushOf(1));
  EXPECT_EQ(cohort.told(kRank0).local_steps.size(), 1);
  EXPECT_EQ(cohort.Status().learning_rate, 0.4);
}

TEST(CoordinatorLocalStepsTest, ARestartKeepsTheCount) {
  const FakeSetup setup = Local(SmallSetup());
  StartedCohort cohort(setup);
  cohort.PushBoth(PushOf(1));
  const RunState state = *cohort.State();
  EXPECT_EQ(state.local_steps, 3);
  StartedCohort again(setup, &state);
  EXPECT_EQ(again.Status().local_steps, 3);
  EXPECT_EQ(again.told(kRank0).local_steps, (Ranges{{12, 15}, {16, 18}}));
}

// Only their number counts: as many batches of the worker.
TEST(CoordinatorLocalStepsTest, OwnDataHasEmptyCuts) {
  FakeSetup setup = Local(SmallSetup());
  setup.plan = {.dataset = "own", .loss_reference = 4, .own_data = true};
  setup.options.max_steps = 2;
  StartedCohort cohort(setup);
  EXPECT_EQ(cohort.told(kRank0).local_steps, Ranges(3));
  FakePush push = PushOf(1);
  push.samples = 7;
  cohort.PushBoth(push);
  EXPECT_EQ(cohort.Status().samples, 14);
  EXPECT_EQ(cohort.Status().local_steps, 3);
}

// Each local step has the time of a step, so one that joins within it may have
// to wait for as long.
TEST(CoordinatorLocalStepsTest, OneThatWaitsIsToldTheDeadlineOfAllSteps) {
  FakeSetup setup = Continuing(Local(SmallSetup()));
  setup.options.step_deadline = absl::Minutes(5);
  StartedCohort cohort(setup);
  cohort.Leave(kRank1);
  cohort.StartOne(kRank1);
  ASSERT_EQ(cohort.told(kRank1).kind, AssignmentKind::kWait);
  EXPECT_EQ(cohort.told(kRank1).wait, absl::Minutes(15));
}

}  // namespace
}  // namespace cohort
