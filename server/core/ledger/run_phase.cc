#include "server/core/ledger/run_phase.h"

#include "absl/strings/str_cat.h"

namespace cohort {

void RunPhase::End(RunOutcome outcome, const std::string& reason) {
  ended_ = true;
  end_reason_ = reason;
  failed_ = outcome != RunOutcome::kFinished && outcome != RunOutcome::kDrained;
  // Non-finite weights would be non-finite again.
  broke_off_ = outcome == RunOutcome::kWorkerLost ||
               outcome == RunOutcome::kModelMismatch;
}

absl::Status RunPhase::CheckNotOver() const {
  if (!ended_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the run is over: ", end_reason_));
}

bool RunPhase::RequestStored(Milestone milestone) {
  Storing& storing = storing_[static_cast<size_t>(milestone)];
  if (storing != Storing::kNo) return false;
  storing = Storing::kRequested;
  return true;
}

bool RunPhase::IsStored(Milestone milestone) const {
  return storing_[static_cast<size_t>(milestone)] == Storing::kStored;
}

void RunPhase::NoteStored() {
  for (Storing& storing : storing_) {
    if (storing == Storing::kRequested) storing = Storing::kStored;
  }
}

}  // namespace cohort
