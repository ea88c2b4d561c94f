#include "common/exit_codes.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace cohort {

bool WouldEndSoAgain(int code) {
  switch (code) {
    case kExitUsage:
    case kExitConfig:
    case kExitDenied:
    case kExitBadCheckpoint:
    // The same weights and samples give the same numbers.
    case kExitNonfinite:
    case kExitCannotRun:
    case kExitNoProgram:
      return true;
    // kExitUnreachable, for one: the server may be on its way back, and a rank
    // may become vacant. Codes of signals are here, too.
    default:
      return false;
  }
}

std::string WhyNotAgain(const LostProcess& lost, absl::string_view limit) {
  if (WouldEndSoAgain(lost.code)) return "it would end so again";
  if (lost.restarts < lost.restarts_max) return "";
  return absl::StrCat(limit, "=", lost.restarts_max,
                      " allows no further start");
}

AfterLoss DecideAfterLoss(bool may_start, const SizeRule& rule, int others) {
  // Where the run continues at once, a replacement would find no vacant rank
  // unless the cohort is elastic.
  if (may_start && (rule.waits || rule.workers_min > 0)) {
    return AfterLoss::kStartAgain;
  }
  if (rule.waits || others < std::max(rule.workers_min, 1)) {
    return AfterLoss::kStopRun;
  }
  return AfterLoss::kContinueWithout;
}

}  // namespace cohort
