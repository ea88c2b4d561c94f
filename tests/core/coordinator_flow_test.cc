// Pausing and resuming streams when there is no room for gradients.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using testing::HasSubstr;

// Partition 0 has 8 bytes of gradients, partition 1 has 4.
constexpr int64_t kPushBytes = 12;

FakeSetup Limited(FakeSetup setup, int64_t limit_bytes) {
  setup.options.inflight_bytes_max = limit_bytes;
  return Long(std::move(setup));
}

// Opens its push and sends partition 1, and partition 0 if `whole`.
void Send(FakeCohort& cohort, Rank rank, bool whole) {
  cohort.Send(rank, {.w = {1, 2}, .b = {1}},
              whole ? std::vector<int32_t>{1, 0} : std::vector<int32_t>{1});
}

std::string ActivityOf(FakeCohort& cohort, Rank rank) {
  const StatusView status = cohort.Status();
  return std::string(
      status.workers[static_cast<size_t>(rank.value())].activity);
}

TEST(CoordinatorFlowTest, RankAheadIsPausedUntilTheOthersCatchUp) {
  StartedCohort cohort(Limited(SmallSetup(), 8));
  Send(cohort, kRank0, false);
  EXPECT_FALSE(cohort.paused(kRank0));
  // 4 bytes are held, 8 more do not fit, and rank 1 has sent less.
  ASSERT_TRUE(cohort.Gradient(kRank0, 0, {1, 2}).ok());
  EXPECT_TRUE(cohort.paused(kRank0));
  EXPECT_EQ(ActivityOf(cohort, kRank0), "paused");
  EXPECT_EQ(cohort.core().inflight_bytes(), 4);

  Send(cohort, kRank1, false);
  // Folding partition 1 made room.
  EXPECT_FALSE(cohort.paused(kRank0));
  ASSERT_TRUE(cohort.Gradient(kRank1, 0, {1, 2}).ok());
  ASSERT_TRUE(cohort.Close(kRank0, FakePush{}).ok());
  ASSERT_TRUE(cohort.Close(kRank1, FakePush{}).ok());
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_EQ(cohort.core().inflight_bytes(), 0);
}

TEST(CoordinatorFlowTest, NoLimitStopsAStepAndNoneChangesIt) {
  FakeCohort unlimited(Limited(SmallSetup(), 1 << 20));
  FakeCohort limited(Limited(SmallSetup(), 1));
  for (FakeCohort* cohort : {&unlimited, &limited}) {
    cohort->Start();
    for (int step = 0; step < 3; ++step) {
      for (Rank rank : {kRank1, kRank0}) {
        ASSERT_TRUE(cohort->Open(rank, {}).ok());
      }
      for (int32_t partition : {1, 0}) {
        for (Rank rank : {kRank1, kRank0}) {
          const auto value = static_cast<float>(step + rank.value());
          ExpectOk(cohort->Gradient(
              rank, partition,
              std::vector<float>(partition == 0 ? 2 : 1, value)));
        }
      }
      for (Rank rank : {kRank1, kRank0}) {
        ASSERT_TRUE(cohort->Close(rank, FakePush{}).ok());
      }
    }
    EXPECT_EQ(cohort->snapshot()->version, Version(3));
  }
  EXPECT_EQ(limited.weights(0), unlimited.weights(0));
  EXPECT_EQ(limited.weights(1), unlimited.weights(1));
}

// While a fold is about to make room, no rank is let in over the limit.
TEST(CoordinatorFlowTest, FoldUnderWayIsWaitedFor) {
  StartedCohort cohort(Limited(SmallSetup(), 8));
  cohort.HoldFolds();
  for (Rank rank : {kRank0, kRank1}) {
    Send(cohort, rank, false);
  }
  ASSERT_TRUE(cohort.Gradient(kRank0, 0, {1, 2}).ok());
  EXPECT_TRUE(cohort.paused(kRank0));
  cohort.RunFolds();
  EXPECT_FALSE(cohort.paused(kRank0));
}

TEST(CoordinatorFlowTest, DeadlineHitsTheRankThatIsWaitedForNotThePausedOne) {
  StartedCohort cohort(Limited(SmallSetup(), 4));
  Send(cohort, kRank0, true);
  ASSERT_TRUE(cohort.paused(kRank0));
  cohort.Pass(absl::Seconds(3));
  const StatusView status = cohort.Status();
  EXPECT_THAT(status.state, HasSubstr("waiting for worker 1, 3 s"));
  EXPECT_THAT(status.state, HasSubstr("worker 0 paused"));
  EXPECT_THAT(status.state, HasSubstr("--inflight_mib"));
  cohort.Pass(absl::Minutes(5));
  EXPECT_EQ(cohort.Only<effect::EndSession>().session, cohort.session(kRank1));
}

TEST(CoordinatorFlowTest, ReplacementIsLetInAndTheOthersGoOn) {
  StartedCohort cohort(Limited(SmallSetup(), 4));
  Send(cohort, kRank0, true);
  ASSERT_TRUE(cohort.Open(kRank1, {}).ok());
  cohort.Leave(kRank1);
  EXPECT_TRUE(cohort.paused(kRank0));
  cohort.StartOne(kRank1);
  Send(cohort, kRank1, false);
  EXPECT_FALSE(cohort.paused(kRank0));
}

// The paused rank has left out the batch norm that the other one waits in. The
// call is completed without it once it has closed its push.
TEST(CoordinatorFlowTest, PausedRankThatOthersWaitForIsLetIn) {
  StartedCohort cohort(Limited(GlobalSetup(), 4));
  ExpectOk(
      cohort.Reduce(kRank0, {}, {.count = 1, .first = {0}, .second = {0}}));
  Send(cohort, kRank1, true);
  ASSERT_TRUE(cohort.paused(kRank1));
  cohort.Pass(absl::Milliseconds(900));
  EXPECT_TRUE(cohort.paused(kRank1));
  cohort.Pass(absl::Milliseconds(200));
  EXPECT_FALSE(cohort.paused(kRank1));
}

// The first moments and closings fix the step's members. One of the two
// remaining candidates sends no moments, and the limit has no room for its
// whole push.
TEST(CoordinatorFlowTest, PausedCandidateThatSkipsItsRendezvousIsLetIn) {
  StartedCohort cohort(Limited(Continuing(FirstTwo(GlobalSetup())), 1));
  cohort.Leave(kRank2);
  Send(cohort, kRank0, false);
  EXPECT_TRUE(cohort.paused(kRank0));
  ExpectOk(cohort.Reduce(kRank1, {.step = Version(0)},
                         {.count = 2, .first = {0}, .second = {0}}));
  cohort.Pass(absl::Seconds(3));
  EXPECT_FALSE(cohort.paused(kRank0));
  EXPECT_EQ(cohort.core().inflight_bytes(), 4);
  ASSERT_TRUE(cohort.Gradient(kRank0, 0, {0, 0}).ok());
  ExpectOk(
      cohort.Close(kRank0, PushClosing{.labels = 1, .batch_norm_calls = {0}}));
  // The call is completed without it.
  EXPECT_EQ(cohort.All<effect::ReduceResult>().size(), 1);
  cohort.Push(kRank1, {});
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
}

// Repeated messages take no room, however little there is.
TEST(CoordinatorFlowTest, RepeatedMessagesAreNeverPaused) {
  StartedCohort cohort(Limited(SmallSetup(), 4));
  Send(cohort, kRank0, false);
  ASSERT_TRUE(cohort.Gradient(kRank0, 1, {1}).ok());
  EXPECT_FALSE(cohort.paused(kRank0));
  EXPECT_EQ(cohort.core().inflight_bytes(), 4);
  EXPECT_EQ(cohort.counter("pushes_duplicate"), 1);
}

TEST(CoordinatorFlowTest, AbortedAttemptLetsEverybodyGoOn) {
  StartedCohort cohort(Continuing(Limited(SmallSetup(), 4)));
  Send(cohort, kRank0, true);
  ASSERT_TRUE(cohort.paused(kRank0));
  cohort.Leave(kRank1);
  EXPECT_FALSE(cohort.paused(kRank0));
  EXPECT_EQ(cohort.core().inflight_bytes(), 0);
  cohort.Push(kRank0, {});
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
}

TEST(CoordinatorFlowTest, AsynchronousPushesAreLetInWholeFirstComeFirstServed) {
  StartedCohort cohort(Limited(AsyncSetup(), kPushBytes));
  ASSERT_TRUE(cohort.Open(kRank0, {}).ok());
  ASSERT_TRUE(cohort.Open(kRank1, {}).ok());
  EXPECT_EQ(cohort.core().inflight_bytes(), kPushBytes);
  ASSERT_TRUE(cohort.Gradient(kRank1, 0, {1, 2}).ok());
  EXPECT_TRUE(cohort.paused(kRank1));
  ASSERT_TRUE(cohort.Gradient(kRank0, 0, {1, 2}).ok());
  ASSERT_TRUE(cohort.Gradient(kRank0, 1, {1}).ok());
  EXPECT_TRUE(cohort.paused(kRank1));
  ASSERT_TRUE(cohort.Close(kRank0, FakePush{}).ok());
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_FALSE(cohort.paused(kRank1));
  ASSERT_TRUE(cohort.Gradient(kRank1, 1, {1}).ok());
  ASSERT_TRUE(cohort.Close(kRank1, FakePush{}).ok());
  EXPECT_EQ(cohort.snapshot()->version, Version(2));
  EXPECT_EQ(cohort.core().inflight_bytes(), 0);
}

TEST(CoordinatorFlowTest, LostRankGivesItsRoomBack) {
  for (const bool waits : {true, false}) {
    FakeSetup setup = Limited(AsyncSetup(), kPushBytes);
    setup.options.on_worker_loss =
        waits ? OnWorkerLoss::kWait : OnWorkerLoss::kContinue;
    StartedCohort cohort(setup);
    ASSERT_TRUE(cohort.Open(kRank0, {}).ok());
    ASSERT_TRUE(cohort.Gradient(kRank0, 0, {1, 2}).ok());
    ASSERT_TRUE(cohort.Open(kRank1, {}).ok());
    ASSERT_TRUE(cohort.Gradient(kRank1, 0, {1, 2}).ok());
    ASSERT_TRUE(cohort.paused(kRank1));
    cohort.Leave(kRank0);
    EXPECT_FALSE(cohort.paused(kRank1));
  }
}

// A rank that dies while its push has a reservation must not block the other
// ranks of a step that does not need it.
TEST(CoordinatorFlowTest, BackupRankTakesTheRoomOfALostOne) {
  StartedCohort cohort(Limited(FirstTwo(SmallSetup()), 2 * kPushBytes));
  for (Rank rank : {kRank0, kRank1, kRank2}) {
    ASSERT_TRUE(cohort.Open(rank, {}).ok());
  }
  ASSERT_TRUE(cohort.Gradient(kRank0, 0, {1, 2}).ok());
  ASSERT_TRUE(cohort.Gradient(kRank2, 0, {1, 2}).ok());
  EXPECT_TRUE(cohort.paused(kRank2));
  cohort.Leave(kRank0);
  EXPECT_FALSE(cohort.paused(kRank2));
  for (Rank rank : {kRank1, kRank2}) {
    if (rank == kRank1) {
      ASSERT_TRUE(cohort.Gradient(rank, 0, {1, 2}).ok());
    }
    ASSERT_TRUE(cohort.Gradient(rank, 1, {1}).ok());
    ASSERT_TRUE(cohort.Close(rank, FakePush{}).ok());
  }
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
}

TEST(CoordinatorFlowTest, DroppedRankGoesOn) {
  StartedCohort cohort(Limited(FirstTwo(SmallSetup()), 2 * kPushBytes));
  for (Rank rank : {kRank0, kRank1, kRank2}) {
    ASSERT_TRUE(cohort.Open(rank, {}).ok());
  }
  ASSERT_TRUE(cohort.Gradient(kRank2, 0, {1, 2}).ok());
  ASSERT_TRUE(cohort.paused(kRank2));
  for (Rank rank : {kRank0, kRank1}) {
    ASSERT_TRUE(cohort.Gradient(rank, 0, {1, 2}).ok());
    ASSERT_TRUE(cohort.Gradient(rank, 1, {1}).ok());
    ASSERT_TRUE(cohort.Close(rank, FakePush{}).ok());
  }
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_FALSE(cohort.paused(kRank2));
  EXPECT_EQ(cohort.core().inflight_bytes(), 0);
}

TEST(CoordinatorFlowTest, ModelThatDoesNotFitIsRefusedAtItsRegistration) {
  FakeCohort cohort(Limited(AsyncSetup(), kPushBytes - 1));
  ASSERT_TRUE(cohort.Join(kRank0).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(cohort.Register(kRank0)));
}

TEST(CoordinatorFlowTest, PolicyThatThereIsNoRoomForIsRefused) {
  StartedCohort cohort(Limited(SmallSetup(), kPushBytes - 1));
  const auto answer = cohort.Change({{"aggregation", "async"}});
  EXPECT_TRUE(absl::IsFailedPrecondition(answer.status()));
}

// Without a model the change is accepted. At the registration the limit then
// proves too small.
TEST(CoordinatorFlowTest, ChangeFromBeforeTheModelIsCheckedAtItsRegistration) {
  FakeCohort cohort(Limited(SmallSetup(), kPushBytes - 1));
  ASSERT_TRUE(cohort.Change({{"aggregation", "async"}}).ok());
  ASSERT_TRUE(cohort.Join(kRank0).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(cohort.Register(kRank0)));
}

}  // namespace
}  // namespace cohort
