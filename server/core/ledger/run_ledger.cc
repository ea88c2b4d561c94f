#include "server/core/ledger/run_ledger.h"

#include "absl/strings/str_cat.h"

namespace cohort {

absl::Status RunLedger::CheckNotOver() const {
  if (!ended_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the run is over: ", end_reason_));
}

void RunLedger::NoteStored() {
  for (Storing& storing : storing_) {
    if (storing == Storing::kAsked) storing = Storing::kStored;
  }
}

void RunLedger::NoteMeasures(const std::vector<Measure>& noted) {
  for (const Measure& measure : noted) {
    if (measures.size() >= kMeasureNamesMax &&
        !measures.contains(measure.name)) {
      continue;
    }
    measures[measure.name] = measure.sum / measure.weight;
  }
}

void RunLedger::End(RunOutcome outcome, const std::string& reason) {
  ended_ = true;
  end_reason_ = reason;
  failed_ = outcome != RunOutcome::kFinished && outcome != RunOutcome::kDrained;
  // Non-finite weights would be non-finite again.
  broke_off_ = outcome == RunOutcome::kWorkerLost ||
               outcome == RunOutcome::kModelMismatch;
}

}  // namespace cohort
