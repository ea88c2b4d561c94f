#include "common/clock.h"

#include <chrono>

namespace cohort {

Instant SteadyClock::Now() const {
  return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace cohort
