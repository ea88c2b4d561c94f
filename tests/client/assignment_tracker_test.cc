#include "worker/client/assignment_tracker.h"

#include <gtest/gtest.h>

#include "worker/client/backoff.h"

namespace cohort {
namespace {

Assignment Train(int64_t sequence, int32_t attempt) {
  Assignment a;
  a.kind = AssignmentKind::kTrain;
  a.sequence = Sequence(sequence);
  a.attempt = Attempt(attempt);
  // Step 10 is the first assignment.
  a.version = Version(9 + sequence);
  a.members = {Rank(0)};
  return a;
}

Assignment Wait(const std::string& reason) {
  return {.kind = AssignmentKind::kWait, .reason = reason};
}

// One whose first work is taken.
AssignmentTracker Taken() {
  AssignmentTracker tracker;
  tracker.Offer(Train(1, 0));
  EXPECT_TRUE(tracker.Take().has_value());
  return tracker;
}

TEST(AssignmentTrackerTest, WorkIsTakenOnce) {
  AssignmentTracker tracker;
  EXPECT_FALSE(tracker.Take().has_value());
  tracker.Offer(Train(1, 0));
  ASSERT_TRUE(tracker.Take().has_value());
  EXPECT_EQ(tracker.sequence(), Sequence(1));
  // The verdict and the session may both report it.
  tracker.Offer(Train(1, 0));
  EXPECT_FALSE(tracker.Take().has_value());
}

TEST(AssignmentTrackerTest, OlderWorkIsIgnored) {
  AssignmentTracker tracker;
  tracker.Offer(Train(2, 1));
  tracker.Offer(Train(1, 5));
  tracker.Offer(Train(2, 0));
  EXPECT_EQ(tracker.Take()->attempt, Attempt(1));
  tracker.Offer(Train(2, 0));
  EXPECT_FALSE(tracker.Take().has_value());
  tracker.Offer(Train(2, 2));
  EXPECT_EQ(tracker.Take()->attempt, Attempt(2));
}

// A verdict that says "wait" may arrive after the notice that ends the wait.
TEST(AssignmentTrackerTest, WaitNeverHidesWork) {
  AssignmentTracker tracker;
  tracker.Offer(Train(1, 0));
  tracker.Offer(Wait("rank 1"));
  EXPECT_FALSE(tracker.TakeWait().has_value());
  EXPECT_TRUE(tracker.Take().has_value());
  EXPECT_FALSE(tracker.TakeWait().has_value());
}

TEST(AssignmentTrackerTest, NewestWaitIsToldOnce) {
  AssignmentTracker tracker;
  tracker.Offer(Wait("rank 1"));
  tracker.Offer(Wait("rank 2"));
  EXPECT_EQ(tracker.TakeWait()->reason, "rank 2");
  EXPECT_FALSE(tracker.TakeWait().has_value());
}

TEST(AssignmentTrackerTest, EndedStepVoidsItsWorkOnly) {
  AssignmentTracker tracker = Taken();
  EXPECT_TRUE(tracker.CheckTaken().ok());
  tracker.Abort(Version(10), Attempt(0), "rank 3 was lost");
  EXPECT_EQ(tracker.CheckTaken().code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(absl::IsAborted(tracker.CheckStep(Version(10), Attempt(0))));
  tracker.Offer(Train(1, 1));
  ASSERT_TRUE(tracker.Take().has_value());
  EXPECT_TRUE(tracker.CheckTaken().ok());
}

// A slow worker hears of a later step that began without it.
TEST(AssignmentTrackerTest, AStepIsOverWithEveryLaterOne) {
  AssignmentTracker tracker = Taken();
  tracker.Offer(Train(2, 0));
  tracker.Abort(Version(11), Attempt(0), "step 11 is full");
  EXPECT_EQ(tracker.CheckTaken().code(), absl::StatusCode::kAborted);
  EXPECT_FALSE(tracker.Take().has_value());
  tracker.Offer(Train(3, 0));
  ASSERT_TRUE(tracker.Take().has_value());
  EXPECT_TRUE(tracker.CheckTaken().ok());
}

// A step that has a successor was committed: a closed push waits for its
// verdict.
TEST(AssignmentTrackerTest, AClosedPushIsVoidOnlyWithItsOwnStep) {
  AssignmentTracker tracker;
  EXPECT_TRUE(tracker.CheckTakenStep().ok());
  tracker.Offer(Train(1, 0));
  ASSERT_TRUE(tracker.Take().has_value());
  tracker.Abort(Version(11), Attempt(0), "step 11 is full");
  EXPECT_FALSE(tracker.CheckTaken().ok());
  EXPECT_TRUE(tracker.CheckTakenStep().ok());

  AssignmentTracker own = Taken();
  own.Abort(Version(10), Attempt(0), "rank 3 was lost");
  EXPECT_EQ(own.CheckTakenStep().code(), absl::StatusCode::kAborted);
}

// The notice of the next work may overtake the verdict on this one.
TEST(AssignmentTrackerTest, NextWorkLeavesTheWorkInProgressAlone) {
  AssignmentTracker tracker = Taken();
  tracker.Offer(Train(2, 0));
  EXPECT_EQ(tracker.sequence(), Sequence(1));
  tracker.Abort(Version(10), Attempt(0), "rank 3 was lost");
  EXPECT_EQ(tracker.CheckTaken().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(tracker.Take()->sequence, Sequence(2));
  EXPECT_TRUE(tracker.CheckTaken().ok());
}

TEST(AssignmentTrackerTest, WorkOfAnEndedStepIsNotHandedOut) {
  AssignmentTracker before;
  before.Offer(Train(1, 0));
  before.Abort(Version(10), Attempt(0), "rank 3 was lost");
  EXPECT_FALSE(before.Take().has_value());

  AssignmentTracker after;
  after.Abort(Version(10), Attempt(0), "rank 3 was lost");
  after.Offer(Train(1, 0));
  EXPECT_FALSE(after.Take().has_value());
  after.Offer(Train(1, 1));
  EXPECT_TRUE(after.Take().has_value());
}

// After a switch to an asynchronous policy `version` is no longer a step.
TEST(AssignmentTrackerTest, EndedStepLeavesAsynchronousWorkAlone) {
  AssignmentTracker tracker;
  tracker.Abort(Version(10), Attempt(0), "policy change");
  Assignment work = Train(1, 0);
  work.members = {};
  tracker.Offer(work);
  EXPECT_TRUE(tracker.Take().has_value());
  EXPECT_TRUE(tracker.CheckTaken().ok());
}

TEST(AssignmentTrackerTest, EndOfTheRunWinsWhateverItsNumber) {
  AssignmentTracker tracker;
  tracker.Offer(Train(5, 0));
  tracker.Offer({.kind = AssignmentKind::kFinished});
  EXPECT_TRUE(tracker.finished());
  tracker.Offer(Train(6, 0));
  EXPECT_EQ(tracker.Take()->kind, AssignmentKind::kFinished);
  EXPECT_FALSE(tracker.finished());
}

// A restored server counts from an earlier number.
TEST(AssignmentTrackerTest, ResetAcceptsLowerNumbers) {
  AssignmentTracker tracker;
  tracker.Offer(Train(5, 0));
  ASSERT_TRUE(tracker.Take().has_value());
  tracker.Reset();
  tracker.Offer(Train(3, 0));
  EXPECT_EQ(tracker.Take()->sequence, Sequence(3));
}

TEST(BackoffTest, PausesDoubleUpToTwoSecondsWithinHalfOfJitter) {
  Backoff backoff(7);
  absl::Duration most = absl::Milliseconds(50);
  for (int i = 0; i < 10; ++i) {
    const absl::Duration pause = backoff.Next();
    EXPECT_GE(pause, most / 2);
    EXPECT_LE(pause, most);
    most = std::min(2 * most, absl::Seconds(2));
  }
  backoff.Reset();
  EXPECT_LE(backoff.Next(), absl::Milliseconds(50));
}

TEST(BackoffTest, SeedsSpreadWorkers) {
  EXPECT_NE(Backoff(1).Next(), Backoff(2).Next());
  EXPECT_EQ(Backoff(1).Next(), Backoff(1).Next());
}

}  // namespace
}  // namespace cohort
