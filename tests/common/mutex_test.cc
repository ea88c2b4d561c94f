#include "common/mutex.h"

#include <gtest/gtest.h>

#include <thread>

namespace cohort {
namespace {

class HandClock final : public Clock {
 public:
  Instant Now() const override { return now; }
  Instant now;
};

// If a wait started over at each notification, it would outlast them all: here
// notifications follow each other for as long as the wait lasts.
TEST(CondVarTest, WaitUntilEndsAtItsDeadlineHoweverOftenItIsWoken) {
  Mutex mu;
  CondVar changed;
  bool over = false;
  std::thread waker([&] {
    for (;;) {
      {
        MutexLock lock(mu);
        if (over) return;
        changed.NotifyAll();
      }
      std::this_thread::yield();
    }
  });
  HandClock clock;
  const Instant deadline = clock.Now() + absl::Hours(3);
  int wakes = 0;
  {
    MutexLock lock(mu);
    while (changed.WaitUntil(mu, clock, deadline)) {
      ++wakes;
      clock.now += absl::Hours(1);
    }
    over = true;
  }
  waker.join();
  EXPECT_EQ(wakes, 3);
}

TEST(CondVarTest, WaitUntilDoesNotWaitOnceTheDeadlineHasPassed) {
  Mutex mu;
  CondVar changed;
  HandClock clock;
  MutexLock lock(mu);
  EXPECT_FALSE(changed.WaitUntil(mu, clock, clock.Now()));
}

}  // namespace
}  // namespace cohort
