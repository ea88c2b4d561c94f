#pragma once

#include "server/core/evaluation/pinned_work.h"
#include "server/core/ledger/run_ledger.h"
#include "server/core/ledger/run_phase.h"
#include "server/core/ledger/run_settings.h"
#include "server/core/membership/rank_table.h"
#include "server/core/model/model_store.h"
#include "server/core/settings/options.h"
#include "server/core/step/flow_control.h"

namespace cohort {

// The parts of a run that a step driver works with. Later ones refer to earlier
// ones.
struct RunParts {
  // `options` must be valid; `restored` is null for a new run.
  RunParts(const CoordinatorOptions& options, const RunState* restored)
      : settings(options, restored),
        ranks(options.workers),
        ledger(options.workers),
        pinned(settings, phase, ledger, ranks, model),
        flow(options.inflight_bytes_max, ranks) {}
  RunParts(const RunParts&) = delete;
  RunParts& operator=(const RunParts&) = delete;

  RunSettings settings;
  // Resized by changes: no reference to a worker is kept over an event.
  RankTable ranks;
  RunPhase phase;
  RunLedger ledger;
  ModelStore model;
  PinnedWork pinned;
  FlowControl flow;
};

}  // namespace cohort
