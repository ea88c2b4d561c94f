#pragma once

#include "server/core/membership/rank_table.h"
#include "server/core/model/model_store.h"
#include "server/core/model/pinned_work.h"
#include "server/core/run_ledger.h"
#include "server/core/run_settings.h"
#include "server/core/step/flow_control.h"

namespace cohort {

// The parts of a run that a step driver works with. The coordinator owns them,
// and they outlive every driver.
struct RunParts {
  const RunSettings& settings;
  RankTable& ranks;
  RunLedger& ledger;
  ModelStore& model;
  PinnedWork& pinned;
  FlowControl& flow;
};

}  // namespace cohort
