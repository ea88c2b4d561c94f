#include "server/core/run_ledger.h"

namespace cohort {

void RunLedger::End(RunOutcome outcome, const std::string& reason) {
  ended_ = true;
  end_reason_ = reason;
  // Non-finite weights would be non-finite again.
  broke_off_ = outcome == RunOutcome::kWorkerLost ||
               outcome == RunOutcome::kModelMismatch;
}

}  // namespace cohort
