#include "common/cli/lock_checks.h"

#include "absl/synchronization/mutex.h"

namespace cohort {

void TurnOffLockChecks() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace cohort
