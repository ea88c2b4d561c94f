// Members of a step that make different batch-norm calls.

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

// Workers with batches of one, and layers "bn" and "bn2".
FakeSetup Setup(FakeSetup setup, int32_t workers) {
  setup.layout.batch_norms.push_back({.name = "bn2", .channels = 1});
  return WithWorkers(std::move(setup), workers);
}
FakeSetup Global(int32_t workers) { return Setup(GlobalSetup(), workers); }
FakeSetup Local(int32_t workers) { return Setup(SmallSetup(), workers); }

absl::Status Reduce(FakeCohort& cohort, Rank rank, int32_t layer,
                    int32_t call = 0) {
  return cohort.Meet(rank, {.layer = layer, .call = call});
}

// Pushes everything of `rank`, and reports these calls.
void PushWith(FakeCohort& cohort, Rank rank,
              const std::vector<int32_t>& calls) {
  const bool local = !cohort.told(rank).global_normalization;
  cohort.Send(rank, {}, {0, 1});
  PushClosing closing{.labels = 1, .batch_norm_calls = calls};
  for (size_t layer = 0; local && layer < calls.size(); ++layer) {
    for (int32_t call = 0; call < calls[layer]; ++call) {
      closing.moments.push_back(
          {.layer = static_cast<int32_t>(layer),
           .call = call,
           .moments = {.count = 2, .first = {0}, .second = {0}}});
    }
  }
  ExpectOk(cohort.Close(rank, std::move(closing)));
}

// All members call both layers once.
void ReduceAll(FakeCohort& cohort, const std::vector<Rank>& ranks) {
  for (int32_t layer : {0, 1}) {
    for (Rank rank : ranks) ASSERT_TRUE(Reduce(cohort, rank, layer).ok());
  }
}

CallPlace BackwardOf(int32_t layer) {
  return {.layer = layer, .phase = ReducePhase::kBackward};
}

const LayerStatistics& StatisticsOf(const FakeCohort& cohort, size_t layer) {
  return cohort.snapshot()->statistics->front().layers[layer];
}

std::string EndOf(const FakeCohort& cohort) {
  const auto ended = cohort.All<effect::RunEnded>();
  if (ended.size() != 1) return "";
  EXPECT_EQ(ended[0].outcome, RunOutcome::kRefused);
  return ended[0].reason;
}

// ---- local normalisation

TEST(CoordinatorCallsTest, StatisticsAreThoseOfTheSamplesThatReachALayer) {
  StartedCohort cohort(Local(3));
  const auto push = [&cohort](Rank rank, std::vector<CallMoments> moments,
                              std::vector<int32_t> calls) {
    cohort.Send(rank, {}, {0, 1});
    ExpectOk(cohort.Close(rank, {.labels = 1,
                                 .batch_norm_calls = std::move(calls),
                                 .moments = std::move(moments)}));
  };
  const auto one = [](int32_t layer, int32_t call, double mean) {
    return CallMoments{.layer = layer,
                       .call = call,
                       .moments = {.count = 1, .first = {mean}, .second = {0}}};
  };
  // Rank 1 leaves out bn. In part 0 rank 2 leaves out bn2, so that its only
  // call meets the second ones of the others.
  push(kRank0, {one(0, 0, 2), one(1, 0, 1), one(1, 1, 4)}, {1, 1, 0, 1});
  push(kRank1, {one(1, 0, 3), one(1, 1, 6)}, {0, 1, 0, 1});
  push(kRank2, {one(0, 0, 4), one(1, 0, 8)}, {1, 0, 0, 1});
  ASSERT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_FLOAT_EQ(StatisticsOf(cohort, 0).mean[0], 0.1 * 3);
  EXPECT_FLOAT_EQ(StatisticsOf(cohort, 0).variance[0], 0.9 + 0.1 * 2);
  EXPECT_EQ(StatisticsOf(cohort, 1).num_batches_tracked, 2);
  EXPECT_FLOAT_EQ(StatisticsOf(cohort, 1).mean[0], 0.9 * 0.1 * 2 + 0.1 * 6);
}

TEST(CoordinatorCallsTest, ALayerThatNoRankCalledIsNotUpdated) {
  StartedCohort cohort(Local(2));
  for (Rank rank : {kRank0, kRank1}) PushWith(cohort, rank, {1, 0});
  ASSERT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_EQ(StatisticsOf(cohort, 0).num_batches_tracked, 1);
  EXPECT_EQ(StatisticsOf(cohort, 1).num_batches_tracked, 0);
}

TEST(CoordinatorCallsTest, UnderChiefALayerThatTheChiefSkipsDoesNotMove) {
  FakeSetup setup = Local(2);
  setup.options.policy.statistics = {StatisticsKind::kChief};
  StartedCohort cohort(setup);
  PushWith(cohort, kRank0, {0, 1});
  PushWith(cohort, kRank1, {1, 1});
  ASSERT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_EQ(StatisticsOf(cohort, 0).num_batches_tracked, 0);
  EXPECT_EQ(StatisticsOf(cohort, 1).num_batches_tracked, 1);
}

TEST(CoordinatorCallsTest, DifferentNumbersOfCallsEndTheRunByName) {
  StartedCohort cohort(Local(3));
  PushWith(cohort, kRank0, {1, 1});
  PushWith(cohort, kRank1, {1, 2});
  PushWith(cohort, kRank2, {1, 0});
  EXPECT_THAT(
      EndOf(cohort),
      HasSubstr("bn2: rank 0 called it 1 time in step 0, rank 1 2 times"));
  EXPECT_EQ(cohort.counter("workers_lost"), 0);
}

// ---- members that do not come

TEST(CoordinatorCallsTest, ACallIsCompletedWithoutAMemberThatHasClosed) {
  StartedCohort cohort(Global(3));
  for (Rank rank : {kRank0, kRank1, kRank2}) {
    ASSERT_TRUE(Reduce(cohort, rank, 0).ok());
  }
  cohort.Push(kRank1, {});
  cohort.Clear();
  ASSERT_TRUE(Reduce(cohort, kRank0, 1).ok());
  EXPECT_THAT(cohort.All<effect::ReduceResult>(), IsEmpty());
  ASSERT_TRUE(Reduce(cohort, kRank2, 1).ok());
  const auto results = cohort.All<effect::ReduceResult>();
  ASSERT_EQ(results.size(), 2);
  EXPECT_EQ(results[0].rank, kRank0);
  EXPECT_EQ(results[1].rank, kRank2);
  EXPECT_EQ(results[0].moments->count, 4);
  // The backward pass of the call is that of its members.
  cohort.Clear();
  for (Rank rank : {kRank0, kRank2}) {
    ASSERT_TRUE(cohort.Meet(rank, BackwardOf(1)).ok());
  }
  EXPECT_EQ(cohort.All<effect::ReduceResult>().size(), 2);
  for (Rank rank : {kRank0, kRank2}) cohort.Push(rank, {});
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_EQ(StatisticsOf(cohort, 1).num_batches_tracked, 1);
  EXPECT_EQ(cohort.counter("steps_aborted"), 0);
}

// Rank 0 makes bn2 only, rank 1 both.
TEST(CoordinatorCallsTest, TheCallThatIsRegisteredFirstIsCompletedFirst) {
  StartedCohort cohort(Global(2));
  ASSERT_TRUE(Reduce(cohort, kRank0, 1).ok());
  cohort.Clear();
  ASSERT_TRUE(Reduce(cohort, kRank1, 0).ok());
  EXPECT_EQ(cohort.Only<effect::ReduceResult>().rank, kRank1);
  ASSERT_TRUE(Reduce(cohort, kRank1, 1).ok());
  EXPECT_EQ(cohort.All<effect::ReduceResult>().back().moments->count, 4);
  for (Rank rank : {kRank0, kRank1}) cohort.Push(rank, {});
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_EQ(cohort.counter("steps_aborted"), 0);
}

// Rank 0 makes bn only; rank 1 bn2, then bn.
void AgainstTheOrderOfRegistration(FakeCohort& cohort) {
  ASSERT_TRUE(Reduce(cohort, kRank0, 0).ok());
  ASSERT_TRUE(Reduce(cohort, kRank1, 1).ok());
}

TEST(CoordinatorCallsTest, AnOrderThatWasNotKnownIsLearntByRepeatingTheStep) {
  StartedCohort cohort(Global(2));
  AgainstTheOrderOfRegistration(cohort);
  // bn was completed with rank 0 alone.
  cohort.Push(kRank0, {});
  ASSERT_TRUE(Reduce(cohort, kRank1, 0).ok());
  EXPECT_EQ(cohort.counter("steps_repeated_for_order"), 1);
  EXPECT_EQ(cohort.told(kRank0).attempt, Attempt(1));
  EXPECT_THAT(cohort.log(), HasSubstr("rank 1 reached call 0 of bn"));
  EXPECT_EQ(cohort.All<effect::ReduceAborted>().size(), 1);
  cohort.Clear();
  AgainstTheOrderOfRegistration(cohort);
  EXPECT_EQ(cohort.Only<effect::ReduceResult>().rank, kRank1);
  ASSERT_TRUE(Reduce(cohort, kRank1, 0).ok());
  EXPECT_EQ(cohort.All<effect::ReduceResult>().back().moments->count, 4);
  for (Rank rank : {kRank0, kRank1}) cohort.Push(rank, {});
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_EQ(cohort.counter("steps_aborted"), 1);
}

// Only rank 0 has reached rank 1's second call, so nothing is known yet.
TEST(CoordinatorCallsTest, ADoomedAttemptGoesOnUntilNoMemberComputes) {
  StartedCohort cohort(Global(3));
  ASSERT_TRUE(Reduce(cohort, kRank0, 0).ok());
  ASSERT_TRUE(Reduce(cohort, kRank1, 1).ok());
  ASSERT_TRUE(Reduce(cohort, kRank2, 1).ok());
  // bn was completed with rank 0 alone.
  ASSERT_TRUE(Reduce(cohort, kRank0, 1).ok());
  ASSERT_TRUE(Reduce(cohort, kRank1, 0).ok());
  EXPECT_EQ(cohort.counter("steps_aborted"), 0);
  // The replacement of rank 0 has to catch up, too.
  cohort.Leave(kRank0);
  ASSERT_TRUE(Reduce(cohort, kRank2, 0).ok());
  EXPECT_EQ(cohort.counter("steps_aborted"), 0);
  cohort.StartOne(kRank0);
  ASSERT_TRUE(Reduce(cohort, kRank0, 0).ok());
  ASSERT_TRUE(Reduce(cohort, kRank0, 1).ok());
  EXPECT_EQ(cohort.counter("steps_aborted"), 0);
  cohort.Push(kRank0, {});
  EXPECT_EQ(cohort.counter("steps_repeated_for_order"), 1);
}

TEST(CoordinatorCallsTest, OrdersThatContradictEachOtherEndTheRun) {
  StartedCohort cohort(Global(2));
  for (int attempt : {0, 1}) {
    EXPECT_EQ(cohort.counter("steps_repeated_for_order"), attempt);
    AgainstTheOrderOfRegistration(cohort);
    ASSERT_TRUE(Reduce(cohort, kRank0, 1).ok());
    ASSERT_TRUE(Reduce(cohort, kRank1, 0).ok());
    cohort.Push(kRank0, {});
  }
  EXPECT_THAT(EndOf(cohort), HasSubstr("call 0 of bn before call 0 of bn2"));
  EXPECT_EQ(cohort.counter("workers_lost"), 0);
}

TEST(CoordinatorCallsTest, WhatWasLearntIsPartOfTheRunsState) {
  StartedCohort cohort(Global(2));
  AgainstTheOrderOfRegistration(cohort);
  cohort.Push(kRank0, {});
  ASSERT_TRUE(Reduce(cohort, kRank1, 0).ok());
  const RunState state = OkValue(cohort.State());
  StartedCohort again(Global(2), &state);
  AgainstTheOrderOfRegistration(again);
  EXPECT_EQ(again.Only<effect::ReduceResult>().rank, kRank1);
}

// Its replacement receives what the first process received.
TEST(CoordinatorCallsTest, ALostMemberIsWaitedFor) {
  StartedCohort cohort(Global(2));
  ASSERT_TRUE(Reduce(cohort, kRank0, 1).ok());
  cohort.Leave(kRank1);
  cohort.Pass(absl::Minutes(1));
  EXPECT_THAT(cohort.All<effect::ReduceResult>(), IsEmpty());
  cohort.StartOne(kRank1);
  EXPECT_THAT(cohort.All<effect::ReduceResult>(), IsEmpty());
  ASSERT_TRUE(Reduce(cohort, kRank1, 0).ok());
  EXPECT_EQ(cohort.All<effect::ReduceResult>().size(), 1);
}

TEST(CoordinatorCallsTest, AContributionThatComesWithAnotherIsWaitedFor) {
  StartedCohort cohort(Global(2));
  ASSERT_TRUE(Reduce(cohort, kRank0, 1).ok());
  const Moments one{.count = 2, .first = {0}, .second = {0}};
  ExpectOk(cohort.Reduce(kRank1,
                         {{.key = {.place = {.layer = 0}}, .moments = one},
                          {.key = {.place = {.layer = 1}}, .moments = one}}));
  const auto results = cohort.All<effect::ReduceResult>();
  ASSERT_EQ(results.size(), 2);
  EXPECT_EQ(results[0].key.place.layer, 1);
  EXPECT_EQ(results[0].moments->count, 4);
  // Rank 1 still waits for bn, but rank 0 computes.
  cohort.Push(kRank0, {});
  EXPECT_EQ(cohort.All<effect::ReduceResult>().back().key.place.layer, 0);
}

// Both call bn once, but not in the same part.
TEST(CoordinatorCallsTest, CallsOfDifferentPartsDoNotMeet) {
  StartedCohort cohort(Global(2));
  ASSERT_TRUE(cohort.Meet(kRank0, {.part = 1}).ok());
  ASSERT_TRUE(cohort.Meet(kRank1, {.part = 0}).ok());
  cohort.Push(kRank1, {});
  const auto results = cohort.All<effect::ReduceResult>();
  ASSERT_EQ(results.size(), 2);
  EXPECT_EQ(results[0].rank, kRank1);
  EXPECT_EQ(results[0].moments->count, 2);
  EXPECT_EQ(results[1].moments->count, 2);
  cohort.Push(kRank0, {});
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_EQ(StatisticsOf(cohort, 0).num_batches_tracked, 2);
}

TEST(CoordinatorCallsTest, AVisitThatAMemberDoesNotMakeEndsTheRunByName) {
  StartedCohort cohort(Global(2));
  for (Rank rank : {kRank0, kRank1}) {
    ASSERT_TRUE(Reduce(cohort, rank, 0).ok());
  }
  cohort.Push(kRank0, {});
  ASSERT_TRUE(cohort.Meet(kRank1, BackwardOf(0)).ok());
  EXPECT_THAT(EndOf(cohort),
              HasSubstr("rank 1 waits in the backward pass of call 0 of bn"));
}

TEST(CoordinatorCallsTest, CallsThatAreNotRegisteredWaitForAllMembers) {
  StartedCohort cohort(Global(2));
  const CallPlace place{.layer = -1, .site = "net.py:attention"};
  ASSERT_TRUE(cohort.Meet(kRank0, place).ok());
  EXPECT_THAT(cohort.Reduce(kRank1, {.place = place},
                            {.count = 2, .first = {0, 0}, .second = {0, 0}}),
              IsError(kInvalidArgument, "2 channels from rank 1, want 1"));
  ASSERT_TRUE(cohort.Meet(kRank1, place).ok());
  EXPECT_EQ(cohort.All<effect::ReduceResult>().size(), 2);
  CallPlace second = place;
  second.call = 1;
  ASSERT_TRUE(cohort.Meet(kRank1, second).ok());
  ASSERT_TRUE(Reduce(cohort, kRank0, 0).ok());
  // Rank 0 continues by itself, and ends without the second one.
  EXPECT_EQ(cohort.All<effect::ReduceResult>().size(), 3);
  cohort.Push(kRank0, {});
  EXPECT_THAT(EndOf(cohort),
              HasSubstr("rank 1 waits in call 1 of net.py:attention"));
}

TEST(CoordinatorCallsTest, ABackwardPassWithoutItsForwardPassIsRefused) {
  StartedCohort cohort(Global(2));
  EXPECT_THAT(cohort.Meet(kRank0, BackwardOf(0)),
              IsError(kFailedPrecondition,
                      "backward pass of call 0 of bn from rank 0"));
}

// ---- how calls are paired

TEST(CoordinatorCallsTest, UnevenCallsEndTheRunByName) {
  StartedCohort cohort(Global(2));
  for (Rank rank : {kRank0, kRank1}) {
    ASSERT_TRUE(Reduce(cohort, rank, 0).ok());
  }
  ASSERT_TRUE(Reduce(cohort, kRank1, 0, 1).ok());
  cohort.PushBoth({});
  EXPECT_THAT(EndOf(cohort), HasSubstr("bn: rank 0 called it 1 time"));
}

TEST(CoordinatorCallsTest, CallsWithNamesMayBeLeftOutOneByOne) {
  StartedCohort cohort(Global(2));
  for (Rank rank : {kRank0, kRank1}) {
    ASSERT_TRUE(cohort.Meet(rank, {.layer = 0, .site = "P4"}, {4, 4}).ok());
  }
  ASSERT_TRUE(cohort.Meet(kRank1, {.layer = 0, .site = "P5"}, {2, 2}).ok());
  cohort.PushBoth({});
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_EQ(StatisticsOf(cohort, 0).num_batches_tracked, 2);
}

TEST(CoordinatorCallsTest, CallsThatMayBePairedWronglyEndTheRunByName) {
  StartedCohort cohort(Global(2));
  for (int32_t call : {0, 1}) {
    ASSERT_TRUE(cohort.Meet(kRank0, {.layer = 0, .call = call}, {8, 8}).ok());
    const int64_t extent = call == 0 ? 8 : 4;
    ExpectOk(cohort.Meet(kRank1, {.layer = 0, .call = call}, {extent, 8}));
  }
  ASSERT_TRUE(Reduce(cohort, kRank1, 1).ok());
  cohort.PushBoth({});
  EXPECT_THAT(
      EndOf(cohort),
      HasSubstr("extents [8, 8], that of rank 1 [4, 8]; a rank left out"));
}

// ---- closings that are not true

TEST(CoordinatorCallsTest, AProcessThatContradictsItselfIsFencedAlsoOfTwo) {
  StartedCohort cohort(Global(2));
  ReduceAll(cohort, {kRank0, kRank1});
  PushWith(cohort, kRank0, {1, 1});
  PushWith(cohort, kRank1, {1, 2});
  const auto ended = cohort.Only<effect::EndSession>();
  EXPECT_EQ(ended.session, cohort.session(kRank1));
  EXPECT_THAT(ended.status,
              IsError(kAborted, "step 0 2 calls of bn2, but took part in 1"));
  EXPECT_EQ(cohort.told(kRank0).attempt, Attempt(1));
  EXPECT_EQ(cohort.Status().vacancies.at(VacancyReason::kMismatch), 1);
  // Its replacement does it again.
  cohort.StartOne(kRank1);
  ReduceAll(cohort, {kRank0, kRank1});
  PushWith(cohort, kRank1, {1, 2});
  EXPECT_THAT(EndOf(cohort), HasSubstr("rank 1 was already replaced"));
}

TEST(CoordinatorCallsTest, AProcessThatMiscountsItsContributionsIsFenced) {
  StartedCohort cohort(Continuing(Global(2)));
  ReduceAll(cohort, {kRank0, kRank1});
  ASSERT_TRUE(cohort.Open(kRank1, {}).ok());
  ExpectOk(cohort.Close(
      kRank1, PushClosing{.batch_norm_calls = {1, 1}, .contributions = 3}));
  EXPECT_THAT(cohort.Only<effect::EndSession>().status,
              IsError(kAborted, "3 contributions to rendezvous, but made 2"));
  // The other one continues.
  ReduceAll(cohort, {kRank0});
  PushWith(cohort, kRank0, {1, 1});
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
}

TEST(CoordinatorCallsTest, ACallAfterTheClosingIsAContradiction) {
  StartedCohort cohort(Global(2));
  ASSERT_TRUE(Reduce(cohort, kRank0, 0).ok());
  ASSERT_TRUE(Reduce(cohort, kRank1, 0).ok());
  PushWith(cohort, kRank1, {1, 0});
  ASSERT_TRUE(Reduce(cohort, kRank1, 1).ok());
  EXPECT_THAT(cohort.Only<effect::EndSession>().status,
              IsError(kAborted, "call 0 of bn2 of step 0 after"));
}

// The first incarnation of rank 0 made a call that its replacement omits.
TEST(CoordinatorCallsTest, AReplacementThatDiffersRepeatsTheStepOnly) {
  StartedCohort cohort(Global(2));
  for (Rank rank : {kRank0, kRank1}) {
    ASSERT_TRUE(Reduce(cohort, rank, 0).ok());
  }
  ASSERT_TRUE(Reduce(cohort, kRank0, 0, 1).ok());
  cohort.Leave(kRank0);
  cohort.StartOne(kRank0);
  ASSERT_TRUE(Reduce(cohort, kRank0, 0).ok());
  cohort.Push(kRank1, {});
  cohort.Push(kRank0, {});
  EXPECT_EQ(cohort.snapshot()->version, Version(0));
  EXPECT_EQ(cohort.told(kRank0).attempt, Attempt(1));
  EXPECT_EQ(cohort.counter("workers_lost"), 1);
  EXPECT_THAT(cohort.log(), HasSubstr("rank 0 made 1 contributions in step 0"));
}

TEST(CoordinatorCallsTest, ARankThatHasMadeAStepSinceIsFencedAgain) {
  FakeSetup setup = Global(2);
  setup.options.epochs = 5;
  StartedCohort cohort(setup);
  const auto lie = [&cohort] {
    ReduceAll(cohort, {kRank0, kRank1});
    PushWith(cohort, kRank1, {0, 1});
    cohort.StartOne(kRank1);
  };
  lie();
  ReduceAll(cohort, {kRank0, kRank1});
  for (Rank rank : {kRank0, kRank1}) PushWith(cohort, rank, {1, 1});
  ASSERT_EQ(cohort.snapshot()->version, Version(1));
  lie();
  EXPECT_FALSE(cohort.core().ended());
  EXPECT_EQ(cohort.counter("workers_lost"), 2);
}

// ---- the first K

TEST(CoordinatorCallsTest, RanksWithoutCallsMakeAStepOfTheFirstK) {
  FakeSetup setup = Global(3);
  setup.options.policy.pushes_min = 2;
  StartedCohort cohort(setup);
  // One claims by its moments, one by its closing.
  ASSERT_TRUE(Reduce(cohort, kRank2, 0).ok());
  EXPECT_THAT(cohort.All<effect::ReduceResult>(), IsEmpty());
  cohort.Push(kRank0, {});
  EXPECT_EQ(cohort.Only<effect::ReduceResult>().rank, kRank2);
  EXPECT_EQ(cohort.All<effect::StepAborted>().size(), 1);
  cohort.Push(kRank2, {});
  ASSERT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_THAT(cohort.All<effect::Committed>()[0].record.members,
              ElementsAre(kRank0, kRank2));
  // Two closings do, too.
  cohort.Push(kRank1, {});
  cohort.Push(kRank2, {});
  EXPECT_EQ(cohort.snapshot()->version, Version(2));
}

// ---- groups: ranks 0 and 1 are one; rank 2 is alone in the other

FakeSetup Grouped() {
  FakeSetup setup = Global(3);
  setup.options.policy.normalization_group = 2;
  return setup;
}

TEST(CoordinatorCallsTest, AGroupThatDoesNotMakeACallLeavesItToTheOther) {
  StartedCohort cohort(Grouped());
  ReduceAll(cohort, {kRank2});
  cohort.Push(kRank2, {});
  ASSERT_TRUE(Reduce(cohort, kRank0, 0).ok());
  ASSERT_TRUE(Reduce(cohort, kRank1, 0).ok());
  cohort.PushBoth({});
  ASSERT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_EQ(StatisticsOf(cohort, 0).num_batches_tracked, 1);
  EXPECT_EQ(StatisticsOf(cohort, 1).num_batches_tracked, 1);
}

TEST(CoordinatorCallsTest, ADoomedGroupLetsTheOtherOneFinishItsPart) {
  StartedCohort cohort(Grouped());
  AgainstTheOrderOfRegistration(cohort);
  cohort.Push(kRank0, {});
  ASSERT_TRUE(Reduce(cohort, kRank1, 0).ok());
  // Rank 2 computes.
  EXPECT_EQ(cohort.counter("steps_aborted"), 0);
  ReduceAll(cohort, {kRank2});
  EXPECT_EQ(cohort.counter("steps_aborted"), 0);
  cohort.Push(kRank2, {});
  EXPECT_EQ(cohort.counter("steps_repeated_for_order"), 1);
}

// ---- for people

TEST(CoordinatorCallsTest, StatusNamesTheCallThatARankWaitsIn) {
  StartedCohort cohort(Global(2));
  ASSERT_TRUE(Reduce(cohort, kRank1, 1).ok());
  EXPECT_EQ(cohort.Status().workers[1].waits_in, "call 0 of bn2");
  cohort.Pass(absl::Seconds(1));
  const StatusView status = cohort.Status();
  EXPECT_THAT(status.state, HasSubstr("rank 1 waits in call 0 of bn2"));
  EXPECT_EQ(status.workers[0].waits_in, "");
  cohort.Pass(absl::Seconds(2));
  EXPECT_THAT(
      cohort.Status().state,
      HasSubstr("gives up in 4 min 57 s; rank 1 waits in call 0 of bn2"));
}

}  // namespace
}  // namespace cohort
