#pragma once

#include <string>

#include "server/ctl/status_text.h"
#include "server/ctl/verb.h"
#include "server/ctl/watch/sparkline.h"
#include "server/ctl/watch/watch_controls.h"

namespace cohort {

// The style of a frame.
struct FrameStyle {
  ScreenSize size;
  bool bold = false;
  // The terminal shows more than ASCII.
  bool unicode = false;
};

// A run as a screen of text. No line is longer than the screen, and there are
// no more lines than it has, except for the last one. `notice` is shown first,
// such as that the server is away; may be empty. Long values wrap to a second
// line; the workers' table is cut, or scrolled by `view`.
std::string WatchFrame(const Overview& overview, const Curve& losses,
                       const std::string& notice, const WatchView& view,
                       const FrameStyle& style);

}  // namespace cohort
