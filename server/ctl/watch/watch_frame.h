#pragma once

#include <string>

#include "server/ctl/status_text.h"
#include "server/ctl/verb.h"
#include "server/ctl/watch/sparkline.h"

namespace cohort {

// How a frame is to look.
struct FrameStyle {
  ScreenSize size;
  bool bold = false;
  // The terminal shows more than ASCII.
  bool unicode = false;
};

// A look at a run as a screen of text: no line is longer than the screen, and
// there are no more of them than it has, but for the last one. `notice`: what
// is to be said first, such as that the server is away; empty: nothing.
std::string WatchFrame(const Overview& overview, const Curve& losses,
                       const std::string& notice, const FrameStyle& style);

}  // namespace cohort
