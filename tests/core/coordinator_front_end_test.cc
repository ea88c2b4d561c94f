// What a training program sends with its pushes: learning rates, its state, and
// measures.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "common/limits.h"
#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// w in group 0, b in group 1; rates come with the openings.
FakeSetup WithRates(FakeSetup setup) {
  setup.options.epochs = 4;
  setup.layout.parameters[1].rate_group = 1;
  setup.plan.rates_by_workers = true;
  return setup;
}

std::string StateOf(FakeCohort& cohort) {
  const SharedText state = cohort.snapshot()->front_end_state;
  return state == nullptr ? "(none)" : *state;
}

FakePush WithState(const std::string& state) {
  return {.front_end_state = state};
}

// ---- learning rates

// float64: weight - rate * sum of gradients * loss reference / sum of weights.
double Reference(double weight, double rate, double gradients, double losses) {
  return weight - rate * gradients * 4 / losses;
}

TEST(WorkersRatesTest, EachGroupMovesByItsRateOfTheLowestRank) {
  StartedCohort cohort(WithRates(SmallSetup()));
  // The higher rank opens first.
  cohort.Push(kRank1, {.w = {2, -1},
                       .b = {0.5f},
                       .loss_weight = 1,
                       .learning_rates = {0.9, 0.8}});
  cohort.Push(kRank0, {.w = {1, 3},
                       .b = {0.25f},
                       .loss_weight = 3,
                       .learning_rates = {0.125, 0.0625}});
  ASSERT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_FLOAT_EQ(cohort.weights(0)[0], Reference(1, 0.125, 3, 4));
  EXPECT_FLOAT_EQ(cohort.weights(0)[1], Reference(2, 0.125, 2, 4));
  EXPECT_FLOAT_EQ(cohort.weights(1)[0], Reference(3, 0.0625, 0.75, 4));
  EXPECT_EQ(cohort.All<effect::Committed>()[0].record.learning_rate, 0.125);
  EXPECT_EQ(cohort.Status().learning_rate, 0.125);

  // A rate of 0 leaves the group's weights as they are.
  const std::vector<float> before = cohort.weights(0);
  cohort.PushBoth({.w = {1, 1}, .b = {1}, .learning_rates = {0, 1}},
                  {.w = {1, 1}, .b = {1}, .learning_rates = {1, 1}});
  EXPECT_EQ(cohort.weights(0), before);
  EXPECT_NE(cohort.weights(1)[0], before[0]);
}

TEST(WorkersRatesTest, OfTheFirstKTheLowestRankDecides) {
  StartedCohort cohort(WithRates(FirstTwo(SmallSetup())));
  ASSERT_TRUE(cohort.Open(kRank0, {.learning_rates = {0.5, 0.5}}).ok());
  cohort.Push(kRank2, {.w = {1, 0}, .learning_rates = {0.9, 0.9}});
  cohort.Push(kRank1, {.w = {1, 0}, .learning_rates = {0.25, 0.25}});
  ASSERT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_FLOAT_EQ(cohort.weights(0)[0], Reference(1, 0.25, 2, 2));
}

TEST(WorkersRatesTest, APushThatIsAppliedAloneCountsByItsShare) {
  FakeSetup setup = WithRates(AsyncSetup());
  setup.batch_sizes = {1, 3};
  StartedCohort cohort(setup);
  cohort.Push(
      kRank1,
      {.w = {1, 0}, .b = {1}, .loss_weight = 3, .learning_rates = {0.5, 0.25}});
  // 3 of the cohort's 4 samples.
  EXPECT_FLOAT_EQ(cohort.weights(0)[0], Reference(1, 0.75 * 0.5, 1, 3));
  EXPECT_FLOAT_EQ(cohort.weights(1)[0], Reference(3, 0.75 * 0.25, 1, 3));
}

TEST(WorkersRatesTest, AnotherNumberOfRatesOrBadOnesAreRefused) {
  StartedCohort cohort(WithRates(SmallSetup()));
  for (const std::vector<double>& rates :
       std::vector<std::vector<double>>{{},
                                        {0.1},
                                        {0.1, 0.1, 0.1},
                                        {0.1, -0.1},
                                        {0.1, static_cast<double>(kNan)},
                                        {kInfinity, 0.1},
                                        {0.1, 2 * limits::kLearningRateMax}}) {
    EXPECT_THAT(cohort.Open(kRank0, {.learning_rates = rates}),
                IsError(kInvalidArgument, "learning rate"));
  }
  ExpectOk(
      cohort.Open(kRank0, {.learning_rates = {0, limits::kLearningRateMax}}));

  StartedCohort without(SmallSetup());
  EXPECT_TRUE(absl::IsInvalidArgument(
      without.Open(kRank0, {.learning_rates = {0.1, 0.1}})));
}

// w at twice the rate of b, which the server knows; one step has other rates.
TEST(WorkersRatesTest, AProgramMayChangeTheRatesOfAStep) {
  FakeSetup setup = Long(SmallSetup());
  setup.options.optimizer.learning_rate = 0.25;
  setup.options.optimizer.schedule = ScheduleKind::kConstant;
  setup.layout.parameters[0].rate_multiplier = 2;
  setup.layout.parameters[1].rate_group = 1;
  StartedCohort cohort(setup);
  const auto step = [&](const std::vector<double>& rates) {
    const FakePush push{.w = {1, 0}, .b = {1}, .learning_rates = rates};
    const float w = cohort.weights(0)[0], b = cohort.weights(1)[0];
    cohort.PushBoth(push, push);
    const double scale = Reference(0, -1, 2, 2);
    return std::vector<double>{(w - cohort.weights(0)[0]) / scale,
                               (b - cohort.weights(1)[0]) / scale};
  };
  EXPECT_THAT(step({}), ElementsAre(0.5, 0.25));
  EXPECT_THAT(step({0.125, 1}), ElementsAre(0.125, 1));
  EXPECT_EQ(cohort.Status().learning_rate, 0.125);
  // Otherwise the next such step would be refused.
  EXPECT_THAT(cohort.Change({{"learning_rate", "0.01"}}).status(),
              IsError(absl::StatusCode::kInvalidArgument, "change it there"));
  EXPECT_THAT(step({}), ElementsAre(0.5, 0.25));
  EXPECT_EQ(cohort.Status().learning_rate, 0.25);
  EXPECT_TRUE(cohort.Change({{"learning_rate", "0.01"}}).ok());
}

TEST(WorkersRatesTest, AProgramMayChangeOtherNumbersOfAStep) {
  FakeSetup setup = Long(SmallSetup());
  setup.options.optimizer = {.kind = OptimizerKind::kMomentum,
                             .learning_rate = 0.25,
                             .weight_decay = 0,
                             .decay_everything = true,
                             .schedule = ScheduleKind::kConstant};
  setup.layout.parameters[1].rate_group = 1;
  StartedCohort cohort(setup);
  double weights[] = {cohort.weights(0)[0], cohort.weights(1)[0]};
  double velocities[] = {0, 0};
  // Momentum of both groups, weight decay of both.
  const auto step = [&](const std::vector<GroupNumber>& numbers,
                        const std::vector<double>& momenta,
                        const std::vector<double>& decays) {
    const FakePush push{.w = {1, 0}, .b = {1}, .numbers = numbers};
    cohort.PushBoth(push, push);
    for (size_t k = 0; k < 2; ++k) {
      const double gradient = 2 * 4 / 2.0 + decays[k] * weights[k];
      velocities[k] = momenta[k] * velocities[k] + gradient;
      weights[k] -= 0.25 * velocities[k];
    }
    EXPECT_NEAR(cohort.weights(0)[0], weights[0], 1e-5);
    EXPECT_NEAR(cohort.weights(1)[0], weights[1], 1e-5);
  };
  step({}, {0.9, 0.9}, {0, 0});
  step({{.group = 1, .name = "momentum", .value = 0.5}}, {0.9, 0.5}, {0, 0});
  step({{.group = 0, .name = "weight_decay", .value = 0.125},
        {.group = 1, .name = "momentum", .value = 0},
        {.group = 1, .name = "weight_decay", .value = 0.25}},
       {0.9, 0}, {0.125, 0.25});
  step({}, {0.9, 0.9}, {0, 0});
}

TEST(WorkersRatesTest, NumbersThatTheRuleDoesNotTakeAreRefused) {
  FakeSetup setup = Long(SmallSetup());
  setup.layout.parameters[1].rate_group = 1;
  const auto open = [&](OptimizerKind kind,
                        const std::vector<GroupNumber>& numbers) {
    setup.options.optimizer.kind = kind;
    StartedCohort cohort(setup);
    return cohort.Open(kRank0, {.numbers = numbers});
  };
  const OptimizerKind momentum = OptimizerKind::kMomentum;
  ExpectOk(open(momentum, {{.group = 1, .name = "momentum", .value = 0}}));
  using Numbers = std::vector<GroupNumber>;
  for (const Numbers& numbers :
       {Numbers{{.group = 2, .name = "momentum", .value = 0.5}},
        Numbers{{.group = -1, .name = "momentum", .value = 0.5}},
        Numbers{{.group = 0, .name = "momentum", .value = 1}},
        Numbers{{.group = 0, .name = "momentum", .value = kInfinity}},
        Numbers{{.group = 0, .name = "weight_decay", .value = -1}},
        Numbers{{.group = 0, .name = "adam_beta1", .value = 0.5}},
        Numbers{{.group = 0, .name = "learning_rate", .value = 0.5}},
        Numbers{{.group = 0, .name = "", .value = 0.5}},
        Numbers{{.group = 0, .name = "momentum", .value = 0.5},
                {.group = 0, .name = "momentum", .value = 0.5}},
        Numbers{{.group = 1, .name = "momentum", .value = 0.5},
                {.group = 0, .name = "momentum", .value = 0.5}}}) {
    EXPECT_EQ(open(momentum, numbers).code(), kInvalidArgument);
  }
  // Switches; a number that earlier steps enter with; one that needs a slot.
  EXPECT_EQ(open(OptimizerKind::kAdam,
                 {{.group = 0, .name = "adam_amsgrad", .value = 1}})
                .code(),
            kInvalidArgument);
  EXPECT_EQ(open(OptimizerKind::kNAdam,
                 {{.group = 0, .name = "adam_beta1", .value = 0.5}})
                .code(),
            kInvalidArgument);
  EXPECT_EQ(open(OptimizerKind::kRmsProp,
                 {{.group = 0, .name = "rmsprop_momentum", .value = 0.5}})
                .code(),
            kInvalidArgument);
}

TEST(WorkersRatesTest, ANumberThatAFlagOfTheServerSetIsNotTheProgramsOwn) {
  FakeSetup setup = Long(SmallSetup());
  setup.options.optimizer.kind = OptimizerKind::kAuto;
  setup.plan.optimizer = {{"optimizer", "momentum"}, {"momentum", "0.9"}};
  const std::vector<GroupNumber> numbers = {
      {.group = 0, .name = "momentum", .value = 0.5}};
  ExpectOk(StartedCohort(setup).Open(kRank0, {.numbers = numbers}));
  setup.options.optimizer.numbers.momentum = 0.8;
  setup.options.given = {"momentum"};
  EXPECT_EQ(StartedCohort(setup).Open(kRank0, {.numbers = numbers}).code(),
            kInvalidArgument);
}

TEST(WorkersRatesTest, TheRateCannotBeChangedOnTheServer) {
  StartedCohort cohort(WithRates(SmallSetup()));
  EXPECT_THAT(cohort.Change({{"learning_rate", "0.01"}}).status(),
              IsError(absl::StatusCode::kInvalidArgument, "change it there"));
  EXPECT_FALSE(cohort.Change({{"schedule", "cosine"}}).ok());
  EXPECT_TRUE(cohort.Change({{"weight_decay", "0.5"}}).ok());
}

// ---- the state of the program

TEST(FrontEndStateTest, AVersionHasTheStateOfItsLowestRank) {
  StartedCohort cohort(Long(SmallSetup()));
  EXPECT_EQ(StateOf(cohort), "(none)");
  cohort.Push(kRank1, WithState("b1"));
  cohort.Push(kRank0, WithState("a1"));
  ASSERT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_EQ(StateOf(cohort), "a1");
  // Any bytes, and none, are a state.
  cohort.PushBoth(WithState(std::string("\0\xff", 2)), WithState("b2"));
  EXPECT_EQ(StateOf(cohort), std::string("\0\xff", 2));
  cohort.PushBoth(WithState(""), WithState("b3"));
  EXPECT_EQ(StateOf(cohort), "");
}

TEST(FrontEndStateTest, IsKeptWhereTheLowestRankSendsNone) {
  StartedCohort cohort(Long(SmallSetup()));
  cohort.PushBoth(WithState("a1"), {});
  cohort.PushBoth({}, WithState("b2"));
  ASSERT_EQ(cohort.snapshot()->version, Version(2));
  EXPECT_EQ(StateOf(cohort), "a1");
}

TEST(FrontEndStateTest, ASkippedStepIsAVersionOfTheProgramToo) {
  FakeSetup setup = Long(SmallSetup());
  setup.options.nonfinite_max = 9;
  StartedCohort cohort(setup);
  cohort.PushBoth(WithState("a1"), {});
  cohort.PushBoth({.w = {kNan, 0}, .front_end_state = "a2"}, {});
  ASSERT_TRUE(cohort.All<effect::Committed>()[1].record.skipped);
  EXPECT_EQ(StateOf(cohort), "a2");
  cohort.PushBoth({.w = {kNan, 0}}, {});
  ASSERT_EQ(cohort.snapshot()->version, Version(3));
  EXPECT_EQ(StateOf(cohort), "a2");
}

TEST(FrontEndStateTest, OfTheFirstKTheLowestRankDecides) {
  StartedCohort cohort(FirstTwo(SmallSetup()));
  ASSERT_TRUE(cohort.Open(kRank0, WithState("a1")).ok());
  cohort.Push(kRank2, WithState("c1"));
  cohort.Push(kRank1, WithState("b1"));
  ASSERT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_EQ(StateOf(cohort), "b1");
}

TEST(FrontEndStateTest, APushThatIsAppliedAloneBringsItsOwn) {
  FakeSetup setup = AsyncSetup();
  setup.options.policy.staleness = {.rule = StalenessRule::kDrop,
                                    .versions_max = 0};
  StartedCohort cohort(setup);
  cohort.Push(kRank1, WithState("b1"));
  EXPECT_EQ(StateOf(cohort), "b1");
  // Read before version 1, so it is dropped.
  cohort.Push(kRank0, WithState("a1"));
  ASSERT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_EQ(StateOf(cohort), "b1");
  cohort.Push(kRank0, {});
  ASSERT_EQ(cohort.snapshot()->version, Version(2));
  EXPECT_EQ(StateOf(cohort), "b1");
}

TEST(FrontEndStateTest, AnAbortedAttemptLeavesNoState) {
  StartedCohort cohort(Continuing(Long(SmallSetup())));
  cohort.Push(kRank0, WithState("a1"));
  cohort.Leave(kRank1);
  EXPECT_EQ(StateOf(cohort), "(none)");
  cohort.Push(kRank0, WithState("a2"));
  EXPECT_EQ(StateOf(cohort), "a2");
}

TEST(FrontEndStateTest, ARestoredRunContinuesWithIt) {
  FakeSetup setup = Checkpointing(Long(SmallSetup()));
  StartedCohort cohort(setup);
  cohort.PushBoth(WithState("a1"), {});
  const RunState state = cohort.All<effect::WriteCheckpoint>()[0].state;
  StartedCohort restored(setup, &state);
  EXPECT_EQ(StateOf(restored), "a1");
}

TEST(FrontEndStateTest, SurvivesPreciseStatistics) {
  FakeSetup setup = SmallSetup();
  setup.options.policy.statistics = {StatisticsKind::kSync,
                                     StatisticsKind::kAfter};
  StartedCohort cohort(setup);
  cohort.PushBoth(WithState("a1"), {});
  ASSERT_TRUE(cohort.Collect().ok());
  cohort.PushBoth({});
  for (Rank rank : {kRank0, kRank1}) {
    while (cohort.told(rank).kind == AssignmentKind::kCollectMoments) {
      ExpectOk(cohort.ReportMoments(
          rank, {{.moments = {.count = 2, .first = {0}, .second = {2}}}}));
    }
  }
  EXPECT_EQ(StateOf(cohort), "a1");
}

TEST(FrontEndStateTest, HasALimit) {
  StartedCohort cohort(Long(SmallSetup()));
  std::string state(limits::kFrontEndStateMax, 'x');
  cohort.Push(kRank1, WithState(state));
  state.push_back('x');
  cohort.Send(kRank0, {}, {0, 1});
  EXPECT_THAT(cohort.Close(kRank0, WithState(state)),
              IsError(kInvalidArgument,
                      "closing: got a front-end state of 65537 bytes"));
}

// ---- measures

TEST(FrontEndMeasuresTest, OfAStepAreSummedByName) {
  StartedCohort cohort(Long(SmallSetup()));
  cohort.Push(kRank1, {.measures = {{"a", 1, 2}, {"c", -3, 1}}});
  cohort.Push(kRank0, {.measures = {{"b/x", 8, 4}, {"c", 5, 3}}});
  EXPECT_THAT(cohort.All<effect::Committed>()[0].record.measures,
              ElementsAre(Measure{"a", 1, 2}, Measure{"b/x", 8, 4},
                          Measure{"c", 2, 4}));
  cohort.PushBoth({});
  EXPECT_THAT(cohort.All<effect::Committed>()[1].record.measures, IsEmpty());
}

TEST(FrontEndMeasuresTest, TheStatusHasTheNewestMeanOfEach) {
  StartedCohort cohort(Long(SmallSetup()));
  cohort.PushBoth({.measures = {{"a", 1, 2}, {"b", 3, 1}}},
                  {.measures = {{"a", 2, 2}}});
  cohort.PushBoth({.measures = {{"a", 4, 2}}}, {});
  EXPECT_THAT(cohort.Status().measures,
              ElementsAre(::testing::Pair("a", 2), ::testing::Pair("b", 3)));
}

TEST(FrontEndMeasuresTest, APushThatIsAppliedAloneHasItsOwn) {
  StartedCohort cohort(AsyncSetup());
  cohort.Push(kRank1, {.measures = {{"a", 1, 2}}});
  EXPECT_THAT(cohort.All<effect::Committed>()[0].record.measures,
              ElementsAre(Measure{"a", 1, 2}));
}

TEST(FrontEndMeasuresTest, BadOnesAreRefused) {
  StartedCohort cohort(Long(SmallSetup()));
  ASSERT_TRUE(cohort.Open(kRank0, {}).ok());
  std::vector<Measure> many;
  for (int i = 0; i <= limits::kMeasuresMax; ++i) {
    many.push_back({std::string(1, static_cast<char>('0' + i)), 1, 1});
  }
  const std::string longest(limits::kMeasureNameMax, 'n');
  for (const std::vector<Measure>& bad : std::vector<std::vector<Measure>>{
           many,
           {{"", 1, 1}},
           {{longest + "n", 1, 1}},
           {{"with space", 1, 1}},
           {{"quote\"", 1, 1}},
           {{"\xc3\xa9", 1, 1}},
           {{"b", 1, 1}, {"a", 1, 1}},
           {{"a", 1, 1}, {"a", 1, 1}},
           {{"a", 1, 0}},
           {{"a", 1, -1}},
           {{"a", 1, kInfinity}},
           {{"a", 1, 2 * limits::kMeasureWeightMax}},
           {{"a", 1, static_cast<double>(kNan)}}}) {
    EXPECT_THAT(cohort.Close(kRank0, FakePush{.measures = bad}),
                IsError(kInvalidArgument, "measure"));
  }
  ASSERT_TRUE(cohort.Gradient(kRank0, 0, {0, 0}).ok());
  ASSERT_TRUE(cohort.Gradient(kRank0, 1, {0}).ok());
  ExpectOk(cohort.Close(
      kRank0, FakePush{.measures = {{"A-z_0./", 2, 1}, {longest, 0, 0.5}}}));
}

// One of them would hide those of all other ranks and steps.
TEST(FrontEndMeasuresTest, WhatIsNotFiniteIsNamedAndLeftOut) {
  StartedCohort cohort(Long(SmallSetup()));
  const double nan = kNan;
  cohort.PushBoth({.measures = {{"a", nan, 1},
                                {"b", kInfinity, 1},
                                {"c", 1e300, 1},
                                {"d", 1, 1e-310},
                                {"e", 4, 2}}},
                  {.measures = {{"a", 3, 1}}});
  const CommitRecord record = cohort.All<effect::Committed>()[0].record;
  EXPECT_FALSE(record.skipped);
  EXPECT_THAT(record.measures,
              ElementsAre(Measure{"a", 3, 1}, Measure{"e", 4, 2}));
  for (const char* name : {"a", "b", "c", "d"}) {
    EXPECT_THAT(
        cohort.log(),
        HasSubstr(absl::StrCat("measure ", name, " is not finite at step 0")));
  }
}

// A model that diverges must show.
TEST(FrontEndMeasuresTest, ALossThatIsNotFiniteIsNamedAndReported) {
  StartedCohort cohort(Long(SmallSetup()));
  cohort.PushBoth({.loss_sum = kInfinity}, {});
  const CommitRecord record = cohort.All<effect::Committed>()[0].record;
  EXPECT_FALSE(record.skipped);
  EXPECT_EQ(record.loss, kInfinity);
  EXPECT_THAT(cohort.log(), HasSubstr("the loss is not finite at step 0"));
}

}  // namespace
}  // namespace cohort
