#include "common/periodic_task.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <future>
#include <latch>
#include <optional>
#include <string>
#include <thread>

namespace cohort {
namespace {

TEST(PeriodicTaskTest, CallsAgainAndAgain) {
  std::latch calls(3);
  std::atomic<int> count = 0;
  PeriodicTask task("test", absl::Milliseconds(1), [&] {
    if (++count <= 3) calls.count_down();
  });
  calls.wait();
}

TEST(PeriodicTaskTest, AWakeEndsALongWait) {
  std::promise<void> called;
  PeriodicTask task("test", absl::Hours(1000), [&] { called.set_value(); });
  task.Wake();
  called.get_future().wait();
}

// Two wakes in a row may make one call or two; the destructor makes none.
TEST(PeriodicTaskTest, AnInfiniteIntervalMeansOnlyWhenWoken) {
  std::promise<void> called;
  std::atomic<int> calls = 0;
  {
    PeriodicTask task("test", absl::InfiniteDuration(), [&] {
      if (++calls == 1) called.set_value();
    });
    task.Wake();
    called.get_future().wait();
  }
  EXPECT_EQ(calls, 1);
}

TEST(PeriodicTaskTest, AWakeDuringACallMakesAnotherCall) {
  std::promise<void> started;
  std::promise<void> go;
  std::promise<void> again;
  int calls = 0;
  PeriodicTask task("test", absl::InfiniteDuration(), [&] {
    if (++calls == 1) {
      started.set_value();
      go.get_future().wait();
    } else {
      again.set_value();
    }
  });
  task.Wake();
  started.get_future().wait();
  task.Wake();
  go.set_value();
  again.get_future().wait();
}

TEST(PeriodicTaskTest, TheDestructorWaitsForTheCallInProgress) {
  std::promise<void> started;
  std::promise<void> go;
  bool done = false;
  std::optional<PeriodicTask> task(std::in_place, "test",
                                   absl::InfiniteDuration(), [&] {
                                     started.set_value();
                                     go.get_future().wait();
                                     done = true;
                                   });
  task->Wake();
  started.get_future().wait();
  std::thread releaser([&] { go.set_value(); });
  task.reset();
  EXPECT_TRUE(done);
  releaser.join();
}

TEST(PeriodicTaskTest, TheThreadBearsTheFirst15CharactersOfItsName) {
  std::promise<std::string> name;
  PeriodicTask task("a-very-long-task-name", absl::InfiniteDuration(), [&] {
    char text[64] = {};
    pthread_getname_np(pthread_self(), text, sizeof(text));
    name.set_value(text);
  });
  task.Wake();
  EXPECT_EQ(name.get_future().get(), "a-very-long-tas");
}

}  // namespace
}  // namespace cohort
