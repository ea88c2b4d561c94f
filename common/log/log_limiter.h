#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/clock.h"

namespace cohort {

// Decides which log lines are left out because too many like them came before.
//
// Lines are alike if their texts differ in numbers only: "checkpoint of version
// 7 is safe" is like that of version 8. Of one kind kLinesMax come through in
// kInterval; what is left out is counted, and told once the interval is over.
//
// Thread safety: none.
class LogLimiter {
 public:
  static constexpr int64_t kLinesMax = 20;
  static constexpr absl::Duration kInterval = absl::Seconds(10);
  // Kinds that are told apart at a time; further ones count as one kind, so
  // that texts that strangers choose flood nothing.
  static constexpr size_t kKindsMax = 256;

  // Lines that were left out.
  struct Suppressed {
    int64_t lines = 0;
    // One of them.
    std::string text;
  };

  // True if a line with this text may be written now.
  bool Admit(absl::string_view text, Instant now);

  // What was left out in intervals that are over, or in all of them. Each is
  // told once.
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
