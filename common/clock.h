#pragma once

#include "absl/time/time.h"

namespace cohort {

// A monotonic instant: duration since an arbitrary start of this process.
// Never wall time, which is for people only.
using Instant = absl::Duration;

// Source of monotonic time, passed in wherever time matters.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Instant Now() const = 0;
};

// The machine's steady clock.
// Thread safety: safe.
class SteadyClock final : public Clock {
 public:
  Instant Now() const override;
};

}  // namespace cohort
