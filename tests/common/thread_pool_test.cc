#include "common/thread_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <latch>
#include <memory>
#include <optional>
#include <vector>

#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using testing::ElementsAre;

TEST(ThreadPoolTest, OneThreadRunsJobsInOrder) {
  std::vector<int> ran;
  {
    ThreadPool pool({.threads = 1});
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(pool.Submit([&ran, i] { ran.push_back(i); }).ok());
    }
  }
  EXPECT_THAT(ran, ElementsAre(0, 1, 2));
}

TEST(ThreadPoolTest, TheDestructorRunsWhatWasAccepted) {
  std::promise<void> go;
  std::atomic<int> ran = 0;
  std::optional<ThreadPool> pool(std::in_place, ThreadPoolOptions());
  ASSERT_TRUE(pool->Submit([&] { go.get_future().wait(); }).ok());
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(pool->Submit([&] { ++ran; }).ok());
  }
  EXPECT_EQ(ran, 0);
  go.set_value();
  pool.reset();
  EXPECT_EQ(ran, 10);
}

// Each job waits for the other: with one thread this would hang.
TEST(ThreadPoolTest, JobsRunSideBySide) {
  std::latch both(2);
  ThreadPool pool({.threads = 2});
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(pool.Submit([&] { both.arrive_and_wait(); }).ok());
  }
  both.wait();
}

TEST(ThreadPoolTest, RefusesAJobWhenTheQueueIsFull) {
  std::promise<void> started;
  std::promise<void> go;
  bool second = false;
  bool refused = false;
  {
    ThreadPool pool({.name = "files", .threads = 1, .queue_max = 1});
    ExpectOk(pool.Submit([&] {
      started.set_value();
      go.get_future().wait();
    }));
    started.get_future().wait();
    ASSERT_TRUE(pool.Submit([&] { second = true; }).ok());
    EXPECT_THAT(pool.Submit([&] { refused = true; }),
                IsError(kResourceExhausted, "1 jobs"));
    go.set_value();
  }
  EXPECT_TRUE(second);
  EXPECT_FALSE(refused);
}

TEST(ThreadPoolTest, AJobMaySubmitAnother) {
  std::promise<void> done;
  ThreadPool pool({.threads = 1});
  ExpectOk(pool.Submit(
      [&] { EXPECT_TRUE(pool.Submit([&] { done.set_value(); }).ok()); }));
  done.get_future().wait();
}

// A job that keeps trying until the destructor, which waits for it, has begun.
TEST(ThreadPoolTest, RefusesJobsWhileBeingDestroyed) {
  std::promise<void> started;
  absl::Status answer;
  {
    ThreadPool pool({.name = "files", .threads = 1, .queue_max = 1});
    ExpectOk(pool.Submit([&] {
      started.set_value();
      do {
        answer = pool.Submit([] {});
      } while (!absl::IsFailedPrecondition(answer));
    }));
    started.get_future().wait();
  }
  EXPECT_EQ(answer, absl::FailedPreconditionError("files is stopping"));
}

TEST(ThreadPoolTest, AFinishedJobGivesItsMemoryBack) {
  auto memory = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = memory;
  std::promise<void> next;
  ThreadPool pool({.threads = 1});
  ASSERT_TRUE(pool.Submit([memory = std::move(memory)] {}).ok());
  ASSERT_TRUE(pool.Submit([&] { next.set_value(); }).ok());
  next.get_future().wait();
  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace cohort
