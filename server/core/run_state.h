#pragma once

#include "server/core/events/effects.h"
#include "server/core/run.h"

namespace cohort {

// The data of a run from its beginning.
DataCursor CursorFor(const RunPlan& plan, const CoordinatorOptions& options);

// The state that a restart needs; the run must have a model.
RunState CaptureState(const Run& run);

// Puts model, data cursor and moving statistics back where `restored` has them.
// Returns true if an epoch ended with its version, whose evaluation was lost
// with the old process.
bool RestoreState(const RunState& restored, RunParts& run);

// The state with the slots that its settings want, of the partitions that it
// has: shards pass on those of the version as it was committed.
RunState FittedToSettings(RunState state);

// A server with `options` that continues from `restored` has nothing left to
// do, unless they make the run longer.
bool IsOver(const RunState& restored, const CoordinatorOptions& options);

}  // namespace cohort
