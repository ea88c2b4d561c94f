// A step of a fixed number of samples: --global_batch.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

// Ranks 0 to 3, one is needed; batches of 2, 6 samples a step, 20 an epoch.
FakeSetup Elastic(FakeSetup setup) {
  setup = Continuing(Long(WithWorkers(std::move(setup), 4, 2), 20));
  setup.options.workers_min = 1;
  setup.options.policy.global_batch = 6;
  return setup;
}

void ExpectWork(const Assignment& told, IndexRange range, int32_t batches) {
  EXPECT_EQ(told.kind, AssignmentKind::kTrain);
  EXPECT_EQ(told.range, range);
  EXPECT_EQ(told.batches, batches);
}

TEST(CoordinatorGlobalBatchTest, AStepHasAsManySamplesWhateverTheSize) {
  FakeCohort cohort(Elastic(SmallSetup()));
  cohort.StartOne(kRank0);
  ExpectWork(cohort.told(kRank0), {.begin = 0, .end = 6}, 3);
  cohort.StartOne(kRank1);
  cohort.Push(kRank0, PushOf(1));
  ExpectWork(cohort.told(kRank0), {.begin = 6, .end = 9}, 2);
  ExpectWork(cohort.told(kRank1), {.begin = 9, .end = 12}, 2);
  cohort.StartOne(kRank2);
  cohort.PushBoth(PushOf(1));
  ExpectWork(cohort.told(kRank0), {.begin = 12, .end = 14}, 1);
  ExpectWork(cohort.told(kRank1), {.begin = 14, .end = 16}, 1);
  ExpectWork(cohort.told(kRank2), {.begin = 16, .end = 18}, 1);
  EXPECT_EQ(cohort.Status().step_samples, 6);
}

TEST(CoordinatorGlobalBatchTest, TheLastStepOfAnEpochHasTheRest) {
  FakeCohort cohort(Elastic(SmallSetup()));
  cohort.StartOne(kRank0);
  for (int step = 0; step < 3; ++step) cohort.Push(kRank0, PushOf(1));
  ExpectWork(cohort.told(kRank0), {.begin = 18, .end = 20}, 1);
}

TEST(CoordinatorGlobalBatchTest, ALostShareIsSharedOutAnew) {
  FakeCohort cohort(Elastic(SmallSetup()));
  cohort.StartOne(kRank0);
  cohort.StartOne(kRank1);
  cohort.Push(kRank0, PushOf(1));
  cohort.Leave(kRank1);
  ExpectWork(cohort.told(kRank0), {.begin = 6, .end = 12}, 3);
}

TEST(CoordinatorGlobalBatchTest, OnePushOfEachMakesItUpWithoutSteps) {
  FakeCohort cohort(Elastic(AsyncSetup()));
  cohort.StartOne(kRank0);
  ExpectWork(cohort.told(kRank0), {.begin = 0, .end = 6}, 3);
  cohort.StartOne(kRank1);
  ExpectWork(cohort.told(kRank1), {.begin = 6, .end = 9}, 2);
  cohort.Push(kRank0, PushOf(1));
  ExpectWork(cohort.told(kRank0), {.begin = 9, .end = 12}, 2);
}

// The weight of a push is its part of --global_batch: 6 of 6, then 3 of 6.
TEST(CoordinatorGlobalBatchTest, APushCountsByItsPartOfTheSum) {
  FakeCohort cohort(Elastic(AsyncSetup()));
  cohort.StartOne(kRank0);
  const float start = cohort.weights(0)[0];
  cohort.Push(kRank0, PushOf(1));
  const float of_all = start - cohort.weights(0)[0];
  cohort.StartOne(kRank1);
  // It was given before rank 1 came.
  cohort.Push(kRank0, PushOf(1));
  const float before = cohort.weights(0)[0];
  cohort.Push(kRank1, PushOf(1));
  EXPECT_EQ(2 * (before - cohort.weights(0)[0]), of_all);
}

TEST(CoordinatorGlobalBatchTest, AShareLeftOverIsComputedInBatches) {
  FakeCohort cohort(Elastic(AsyncSetup()));
  cohort.StartOne(kRank0);
  cohort.StartOne(kRank1);
  cohort.Leave(kRank0);
  cohort.Push(kRank1, PushOf(1));
  ExpectWork(cohort.told(kRank1), {.begin = 0, .end = 6}, 3);
}

TEST(CoordinatorGlobalBatchTest, ChangesWhileItRuns) {
  FakeCohort cohort(Elastic(SmallSetup()));
  cohort.StartOne(kRank0);
  ASSERT_TRUE(cohort.Change({{"global_batch", "8"}}).ok());
  cohort.Push(kRank0, PushOf(1));
  ExpectWork(cohort.told(kRank0), {.begin = 6, .end = 14}, 4);
  ASSERT_TRUE(cohort.Change({{"global_batch", "sum"}}).ok());
  cohort.Push(kRank0, PushOf(1));
  ExpectWork(cohort.told(kRank0), {.begin = 14, .end = 16}, 1);
}

TEST(CoordinatorGlobalBatchTest, EveryWorkerNeedsASample) {
  FakeCohort cohort(Elastic(SmallSetup()));
  EXPECT_TRUE(
      absl::IsInvalidArgument(cohort.Change({{"workers", "1:7"}}).status()));
}

TEST(CoordinatorGlobalBatchTest, IsNoMoreThanAnEpoch) {
  FakeCohort cohort(Elastic(SmallSetup()));
  cohort.StartOne(kRank0);
  EXPECT_THAT(cohort.Change({{"global_batch", "21"}}),
              IsError(kFailedPrecondition, "--global_batch: got 21, want sum"));
}

// One worker may be left alone with it.
TEST(CoordinatorGlobalBatchTest, ABatchThatIsFarTooSmallIsRefused) {
  FakeSetup setup = Elastic(SmallSetup());
  setup.options.policy.global_batch = 8193;
  setup.plan.train_samples = 10000;
  FakeCohort cohort(setup);
  EXPECT_THAT(
      cohort.Join(kRank0),
      IsError(kInvalidArgument, "--global_batch: got 8193, want at most 8192"));
  setup.options.policy.global_batch = 8192;
  FakeCohort large(setup);
  large.StartOne(kRank0);
  ExpectWork(large.told(kRank0), {.begin = 0, .end = 8192}, 4096);
  EXPECT_TRUE(absl::IsInvalidArgument(
      large.Change({{"global_batch", "8193"}}).status()));
}

TEST(CoordinatorGlobalBatchTest,
     ABatchThatIsFarTooSmallForAPendingOneIsRefused) {
  FakeSetup setup = Elastic(SmallSetup());
  setup.plan.train_samples = 100000;
  FakeCohort cohort(setup);
  cohort.StartOne(kRank0);
  ASSERT_TRUE(cohort.Change({{"global_batch", "8192"}}).ok());
  ASSERT_FALSE(cohort.core().Policy(cohort.now()).pending.empty());
  JoinRequest request{.rank = kRank1, .batch_size = 1};
  Effects out;
  EXPECT_FALSE(
      cohort.core().Join(SessionId(77), request, cohort.now(), out).ok());
}

TEST(CoordinatorGlobalBatchTest, OwnDataIsRefused) {
  FakeSetup setup = Elastic(SmallSetup());
  setup.plan.own_data = true;
  setup.plan.train_samples = 0;
  setup.plan.test_samples = 0;
  setup.options.max_steps = 10;
  FakeCohort cohort(setup);
  ASSERT_TRUE(cohort.Join(kRank0).ok());
  EXPECT_THAT(cohort.Register(kRank0),
              IsError(kFailedPrecondition, "want --global_batch=sum"));
}

}  // namespace
}  // namespace cohort
