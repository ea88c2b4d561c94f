#include "server/core/optimizer/workers_optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Pair;
using testing::UnorderedElementsAre;

const RunPlan kAdamPlan = {.dataset = "numbers",
                           .dataset_digest = "ab",
                           .train_samples = 8,
                           .test_samples = 4,
                           .loss_reference = 4,
                           .optimizer = {{"optimizer", "adam"},
                                         {"learning_rate", "0.003"},
                                         {"adam_beta1", "0.8"},
                                         {"schedule", "constant"}}};

FakeSetup AutoSetup(const RunPlan& plan) {
  FakeSetup setup = SmallSetup();
  setup.options.optimizer = {.kind = OptimizerKind::kAuto};
  setup.plan = plan;
  return setup;
}

OptimizerOptions InForce(FakeCohort& cohort) {
  CoordinatorOptions options;
  for (const auto& [name, value] :
       cohort.core().Policy(absl::Seconds(100)).settings) {
    EXPECT_TRUE(SetSetting(name, value, options).ok()) << name;
  }
  return options.optimizer;
}

// ---- TakeWorkersOptimizer

TEST(TakeWorkersOptimizerTest, AutoTakesThePlansSettings) {
  const auto taken = OkValue(TakeWorkersOptimizer(
      {.optimizer = {.kind = OptimizerKind::kAuto}}, kAdamPlan));
  EXPECT_EQ(taken.optimizer.kind, OptimizerKind::kAdam);
  EXPECT_EQ(taken.optimizer.learning_rate, 0.003);
  EXPECT_EQ(taken.optimizer.numbers.adam_beta1, 0.8);
  EXPECT_EQ(taken.optimizer.schedule, ScheduleKind::kConstant);
  // The others keep their defaults.
  EXPECT_EQ(taken.optimizer.numbers.adam_beta2, OptimizerNumbers().adam_beta2);
}

TEST(TakeWorkersOptimizerTest, WhatWasGivenIsKept) {
  const auto taken = OkValue(TakeWorkersOptimizer(
      {.optimizer = {.kind = OptimizerKind::kAuto, .learning_rate = 0.5},
       .given = {"optimizer", "learning_rate"}},
      kAdamPlan));
  // --optimizer=auto is no choice of a rule.
  EXPECT_EQ(taken.optimizer.kind, OptimizerKind::kAdam);
  EXPECT_EQ(taken.optimizer.learning_rate, 0.5);
  EXPECT_EQ(taken.optimizer.numbers.adam_beta1, 0.8);
}

TEST(TakeWorkersOptimizerTest, ANamedRuleIgnoresThePlan) {
  const auto taken = OkValue(TakeWorkersOptimizer(
      {.optimizer = {.kind = OptimizerKind::kLars, .learning_rate = 0.5}},
      kAdamPlan));
  EXPECT_EQ(taken.optimizer.kind, OptimizerKind::kLars);
  EXPECT_EQ(taken.optimizer.learning_rate, 0.5);
}

TEST(TakeWorkersOptimizerTest, WithoutAnOptimizerItIsMomentum) {
  const auto taken = OkValue(TakeWorkersOptimizer(
      {.optimizer = {.kind = OptimizerKind::kAuto, .learning_rate = 0.5}}, {}));
  EXPECT_EQ(taken.optimizer.kind, OptimizerKind::kMomentum);
  EXPECT_EQ(taken.optimizer.learning_rate, 0.5);
}

TEST(TakeWorkersOptimizerTest, APlanMayNotNameAuto) {
  const auto taken = OkValue(
      TakeWorkersOptimizer({.optimizer = {.kind = OptimizerKind::kAuto}},
                           {.optimizer = {{"optimizer", "auto"}}}));
  EXPECT_EQ(taken.optimizer.kind, OptimizerKind::kMomentum);
}

TEST(TakeWorkersOptimizerTest, OtherSettingsAndBadValuesAreRefused) {
  const CoordinatorOptions options{.optimizer = {.kind = OptimizerKind::kAuto}};
  const auto message = [&](const std::string& name, const std::string& value) {
    const absl::Status status =
        TakeWorkersOptimizer(options, {.optimizer = {{name, value}}}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << name << "=" << value;
    return std::string(status.message());
  };
  // A worker must not change the policy of the run.
  for (const char* name : {"workers", "aggregation", "lease", "freeze", ""}) {
    EXPECT_THAT(message(name, "2"),
                HasSubstr(absl::StrCat("got the optimizer setting '", name)));
  }
  EXPECT_THAT(
      message("learning_rate", "-1"),
      AllOf(HasSubstr("the workers' optimizer: "), HasSubstr("learning_rate")));
  EXPECT_THAT(message("learning_rate", "nan"), HasSubstr("learning_rate"));
  EXPECT_THAT(message("optimizer", "lbfgs"), HasSubstr("lbfgs"));
}

// ---- CheckPlanFits

TEST(CheckPlanFitsTest, OwnDataNeedsALimitOfSteps) {
  const RunPlan own{.own_data = true};
  CoordinatorOptions options{
      .optimizer = {.schedule = ScheduleKind::kConstant}};
  EXPECT_THAT(CheckPlanFits(options, own),
              IsError(kFailedPrecondition, "--max_steps=N"));
  options.max_steps = 1;
  EXPECT_TRUE(CheckPlanFits(options, own).ok());
  EXPECT_TRUE(CheckPlanFits(CoordinatorOptions(), RunPlan()).ok());
}

TEST(CheckPlanFitsTest, OwnDataHasNoEpochsAndNoBatchesByNumber) {
  const RunPlan own{.own_data = true};
  const CoordinatorOptions good{.max_steps = 10};
  ASSERT_TRUE(CheckPlanFits(good, own).ok());
  CoordinatorOptions bad = good;
  bad.policy.statistics = {StatisticsKind::kSync, StatisticsKind::kAfter};
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckPlanFits(bad, own)));
  bad = good;
  bad.optimizer.schedule = ScheduleKind::kStep;
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckPlanFits(bad, own)));
  // The workers' rates follow their own schedule.
  ExpectOk(CheckPlanFits(bad, {.own_data = true, .rates_by_workers = true}));
  bad = good;
  bad.optimizer.warmup_epochs = 1;
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckPlanFits(bad, own)));
}

// ---- CheckRatesUnchanged

TEST(CheckRatesUnchangedTest, RatesOfTheWorkersCannotBeChanged) {
  const CoordinatorOptions before;
  CoordinatorOptions target = before;
  target.optimizer.weight_decay = 0.5;
  EXPECT_TRUE(CheckRatesUnchanged(before, target).ok());
  target.optimizer.learning_rate = 0.5;
  EXPECT_THAT(CheckRatesUnchanged(before, target),
              IsError(absl::StatusCode::kInvalidArgument,
                      "--learning_rate: got 0.5, but the workers'"));
  target = before;
  target.optimizer.schedule = ScheduleKind::kPolynomial;
  EXPECT_FALSE(CheckRatesUnchanged(before, target).ok());
}

// ---- CheckRatesAreTheWorkers

TEST(CheckRatesAreTheWorkersTest, NotWhereTheServerWasGivenThem) {
  CoordinatorOptions options = OkValue(TakeWorkersOptimizer(
      {.optimizer = {.kind = OptimizerKind::kAuto}}, kAdamPlan));
  ExpectOk(CheckRatesAreTheWorkers(options, kAdamPlan));
  options.optimizer.weight_decay = 0.5;
  ExpectOk(CheckRatesAreTheWorkers(options, kAdamPlan));
  options.optimizer.learning_rate = 0.5;
  EXPECT_THAT(CheckRatesAreTheWorkers(options, kAdamPlan),
              IsError(absl::StatusCode::kInvalidArgument,
                      "--learning_rate=0.5 (theirs: 0.003)"));
  options.optimizer.learning_rate = 0.003;
  options.optimizer.warmup_epochs = 2;
  EXPECT_THAT(CheckRatesAreTheWorkers(options, kAdamPlan),
              IsError(absl::StatusCode::kInvalidArgument, "--warmup_epochs=2"));
}

// ---- in a run

TEST(WorkersOptimizerTest, ARunTakesTheOptimizerThatItsWorkersRegister) {
  StartedCohort cohort(AutoSetup(kAdamPlan));
  EXPECT_EQ(InForce(cohort).kind, OptimizerKind::kAdam);
  EXPECT_EQ(InForce(cohort).learning_rate, 0.003);
  // The history and the log name it.
  const auto history = cohort.core().Policy(absl::Seconds(100)).history;
  EXPECT_THAT(history.back().changed,
              UnorderedElementsAre(
                  Pair("optimizer", "adam"), Pair("learning_rate", "0.003"),
                  Pair("adam_beta1", "0.8"), Pair("schedule", "constant")));
  EXPECT_THAT(history.back().text, HasSubstr("the workers' optimizer: "));
  // The first step of Adam moves each weight by the rate, against the sign of
  // its gradient.
  cohort.PushBoth({.w = {1, -2}, .b = {0}, .loss_weight = 1});
  EXPECT_NEAR(cohort.weights(0)[0], 1 - 0.003, 1e-6);
  EXPECT_NEAR(cohort.weights(0)[1], 2 + 0.003, 1e-6);
}

TEST(WorkersOptimizerTest, AChangeBeforeTheRegistrationIsKept) {
  FakeCohort cohort(AutoSetup(kAdamPlan));
  ASSERT_TRUE(cohort.Change({{"learning_rate", "0.25"}}).ok());
  cohort.Start();
  EXPECT_EQ(InForce(cohort).kind, OptimizerKind::kAdam);
  EXPECT_EQ(InForce(cohort).learning_rate, 0.25);
}

TEST(WorkersOptimizerTest, TheLogSaysWhatFlagsKeepFromTheWorkers) {
  FakeSetup setup = AutoSetup(kAdamPlan);
  setup.options.optimizer.learning_rate = 0.5;
  setup.options.given = {"learning_rate"};
  StartedCohort cohort(setup);
  EXPECT_THAT(cohort.log(), HasSubstr("learning_rate 0.5 (theirs: 0.003)"));
  StartedCohort plain(AutoSetup(kAdamPlan));
  EXPECT_THAT(plain.log(), ::testing::Not(HasSubstr("take precedence")));
}

TEST(WorkersOptimizerTest, AutoCannotComeBack) {
  StartedCohort cohort(AutoSetup(kAdamPlan));
  EXPECT_THAT(cohort.Change({{"optimizer", "auto"}}),
              IsError(kInvalidArgument, "want a rule by name"));
}

TEST(WorkersOptimizerTest, WorkersWithAnotherOptimizerAreRefused) {
  StartedCohort cohort(AutoSetup(kAdamPlan));
  cohort.Leave(kRank1);
  ASSERT_TRUE(cohort.Join(kRank1).ok());
  RunPlan other = kAdamPlan;
  other.optimizer["adam_beta1"] = "0.9";
  Effects out;
  EXPECT_THAT(
      cohort.core().BeginRegister(cohort.sender(kRank1), SmallSetup().layout,
                                  other, cohort.now(), out),
      IsError(kFailedPrecondition, "optimizer: got adam_beta1 0.9, want 0.8"));
}

TEST(WorkersOptimizerTest, ABadOptimizerIsRefusedAtRegistration) {
  RunPlan plan = kAdamPlan;
  plan.optimizer["workers"] = "7";
  FakeCohort cohort(AutoSetup(plan));
  ASSERT_TRUE(cohort.Join(kRank0).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(cohort.Register(kRank0)));
}

TEST(WorkersOptimizerTest, OwnDataWithoutALimitIsRefusedAtRegistration) {
  RunPlan plan = kAdamPlan;
  plan.own_data = true;
  plan.train_samples = plan.test_samples = 0;
  FakeCohort cohort(AutoSetup(plan));
  ASSERT_TRUE(cohort.Join(kRank0).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(cohort.Register(kRank0)));
}

}  // namespace
}  // namespace cohort
