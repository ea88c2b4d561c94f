#pragma once

#include <string>

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

// A duration for people, below a minute cut to tenths: "12.3 s", "9 min 52 s";
// "for ever" if infinite.
std::string SecondsText(absl::Duration duration);

// A longer duration, cut to whole seconds or minutes: "12 s", "3 min", "3 min
// 20 s", "2 h 5 min".
std::string HumanDuration(absl::Duration duration);

}  // namespace cohort
