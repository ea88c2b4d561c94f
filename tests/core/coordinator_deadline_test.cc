#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using testing::IsEmpty;

constexpr absl::Duration kStep = absl::Minutes(5);
constexpr absl::Duration kABit = absl::Seconds(1);

Moments Zero() { return {.count = 1, .first = {0}, .second = {0}}; }

TEST(CoordinatorDeadlineTest, HitsOnlyTheOneThatBlocksOthers) {
  StartedCohort cohort(SmallSetup());
  cohort.Push(kRank0, {});
  cohort.Pass(kStep + kABit);
  EXPECT_EQ(cohort.counter("workers_lost"), 1);
  const auto ended = cohort.Only<effect::EndSession>();
  EXPECT_EQ(ended.session, cohort.session(kRank1));
  EXPECT_EQ(ended.status, absl::AbortedError("no progress for 5 min 1 s"));
}

TEST(CoordinatorDeadlineTest, SparesWhoWaitsInARendezvous) {
  StartedCohort cohort(GlobalSetup());
  ASSERT_TRUE(cohort.Reduce(kRank0, {}, Zero()).ok());
  cohort.Pass(kStep + kABit);
  EXPECT_EQ(cohort.Only<effect::EndSession>().session, cohort.session(kRank1));
}

// The session broke, but the data streams may be intact, one of them paused
// with a gradient in hand.
TEST(CoordinatorDeadlineTest, StreamsOfARankThatDoesNotReturnEndWithItsGrace) {
  StartedCohort cohort(SmallSetup());
  cohort.BreakSession(kRank1);
  EXPECT_THAT(cohort.All<effect::EndSession>(), IsEmpty());
  cohort.PassWithHeartbeatsOf({kRank0}, absl::Seconds(1));
  EXPECT_EQ(cohort.counter("workers_lost"), 1);
  EXPECT_EQ(cohort.Only<effect::EndSession>().session, cohort.session(kRank1));
}

// Rank 0 waited nine minutes for the replacement of rank 1. It holds up others
// only from the moment when it gets its answer.
TEST(CoordinatorDeadlineTest, CountsFromTheEndOfALongRendezvous) {
  StartedCohort cohort(GlobalSetup());
  ASSERT_TRUE(cohort.Reduce(kRank0, {}, Zero()).ok());
  cohort.Leave(kRank1);
  cohort.Pass(absl::Minutes(9));
  cohort.StartOne(kRank1);
  ASSERT_TRUE(cohort.Reduce(kRank1, {}, Zero()).ok());
  cohort.Clear();
  cohort.Pass(kABit);
  EXPECT_THAT(cohort.All<effect::EndSession>(), IsEmpty());
  EXPECT_EQ(cohort.counter("workers_lost"), 1);
}

TEST(CoordinatorDeadlineTest, ProgressStartsItAgain) {
  StartedCohort cohort(SmallSetup());
  cohort.Push(kRank0, {});
  cohort.Pass(kStep - kABit);
  ASSERT_TRUE(cohort.Open(kRank1, {}).ok());
  cohort.Pass(2 * kABit);
  EXPECT_EQ(cohort.counter("workers_lost"), 0);
}

TEST(CoordinatorDeadlineTest, HitsAWorkerThatOnlyRepeatsItself) {
  StartedCohort cohort(GlobalSetup());
  cohort.ReduceBoth({}, Zero());
  cohort.Push(kRank0, {});
  cohort.Send(kRank1, {}, {0});
  for (int minute = 0; minute < 5; ++minute) {
    cohort.Pass(absl::Minutes(1));
    EXPECT_EQ(cohort.counter("workers_lost"), 0);
    ASSERT_TRUE(cohort.Register(kRank1).ok());
    ASSERT_TRUE(cohort.Reduce(kRank1, {}, Zero()).ok());
    cohort.Send(kRank1, {}, {0});
    EXPECT_FALSE(cohort.Report(kRank1).ok());
  }
  cohort.Pass(kABit);
  EXPECT_EQ(cohort.counter("workers_lost"), 1);
}

// Each part is new for the replacement, although the server has it.
TEST(CoordinatorDeadlineTest, AReplacementThatCatchesUpMakesProgress) {
  StartedCohort cohort(GlobalSetup());
  cohort.ReduceBoth({}, Zero());
  ASSERT_TRUE(cohort.Open(kRank1, {}).ok());
  cohort.Push(kRank0, {});
  cohort.Leave(kRank1);
  cohort.StartOne(kRank1);
  cohort.Pass(absl::Minutes(4));
  ASSERT_TRUE(cohort.Reduce(kRank1, {}, Zero()).ok());
  cohort.Pass(absl::Minutes(4));
  ASSERT_TRUE(cohort.Open(kRank1, {}).ok());
  cohort.Pass(absl::Minutes(4));
  EXPECT_EQ(cohort.counter("workers_lost"), 1);
}

TEST(CoordinatorDeadlineTest, HitsAnEvaluationThatDoesNotCome) {
  FakeSetup setup = SmallSetup();
  setup.plan.train_samples = 4;
  StartedCohort cohort(setup);
  cohort.PushBoth({});
  ASSERT_EQ(cohort.told(kRank1).kind, AssignmentKind::kEvaluate);
  ASSERT_TRUE(cohort.Report(kRank0).ok());
  cohort.Pass(kStep + kABit);
  EXPECT_EQ(cohort.counter("workers_lost"), 1);
  EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kEvaluate);
}

// A process that joined and hangs before it registers still renews its lease.
TEST(CoordinatorDeadlineTest, HitsAReplacementThatNeverRegisters) {
  StartedCohort cohort(SmallSetup());
  cohort.Push(kRank1, {});
  cohort.Leave(kRank0);
  ASSERT_TRUE(cohort.Join(kRank0).ok());
  cohort.Pass(kStep + kABit);
  EXPECT_EQ(cohort.counter("workers_lost"), 2);
  EXPECT_TRUE(cohort.Join(kRank0).ok());
}

TEST(CoordinatorDeadlineTest, WithoutAReplacementTheRunEnds) {
  StartedCohort cohort(SmallSetup());
  cohort.Leave(kRank0);
  cohort.Push(kRank1, {});
  EXPECT_THAT(cohort.core().Status(absl::Seconds(130)).state,
              HasSubstr("worker 0, 30 s, gives up in 9 min 30 s"));
  cohort.Pass(absl::Minutes(10));
  EXPECT_FALSE(cohort.core().ended());
  cohort.Pass(kABit);
  const auto ended = cohort.Only<effect::RunEnded>();
  EXPECT_EQ(ended.outcome, RunOutcome::kWorkerLost);
  EXPECT_EQ(ended.reason, "no replacement for rank 0 within 10 min 1 s");
  EXPECT_NE(ended.version, nullptr);
  EXPECT_EQ(cohort.told(kRank1).kind, AssignmentKind::kFinished);
  EXPECT_TRUE(cohort.told(kRank1).failed);
  // A restarted server needs this rank.
  EXPECT_TRUE(cohort.told(kRank1).unfinished);
}

// Rank 0's push was complete when the rank was lost, so rank 1's would commit.
TEST(CoordinatorDeadlineTest, NothingIsCommittedAfterTheEnd) {
  StartedCohort cohort(SmallSetup());
  const Assignment before = cohort.told(kRank1);
  cohort.Push(kRank0, {});
  cohort.Leave(kRank0);
  cohort.Pass(absl::Minutes(4));
  ASSERT_TRUE(cohort.Open(kRank1, {}).ok());
  cohort.Pass(absl::Minutes(4));
  ASSERT_TRUE(cohort.Gradient(kRank1, 1, {0}).ok());
  cohort.Pass(absl::Minutes(2) + kABit);
  ASSERT_TRUE(cohort.core().ended());
  cohort.Clear();
  Effects out;
  const PushKey key = FakeCohort::KeyOf(before);
  ExpectOk(cohort.core().Gradient(cohort.sender(kRank1), key, {.bytes = 8},
                                  absl::Seconds(9999), out));
  EXPECT_TRUE(IsForgotten(out));
  EXPECT_EQ(cohort.snapshot()->version, Version(0));
}

TEST(CoordinatorDeadlineTest, ContinueGivesUpOnlyWithNobodyLeft) {
  StartedCohort cohort(Continuing(SmallSetup()));
  cohort.Leave(kRank0);
  for (int i = 0; i < 4; ++i) {
    cohort.Pass(absl::Minutes(4));
    cohort.Push(kRank1, {});
  }
  EXPECT_FALSE(cohort.core().ended());
  cohort.Leave(kRank1);
  const StatusView halted = cohort.core().Status(absl::Seconds(1000));
  EXPECT_EQ(halted.phase, StatusView::Phase::kWaiting);
  EXPECT_THAT(halted.waited_for, ElementsAre(kRank0, kRank1));

  // The last one may be on its way back, whenever the first was lost.
  cohort.Pass(absl::Minutes(10));
  EXPECT_FALSE(cohort.core().ended());
  cohort.Pass(kABit);
  EXPECT_EQ(cohort.Only<effect::RunEnded>().outcome, RunOutcome::kWorkerLost);
}

}  // namespace
}  // namespace cohort
