#include <ostream>

#include "common/status_macros.h"
#include "server/ctl/status_text.h"
#include "server/ctl/verb.h"

namespace cohort {
namespace {

constexpr absl::Duration kIntervalDefault = absl::Seconds(2);

// Moves the terminal's cursor home and clears the screen.
constexpr absl::string_view kClearScreen = "\x1b[H\x1b[2J";

absl::Status Watch(Context& context, absl::Duration interval) {
  CtlIo& io = context.io;
  for (;;) {
    COHORT_ASSIGN_OR_RETURN(const Overview overview, LookAt(context.server));
    if (context.json) {
      io.out << OverviewJson(overview) << std::flush;
    } else if (io.terminal) {
      io.out << kClearScreen << OverviewText(overview, io.color) << std::flush;
    } else {
      io.out << OverviewLine(overview) << std::endl;
    }
    if (overview.status.ended() || !io.pause(interval)) {
      return absl::OkStatus();
    }
  }
}

absl::Status RunStatus(Context& context) {
  COHORT_ASSIGN_OR_RETURN(const absl::Duration interval,
                          IntervalOf(context.arguments, kIntervalDefault));
  if (context.arguments.Has("watch")) return Watch(context, interval);
  COHORT_ASSIGN_OR_RETURN(const Overview overview, LookAt(context.server));
  context.io.out << (context.json ? OverviewJson(overview)
                                  : OverviewText(overview, context.io.color));
  return absl::OkStatus();
}

}  // namespace

Verb StatusVerb() {
  return {.name = "status",
          .summary = "shows state, progress, policy and workers of the run",
          .flags = {{"watch", "", "repeat until the run is over"},
                    {"interval", "T",
                     "time between updates of --watch (default 2s)"}},
          .examples = {"cohortctl status", "cohortctl status --watch"},
          .run = &RunStatus};
}

}  // namespace cohort
