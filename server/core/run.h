#pragma once

#include <memory>

#include "server/core/membership/registrar.h"
#include "server/core/membership/roster.h"
#include "server/core/step/run_parts.h"
#include "server/core/step/step_driver.h"

namespace cohort {

// All parts of a run; see README.md. Functions that only read take it const.
struct Run : RunParts {
  Run(const CoordinatorOptions& options, const RunState* restored)
      : RunParts(options, restored),
        roster(settings, model, phase, ledger, ranks),
        registrar(settings, model, ranks),
        driver(MakeStepDriver(*this)) {}

  Roster roster;
  Registrar registrar;
  // Never null.
  std::unique_ptr<StepDriver> driver;
};

}  // namespace cohort
