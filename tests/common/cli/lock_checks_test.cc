#include "common/cli/lock_checks.h"

#include <gtest/gtest.h>

#include "absl/synchronization/mutex.h"

namespace cohort {
namespace {

// Where Abseil checks the order of locks, it ends the process at the second
// order.
TEST(LockChecksTest, LocksMayBeTakenInAnyOrder) {
  TurnOffLockChecks();
  absl::Mutex a;
  absl::Mutex b;
  int orders = 0;
  {
    absl::MutexLock first(&a);
    absl::MutexLock second(&b);
    ++orders;
  }
  {
    absl::MutexLock first(&b);
    absl::MutexLock second(&a);
    ++orders;
  }
  EXPECT_EQ(orders, 2);
}

}  // namespace
}  // namespace cohort
