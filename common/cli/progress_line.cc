#include "common/cli/progress_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

namespace cohort {

ScreenSize TerminalSize() {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 ||
      size.ws_row == 0) {
    return {};
  }
  return {.columns = size.ws_col, .rows = size.ws_row};
}

void ProgressLine::Show(absl::string_view text, int columns) {
  // The last column stays empty, because a terminal would start a new line
  // after it.
  text = text.substr(0, static_cast<size_t>(std::max(columns - 1, 1)));
  if (text == shown_) return;
  Clear();
  out_ << text << std::flush;
  shown_ = std::string(text);
}

void ProgressLine::Clear() {
  if (shown_.empty()) return;
  out_ << "\r\x1b[K" << std::flush;
  shown_.clear();
}

}  // namespace cohort
