// Which worker's model a run begins with, and what workers receive before that.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

FakeSetup ThreeWorkers() { return WithWorkers(SmallSetup(), 3); }

// Joins and sends its layout.
void Offer(FakeCohort& cohort, Rank rank) {
  ASSERT_TRUE(cohort.Join(rank).ok());
  ASSERT_TRUE(cohort.Register(rank).ok());
}

void OfferAll(FakeCohort& cohort) {
  for (Rank rank : {kRank0, kRank1, kRank2}) Offer(cohort, rank);
}

bool Asked(FakeCohort& cohort, Rank rank) {
  const auto& answer = cohort.answer(rank);
  return answer.has_value() && answer->ok() && (*answer)->send_values;
}

// Whichever rank comes first, training starts from the lowest rank's values.
TEST(CoordinatorRegistrationTest, TheOrderOfArrivalDoesNotDecideTheValues) {
  const std::vector<std::vector<Rank>> orders = {{kRank0, kRank1, kRank2},
                                                 {kRank2, kRank1, kRank0},
                                                 {kRank1, kRank2, kRank0}};
  for (const std::vector<Rank>& order : orders) {
    FakeCohort cohort(ThreeWorkers());
    cohort.HoldValues();
    for (Rank rank : order) {
      EXPECT_FALSE(Asked(cohort, rank));
      Offer(cohort, rank);
    }
    EXPECT_TRUE(Asked(cohort, kRank0));
    for (Rank rank : {kRank1, kRank2}) {
      EXPECT_FALSE(cohort.answer(rank).has_value());
      EXPECT_TRUE(absl::IsFailedPrecondition(cohort.SendValues(rank, 7)));
    }
    ASSERT_TRUE(cohort.SendValues(kRank0, 5).ok());
    EXPECT_EQ(cohort.weights(0)[0], 5);
    for (Rank rank : {kRank1, kRank2}) {
      ASSERT_TRUE(cohort.answer(rank).has_value());
      EXPECT_FALSE((*cohort.answer(rank))->send_values);
    }
    for (Rank rank : order) EXPECT_TRUE(Trains(cohort, rank));
  }
}

// The stream of rank 0 can carry no values any more.
TEST(CoordinatorRegistrationTest, AClientThatHasClosedItsSideIsNotAsked) {
  FakeCohort cohort(ThreeWorkers());
  cohort.HoldValues();
  Offer(cohort, kRank0);
  cohort.CloseRegistration(kRank0);
  Offer(cohort, kRank1);
  Offer(cohort, kRank2);
  EXPECT_FALSE(cohort.answer(kRank0).has_value());
  EXPECT_TRUE(Asked(cohort, kRank1));
  ASSERT_TRUE(cohort.SendValues(kRank1, 5).ok());
  EXPECT_EQ(cohort.weights(0)[0], 5);
  for (Rank rank : {kRank0, kRank1, kRank2}) {
    EXPECT_TRUE(Trains(cohort, rank));
  }
}

// The stream of the one that was asked ends with another error.
TEST(CoordinatorRegistrationTest, IfNoClientCanSendValuesTheOthersAreToldSo) {
  FakeCohort cohort(SmallSetup());
  cohort.HoldValues();
  Offer(cohort, kRank0);
  cohort.CloseRegistration(kRank0);
  Offer(cohort, kRank1);
  EXPECT_TRUE(Asked(cohort, kRank1));
  cohort.CloseRegistration(kRank1);
  ASSERT_TRUE(cohort.answer(kRank0).has_value());
  EXPECT_THAT(cohort.answer(kRank0)->status(),
              IsError(kFailedPrecondition, "keep the stream open"));
  EXPECT_EQ(cohort.counter("workers_lost"), 0);
}

TEST(CoordinatorRegistrationTest, StatusSaysWhoIsWaitedFor) {
  FakeCohort cohort(SmallSetup());
  cohort.HoldValues();
  Offer(cohort, kRank1);
  StatusView view = cohort.Status();
  EXPECT_THAT(view.state, HasSubstr("worker 0 to join and register"));
  // No worker is late yet.
  EXPECT_EQ(view.waiting, absl::ZeroDuration());
  EXPECT_EQ(cohort.told(kRank1).reason, view.state);
  Offer(cohort, kRank0);
  EXPECT_THAT(cohort.told(kRank1).reason, HasSubstr("up in 30 s"));
  // Sending the values has no time limit.
  EXPECT_EQ(cohort.told(kRank1).wait, absl::InfiniteDuration());
  cohort.Pass(absl::Seconds(10));
  view = cohort.Status();
  EXPECT_THAT(view.state, HasSubstr("up in 20 s"));
  EXPECT_EQ(view.phase, StatusView::Phase::kWaiting);
  EXPECT_EQ(view.waited_for, std::vector<Rank>{kRank0});
  EXPECT_EQ(view.waiting, absl::Seconds(10));
}

TEST(CoordinatorRegistrationTest, WithoutProgressTheNextIsAsked) {
  FakeCohort cohort(ThreeWorkers());
  cohort.HoldValues();
  OfferAll(cohort);
  for (int i = 0; i < 3; ++i) {
    cohort.Pass(absl::Seconds(29));
    ExpectOk(
        cohort.core().RegisterProgress(cohort.sender(kRank0), cohort.now()));
  }
  EXPECT_FALSE(Asked(cohort, kRank1));
  cohort.Pass(absl::Seconds(31));
  EXPECT_TRUE(Asked(cohort, kRank1));
  const auto ended = cohort.Only<effect::EndSession>();
  EXPECT_EQ(ended.session, cohort.session(kRank0));
  EXPECT_THAT(ended.status, IsError(kAborted, "received nothing for 31 s"));
  // The slow worker's values now come too late.
  EXPECT_TRUE(absl::IsAborted(cohort.SendValues(kRank0, 5)));
  ASSERT_TRUE(cohort.SendValues(kRank1, 6).ok());
  EXPECT_EQ(cohort.weights(0)[0], 6);
  // Training needs all ranks; the model of the returning one is only compared.
  EXPECT_FALSE(Trains(cohort, kRank1));
  Offer(cohort, kRank0);
  EXPECT_FALSE(Asked(cohort, kRank0));
  EXPECT_TRUE(Trains(cohort, kRank0));
}

TEST(CoordinatorRegistrationTest,
     ARankThatIsLostWhileAskedIsFollowedByTheNext) {
  FakeCohort cohort(ThreeWorkers());
  cohort.HoldValues();
  OfferAll(cohort);
  cohort.Leave(kRank0);
  EXPECT_TRUE(Asked(cohort, kRank1));
  // The replacement does not overtake the rank whose values are requested now.
  Offer(cohort, kRank0);
  EXPECT_FALSE(Asked(cohort, kRank0));
  cohort.Leave(kRank1);
  EXPECT_TRUE(Asked(cohort, kRank0));
  ASSERT_TRUE(cohort.SendValues(kRank0, 4).ok());
  EXPECT_EQ(cohort.weights(0)[0], 4);
}

// The answer went to the stream that broke.
TEST(CoordinatorRegistrationTest, ARankThatRegistersAgainIsAskedAgain) {
  FakeCohort cohort(SmallSetup());
  cohort.HoldValues();
  Offer(cohort, kRank0);
  Offer(cohort, kRank1);
  cohort.BreakSession(kRank0);
  EXPECT_FALSE(Asked(cohort, kRank1));
  ASSERT_TRUE(cohort.Join(kRank0, cohort.incarnation(kRank0)).ok());
  ASSERT_TRUE(cohort.Register(kRank0).ok());
  EXPECT_TRUE(Asked(cohort, kRank0));
  ASSERT_TRUE(cohort.SendValues(kRank0).ok());
  // A second copy, as over two streams of one incarnation, changes nothing.
  ASSERT_TRUE(cohort.SendValues(kRank0, 9).ok());
  EXPECT_EQ(cohort.weights(0)[0], 1);
}

// This holds even if the other rank came first.
TEST(CoordinatorRegistrationTest, TheLowestRanksModelRulesAndNothingIsFixed) {
  for (const bool lowest_first : {true, false}) {
    const FakeSetup setup = SmallSetup();
    ModelLayout other = setup.layout;
    other.parameters[0].shape = {3};
    FakeCohort cohort(setup);
    ASSERT_TRUE(cohort.Join(kRank0).ok());
    ASSERT_TRUE(cohort.Join(kRank1).ok());
    if (lowest_first) {
      EXPECT_TRUE(cohort.Register(kRank0).ok());
    }
    cohort.Register(kRank1, other).IgnoreError();
    if (!lowest_first) {
      EXPECT_TRUE(cohort.Register(kRank0).ok());
    }
    ASSERT_TRUE(cohort.answer(kRank1).has_value());
    EXPECT_TRUE(absl::IsFailedPrecondition(cohort.answer(kRank1)->status()));
    EXPECT_EQ(cohort.core().model(), nullptr);
    EXPECT_THAT(cohort.log(), HasSubstr("rank 1 is refused"));
    // The lowest rank may also be the wrong one, and be restarted.
    cohort.Leave(kRank0);
    ASSERT_TRUE(cohort.Register(kRank1).ok());
    cohort.StartOne(kRank0);
    EXPECT_TRUE(Trains(cohort, kRank1));
  }
}

TEST(CoordinatorRegistrationTest, WhileOneIsAskedOthersAreComparedWithIt) {
  const FakeSetup setup = ThreeWorkers();
  ModelLayout other = setup.layout;
  other.parameters[1].name = "bias";
  FakeCohort cohort(setup);
  cohort.HoldValues();
  OfferAll(cohort);
  cohort.Leave(kRank2);
  ASSERT_TRUE(cohort.Join(kRank2).ok());
  EXPECT_THAT(cohort.Register(kRank2, other),
              IsError(kFailedPrecondition, "worker 0"));
  EXPECT_TRUE(cohort.Register(kRank2).ok());
}

TEST(CoordinatorRegistrationTest, LaterModelsAreComparedByName) {
  const FakeSetup setup = SmallSetup();
  StartedCohort cohort(setup);
  cohort.Leave(kRank1);
  ASSERT_TRUE(cohort.Join(kRank1).ok());
  cohort.Clear();
  ModelLayout layout = setup.layout;
  layout.parameters[0].shape = {3};
  EXPECT_THAT(cohort.Register(kRank1, layout),
              IsError(kFailedPrecondition, "w: got shape [3], want [2]"));
  RunPlan plan = setup.plan;
  plan.dataset_digest = "cd";
  Effects out;
  EXPECT_THAT(cohort.core().BeginRegister(cohort.sender(kRank1), setup.layout,
                                          plan, cohort.now(), out),
              IsError(kFailedPrecondition, "data set digest cd, want ab"));
  EXPECT_THAT(out, IsEmpty());
}

TEST(CoordinatorRegistrationTest, ALateJoinerIsAnsweredAtOnce) {
  FakeSetup setup = SmallSetup();
  StartedCohort cohort(setup);
  cohort.Leave(kRank1);
  ASSERT_TRUE(cohort.Join(kRank1).ok());
  setup.plan.loss_reference = 9;
  Effects out;
  ExpectOk(cohort.core().BeginRegister(cohort.sender(kRank1), setup.layout,
                                       setup.plan, cohort.now(), out));
  ASSERT_TRUE(std::holds_alternative<effect::RegisterAnswered>(out[0]));
  const auto& answered = std::get<effect::RegisterAnswered>(out[0]);
  EXPECT_EQ(answered.incarnation, cohort.incarnation(kRank1));
  EXPECT_FALSE(answered.answer->send_values);
  // The reference of the worker that registered the model applies.
  EXPECT_EQ(answered.answer->loss_reference, 4);
  ASSERT_EQ(answered.answer->partitions.size(), 2);
  EXPECT_EQ(answered.answer->partitions[0].elements, 2);
  EXPECT_EQ(answered.answer->partitions[1].elements, 1);
}

// Only a power of two leaves the bits unchanged, whichever worker proposes it.
TEST(CoordinatorRegistrationTest, TheLossReferenceIsRoundedUpToAPowerOfTwo) {
  FakeSetup setup = SmallSetup();
  setup.options.workers = 1;
  setup.plan.loss_reference = 9;
  StartedCohort cohort(setup);
  EXPECT_EQ(cohort.core().model()->plan.loss_reference, 16);
}

TEST(CoordinatorRegistrationTest, RefusesPlansAndStatisticsOfTheWrongShape) {
  FakeSetup setup = SmallSetup();
  setup.options.workers = 1;
  FakeCohort cohort(setup);
  cohort.HoldValues();
  Offer(cohort, kRank0);
  Effects out;
  RunPlan plan = setup.plan;
  plan.loss_reference = 0;
  EXPECT_THAT(cohort.core().BeginRegister(cohort.sender(kRank0), setup.layout,
                                          plan, cohort.now(), out),
              IsError(kInvalidArgument, "plan.loss_reference: got 0"));
  const std::vector<LayerStatistics> wide = {
      {.mean = {0, 0}, .variance = {1, 1}}};
  EXPECT_THAT(
      cohort.core().FinishRegister(cohort.sender(kRank0), setup.layout,
                                   setup.plan, wide, cohort.now(), out),
      IsError(kInvalidArgument, "bn: got statistics of 2 and 2 channels"));
  EXPECT_THAT(
      cohort.core().FinishRegister(cohort.sender(kRank0), setup.layout,
                                   setup.plan, {wide[0], wide[0]}, cohort.now(),
                                   out),
      IsError(kInvalidArgument, "got statistics of 2 batch-norm layers"));
  EXPECT_EQ(cohort.core().model(), nullptr);
}

TEST(CoordinatorRegistrationTest, NothingCanBeReadBeforeIt) {
  Coordinator core(SmallSetup().options);
  EXPECT_TRUE(absl::IsFailedPrecondition(core.Read(std::nullopt).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(core.State().status()));
}

// They must get far enough to read on their session that the run is over.
TEST(CoordinatorRegistrationTest, TheEndOfTheRunAnswersThoseWhoWait) {
  FakeCohort cohort(SmallSetup());
  Offer(cohort, kRank0);
  cohort.Drain("not needed");
  EXPECT_EQ(cohort.Only<effect::RunEnded>().outcome, RunOutcome::kDrained);
  ASSERT_TRUE(cohort.answer(kRank0).has_value());
  ASSERT_TRUE(cohort.answer(kRank0)->ok());
  EXPECT_EQ((*cohort.answer(kRank0))->partitions.size(), 2);
  EXPECT_FALSE((*cohort.answer(kRank0))->send_values);
  EXPECT_EQ(cohort.told(kRank0).reason, "not needed");
  Offer(cohort, kRank1);
  EXPECT_TRUE(cohort.answer(kRank1).has_value());
  EXPECT_EQ(cohort.told(kRank1).kind, AssignmentKind::kFinished);
}

TEST(CoordinatorRegistrationTest, TheEndOfTheRunSparesTheWorkerThatWasAsked) {
  FakeCohort cohort(SmallSetup());
  cohort.HoldValues();
  Offer(cohort, kRank0);
  Offer(cohort, kRank1);
  cohort.Drain("not needed");
  EXPECT_TRUE(cohort.SendValues(kRank0).ok());
  EXPECT_EQ(cohort.core().model(), nullptr);
}

TEST(CoordinatorRegistrationTest, ADrainedWorkerIsAnsweredAndReplaced) {
  for (const bool asked : {false, true}) {
    FakeCohort cohort(SmallSetup());
    cohort.HoldValues();
    Offer(cohort, kRank0);
    if (asked) Offer(cohort, kRank1);
    ASSERT_TRUE(cohort.DrainWorker(kRank0).ok());
    if (asked) {
      ASSERT_TRUE(cohort.SendValues(kRank0).ok());
    }
    ASSERT_TRUE(cohort.answer(kRank0).has_value());
    EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kFinished);
    EXPECT_EQ(cohort.told(kRank0).reason, "drained: told to");
    EXPECT_EQ(cohort.core().model() != nullptr, asked);
  }
}

TEST(CoordinatorRegistrationTest, GrowthWhileOneIsAskedAsksNobodyElse) {
  FakeSetup setup = ThreeWorkers();
  setup.options.workers = 2;
  FakeCohort cohort(setup);
  cohort.HoldValues();
  Offer(cohort, kRank0);
  Offer(cohort, kRank1);
  ASSERT_TRUE(cohort.Change({{"workers", "3"}}).ok());
  // The server does not wait for an additional rank; it compares its model
  // later.
  ASSERT_TRUE(cohort.SendValues(kRank0).ok());
  EXPECT_FALSE(Trains(cohort, kRank0));
  Offer(cohort, kRank2);
  EXPECT_TRUE(Trains(cohort, kRank2));
}

}  // namespace
}  // namespace cohort
