#include "common/clock.h"

#include <chrono>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace cohort {

Instant SteadyClock::Now() const {
  return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

namespace {

// "5 min 3 s", or "5 min" without a rest.
std::string WithRest(const std::string& whole, int64_t rest,
                     absl::string_view unit) {
  return rest == 0 ? whole : absl::StrCat(whole, " ", rest, unit);
}

}  // namespace

std::string SecondsText(absl::Duration duration) {
  if (duration == absl::InfiniteDuration()) return "for ever";
  if (duration >= absl::Minutes(1)) return HumanDuration(duration);
  const absl::Duration cut = absl::Trunc(duration, absl::Milliseconds(100));
  return absl::StrCat(absl::ToDoubleSeconds(cut), " s");
}

std::string HumanDuration(absl::Duration duration) {
  const int64_t seconds = absl::ToInt64Seconds(duration);
  if (seconds < 60) return absl::StrCat(seconds, " s");
  return seconds < 3600
             ? WithRest(absl::StrCat(seconds / 60, " min"), seconds % 60, " s")
             : WithRest(absl::StrCat(seconds / 3600, " h"), seconds / 60 % 60,
                        " min");
}

}  // namespace cohort
