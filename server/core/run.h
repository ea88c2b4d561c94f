#pragma once

#include "server/core/describe_status.h"
#include "server/core/membership/registrar.h"
#include "server/core/membership/roster.h"
#include "server/core/run_parts.h"
#include "server/core/step/step_driver.h"

namespace cohort {

// All parts of a run, for one event. Borrowed from the coordinator.
struct Run {
  RunParts parts;
  Roster& roster;
  Registrar& registrar;
  StepDriver& driver;

  RunView view() const {
    return {parts.settings, parts.ranks,  roster,     registrar, parts.ledger,
            parts.model,    parts.pinned, parts.flow, driver};
  }
};

}  // namespace cohort
