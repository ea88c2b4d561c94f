#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/clock.h"

namespace cohort {

// Decides which log lines are suppressed because too many similar ones came
// before.
//
// Lines are of the same kind if their texts differ only in numbers: "checkpoint
// of version 7 is safe" is like that of version 8. For each kind, kLinesMax
// lines pass in kInterval. The rest are counted and reported once the interval
// is over.
//
// Thread safety: none.
class LogLimiter {
 public:
  static constexpr int64_t kLinesMax = 20;
  static constexpr absl::Duration kInterval = absl::Seconds(10);
  // Number of kinds that are distinguished at a time. Further kinds count as
  // one, so that texts chosen by strangers cannot flood the log.
  static constexpr size_t kKindsMax = 256;

  // Lines that were left out.
  struct Suppressed {
    int64_t lines = 0;
    // An example of these lines.
    std::string text;
  };

  // True if a line with this text may be written now.
  bool Admit(absl::string_view text, Instant now);

  // Suppressed lines of the intervals that are over, or of all intervals. Each
  // is returned once.
  std::vector<Suppressed> TakeEnded(Instant now);
  std::vector<Suppressed> TakeAll();

 private:
  struct Kind {
    Instant begin;
    int64_t lines = 0;
    std::string last_text;
  };

  static void Tell(const Kind& kind, std::vector<Suppressed>& told);

  std::map<std::string, Kind, std::less<>> kinds_;
};

}  // namespace cohort
