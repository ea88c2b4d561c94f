#pragma once

#include "common/clock.h"
#include "server/core/run.h"
#include "server/core/turn.h"

// The beginning and the end of training in one life of the server.
namespace cohort {

// A model is registered, and all ranks that must be there are, or are not
// waited for any longer.
bool ReadyToStart(const Run& run, Instant now);
void StartTraining(const Run& run, Turn& turn);

// Ends the run once training is done and evaluated. No-op before that.
void EndIfDone(const Run& run, Turn& turn);
// Answers all pushes, tells all workers, and hands over the model. No-op if the
// run is over.
void EndRun(const Run& run, const Turn::End& end, Turn& turn);

}  // namespace cohort
