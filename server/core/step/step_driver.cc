#include "server/core/step/step_driver.h"

#include "server/core/step/arrival_queue.h"
#include "server/core/step/sync_rounds.h"

namespace cohort {

std::unique_ptr<StepDriver> MakeStepDriver(const RunParts& parts) {
  if (parts.settings.sync()) return std::make_unique<SyncRounds>(parts);
  return std::make_unique<ArrivalQueue>(parts);
}

}  // namespace cohort
