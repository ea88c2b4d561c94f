#include "server/core/ledger/run_phase.h"

#include "absl/strings/str_cat.h"

namespace cohort {

absl::Status RunPhase::CheckNotOver() const {
  if (!ended()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the run is over: ", end_reason_));
}

}  // namespace cohort
