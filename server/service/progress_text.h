#pragma once

#include <cstdint>
#include <deque>
#include <ostream>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "server/core/coordinator.h"

namespace cohort {

// Samples a second over the last 10 s.
class RateMeter {
 public:
  void Add(Instant now, int64_t samples);
  // 0 until two points are known.
  double per_second() const;

 private:
  std::deque<std::pair<Instant, int64_t>> points_;
};

// One line: step, epoch, loss, speed, time left, newest test measure, workers
// and policy; or, if nothing is trained at this moment, the server's own
// sentence about it.
std::string ProgressText(const StatusView& status, double samples_per_second);

// A line of a terminal that is written again and again.
class ProgressLine {
 public:
  // Replaces the line, cut to `columns`.
  void Show(std::ostream& out, absl::string_view text, int columns);
  // Blanks it, so that an ordinary line can be printed in its place.
  void Clear(std::ostream& out);

 private:
  size_t width_ = 0;
};

// Columns of the terminal behind stdout; 80 if it does not say.
int TerminalColumns();

}  // namespace cohort
