#include "common/exit_codes.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace cohort {

absl::Span<const ExitCodeRow> ExitCodes() {
  static constexpr ExitCodeRow kRows[] = {
      {.code = kExitOk},
      {.code = kExitFailure},
      {.code = kExitUsage, .final = true},
      {.code = kExitConfig, .final = true},
      {.code = kExitDenied, .final = true},
      // The server may be on its way back, and a rank may become vacant.
      {.code = kExitUnreachable},
      {.code = kExitWaitTimeout},
      {.code = kExitBadCheckpoint, .final = true},
      // The same weights and samples give the same numbers.
      {.code = kExitNonfinite, .final = true},
      {.code = kExitHalfDone},
      {.code = kExitLeft},
      {.code = kExitCannotRun, .final = true},
      {.code = kExitNoProgram, .final = true}};
  return kRows;
}

bool WouldEndSoAgain(int code) {
  const absl::Span<const ExitCodeRow> rows = ExitCodes();
  return std::any_of(rows.begin(), rows.end(), [code](const ExitCodeRow& row) {
    return row.code == code && row.final;
  });
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
