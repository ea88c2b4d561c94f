#pragma once

#include <ostream>
#include <string>

#include "absl/strings/string_view.h"

namespace cohort {

struct ScreenSize {
  int columns = 80;
  int rows = 24;
};

// The size of stdout's terminal; the default if it is unknown.
ScreenSize TerminalSize();

// A line of a terminal that is rewritten. Not for other output.
class ProgressLine {
 public:
  // `out` must outlive it.
  explicit ProgressLine(std::ostream& out) : out_(out) {}

  // Replaces the line, cut to `columns`.
  void Show(absl::string_view text, int columns);
  // Removes the line, so that an ordinary line can be printed in its place.
  void Clear();

 private:
  std::ostream& out_;
  std::string shown_;
};

}  // namespace cohort
