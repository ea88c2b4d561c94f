#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr Instant kNow = absl::Seconds(1);

JoinRequest Anyone() { return {.batch_size = 1, .description = "host"}; }

TEST(CoordinatorMembershipTest, WithoutARankTheLowestVacantOneIsGiven) {
  Coordinator core(SmallSetup().options);
  Effects out;
  ASSERT_TRUE(core.Join(SessionId(1), Anyone(), kNow, out).ok());
  ASSERT_TRUE(core.Join(SessionId(2), Anyone(), kNow, out).ok());
  EXPECT_TRUE(
      absl::IsResourceExhausted(core.Join(SessionId(3), Anyone(), kNow, out)));
}

// The system that starts workers may count one more than the server.
TEST(CoordinatorMembershipTest, ARankBeyondTheCohortIsNotNeeded) {
  Coordinator core(SmallSetup().options);
  Effects out;
  JoinRequest far = Anyone();
  far.rank = Rank(2);
  EXPECT_THAT(core.Join(SessionId(1), far, kNow, out),
              IsError(kOutOfRange, "2 workers, ranks 0 to 1"));
}

TEST(CoordinatorMembershipTest, RefusesWhatCanNeverBeRight) {
  Coordinator core(SmallSetup().options);
  Effects out;
  JoinRequest negative = Anyone();
  negative.rank = Rank(-1);
  EXPECT_THAT(core.Join(SessionId(1), negative, kNow, out),
              IsError(kInvalidArgument, "--rank=-1"));
  JoinRequest empty = Anyone();
  empty.batch_size = 0;
  EXPECT_THAT(core.Join(SessionId(1), empty, kNow, out),
              IsError(kInvalidArgument, "batch size 0, want 1 to 1073741824"));
  JoinRequest other = Anyone();
  other.run_id = "older";
  EXPECT_THAT(core.Join(SessionId(1), other, kNow, out),
              IsError(kNotFound, "got run older, want run"));
  EXPECT_THAT(out, IsEmpty());
}

TEST(CoordinatorMembershipTest, ALiveRankIsRefusedWithTheTimeItFrees) {
  FakeCohort cohort(SmallSetup());
  ASSERT_TRUE(cohort.Join(kRank0).ok());
  cohort.PassWithHeartbeatsOf({}, absl::Seconds(4));
  EXPECT_THAT(cohort.Join(kRank0),
              IsError(kAlreadyExists, "(host0); it becomes free in 6 s"));
}

TEST(CoordinatorMembershipTest, TrainingStartsWhenAllHaveRegistered) {
  FakeCohort cohort(SmallSetup());
  cohort.StartOne(kRank0);
  EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kWait);
  EXPECT_THAT(cohort.told(kRank0).reason,
              HasSubstr("worker 1 to join and register"));
  EXPECT_EQ(cohort.told(kRank0).wait, absl::InfiniteDuration());
  cohort.StartOne(kRank1);
  EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kTrain);
  EXPECT_EQ(cohort.told(kRank0).range, (IndexRange{0, 3}));
  EXPECT_EQ(cohort.told(kRank1).range, (IndexRange{3, 4}));
}

// When the last rank registers, the first one has no stream. Training must
// start when that rank returns.
TEST(CoordinatorMembershipTest, TrainingStartsWhenABrokenStreamIsBack) {
  FakeCohort cohort(SmallSetup());
  cohort.StartOne(kRank0);
  cohort.BreakSession(kRank0);
  cohort.StartOne(kRank1);
  EXPECT_EQ(cohort.told(kRank1).kind, AssignmentKind::kWait);
  ASSERT_TRUE(cohort.Join(kRank0, cohort.incarnation(kRank0)).ok());
  EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kTrain);
  EXPECT_EQ(cohort.told(kRank1).kind, AssignmentKind::kTrain);
}

TEST(CoordinatorMembershipTest, TheSameIncarnationReturnsToItsAssignment) {
  StartedCohort cohort(SmallSetup());
  const Assignment before = cohort.told(kRank0);
  const Incarnation incarnation = cohort.incarnation(kRank0);
  cohort.BreakSession(kRank0);
  cohort.Pass(absl::Milliseconds(400));
  cohort.Clear();
  ASSERT_TRUE(cohort.Join(kRank0, incarnation).ok());
  EXPECT_EQ(cohort.incarnation(kRank0), incarnation);
  ASSERT_EQ(cohort.All<effect::Notify>().size(), 1);
  EXPECT_EQ(cohort.told(kRank0).sequence, before.sequence);
  EXPECT_EQ(cohort.told(kRank0).attempt, before.attempt);
  EXPECT_EQ(cohort.counter("workers_lost"), 0);
}

TEST(CoordinatorMembershipTest, AfterTheGraceTheIncarnationIsOver) {
  StartedCohort cohort(SmallSetup());
  const Incarnation incarnation = cohort.incarnation(kRank0);
  cohort.BreakSession(kRank0);
  cohort.Pass(absl::Milliseconds(500));
  EXPECT_EQ(cohort.counter("workers_lost"), 1);
  EXPECT_TRUE(absl::IsAborted(cohort.Join(kRank0, incarnation)));
  ASSERT_TRUE(cohort.Join(kRank0).ok());
  EXPECT_GT(cohort.incarnation(kRank0), incarnation);
}

TEST(CoordinatorMembershipTest, ANewerStreamOfAnIncarnationEndsTheOlder) {
  StartedCohort cohort(SmallSetup());
  const SessionId older = cohort.session(kRank0);
  cohort.Clear();
  ASSERT_TRUE(cohort.Join(kRank0, cohort.incarnation(kRank0)).ok());
  const auto ended = cohort.Only<effect::EndSession>();
  EXPECT_EQ(ended.session, older);
  EXPECT_TRUE(absl::IsAborted(ended.status));
}

TEST(CoordinatorMembershipTest, ASilentRankIsLostAfterItsLease) {
  StartedCohort cohort(SmallSetup());
  cohort.PassWithHeartbeatsOf({kRank1}, absl::Seconds(10));
  EXPECT_EQ(cohort.counter("workers_lost"), 0);
  cohort.PassWithHeartbeatsOf({kRank1}, absl::Milliseconds(100));
  EXPECT_EQ(cohort.counter("workers_lost"), 1);
  const auto ended = cohort.Only<effect::EndSession>();
  EXPECT_EQ(ended.session, cohort.session(kRank0));
  EXPECT_EQ(ended.status, absl::AbortedError("silent for 10.1 s"));
}

TEST(CoordinatorMembershipTest, AnOlderIncarnationIsFenced) {
  StartedCohort cohort(SmallSetup());
  const Sender older = cohort.sender(kRank0);
  cohort.Leave(kRank0);
  cohort.StartOne(kRank0);
  Effects out;
  EXPECT_THAT(
      cohort.core().Open(older, cohort.key(kRank0), {.samples = 3}, kNow, out),
      IsError(kAborted, "incarnation 0.2"));
  Sender stranger = cohort.sender(kRank0);
  stranger.run_id = "other";
  EXPECT_TRUE(absl::IsFailedPrecondition(cohort.core().Open(
      stranger, cohort.key(kRank0), {.samples = 3}, kNow, out)));
  EXPECT_THAT(out, IsEmpty());
}

TEST(CoordinatorMembershipTest, AnUnregisteredWorkerCannotPush) {
  StartedCohort cohort(SmallSetup());
  cohort.Leave(kRank0);
  ASSERT_TRUE(cohort.Join(kRank0).ok());
  EXPECT_THAT(cohort.Open(kRank0, {}),
              IsError(kFailedPrecondition, "has not registered"));
}

TEST(CoordinatorMembershipTest, AnotherFingerprintIsAdmittedWithAWarning) {
  StartedCohort cohort(SmallSetup());
  cohort.Leave(kRank0);
  Effects out;
  ExpectOk(cohort.core().Join(
      SessionId(90), {.rank = kRank0, .batch_size = 3, .fingerprint = "other"},
      absl::Seconds(101), out));
  ASSERT_TRUE(std::holds_alternative<effect::Log>(out[0]));
  const auto& log = std::get<effect::Log>(out[0]);
  EXPECT_EQ(log.severity, LogLevel::kWarning);
  EXPECT_THAT(log.text, HasSubstr("differently (other, previously same)"));
}

}  // namespace
}  // namespace cohort
