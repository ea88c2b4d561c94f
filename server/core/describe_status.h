#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ids.h"
#include "server/core/membership/rank_table.h"
#include "server/core/membership/registrar.h"
#include "server/core/membership/roster.h"
#include "server/core/model/model_store.h"
#include "server/core/model/pinned_work.h"
#include "server/core/run_ledger.h"
#include "server/core/run_settings.h"
#include "server/core/step/flow_control.h"
#include "server/core/step/step_driver.h"
#include "server/core/views.h"

// Describes a run: its status, and the ranks that it waits for. Nothing here
// changes anything.
namespace cohort {

// All parts of a run, to read. Borrowed.
struct RunView {
  const RunSettings& settings;
  const RankTable& ranks;
  const Roster& roster;
  const Registrar& registrar;
  const RunLedger& ledger;
  const ModelStore& model;
  const PinnedWork& pinned;
  const FlowControl& flow;
  const StepDriver& driver;
};

// Ranks that hold the run up.
std::vector<Rank> WaitedFor(const RunView& run);
// Until the run gives up waiting for the first of `ranks`; infinite before the
// start.
absl::Duration WaitLeft(const RunView& run, const std::vector<Rank>& ranks,
                        Instant now);
// The workers that the run waits for, and how much longer it will.
std::string WaitText(const RunView& run, Instant now);

StatusView DescribeStatus(const RunView& run, Instant now);
PolicyView DescribePolicy(const RunView& run, Instant now);

}  // namespace cohort
