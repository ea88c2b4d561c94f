#include "common/clock.h"

#include <chrono>
#include <cstdint>

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

std::string HumanDuration(absl::Duration duration) {
  const int64_t seconds = absl::ToInt64Seconds(duration);
  if (seconds < 60) return absl::StrCat(seconds, " s");
  if (seconds < 3600) {
    return absl::StrCat(seconds / 60, " min ", seconds % 60, " s");
  }
  return absl::StrCat(seconds / 3600, " h ", seconds / 60 % 60, " min");
}

}  // namespace cohort
