#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace cohort {

// How a retry waits, passed in so that a test can record the waits instead.
class Sleeper {
 public:
  virtual ~Sleeper() = default;

  // Sleeps for `pause`.
  // Errors: Cancelled if a stop is requested before or during the pause.
  virtual absl::Status Pause(absl::Duration pause) = 0;
};

}  // namespace cohort
