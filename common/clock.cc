#include "common/clock.h"

#include <chrono>

#include "absl/strings/str_cat.h"

namespace cohort {

Instant SteadyClock::Now() const {
  return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

std::string SecondsText(absl::Duration duration) {
  if (duration == absl::InfiniteDuration()) return "for ever";
  const absl::Duration cut = absl::Trunc(duration, absl::Milliseconds(100));
  return absl::StrCat(absl::ToDoubleSeconds(cut), " s");
}

}  // namespace cohort
