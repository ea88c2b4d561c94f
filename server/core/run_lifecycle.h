#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/float_buffer.h"
#include "common/model_layout.h"
#include "common/push.h"
#include "server/core/events/turn.h"
#include "server/core/run.h"

// The beginning and the end of training in one server process.
namespace cohort {

// Answers a registration whose model was compared, or keeps it until the run
// has one. False: its worker has nothing to do, and is notified.
bool TakeRegistration(Run& run, const Sender& sender, const ModelLayout& layout,
                      const RunPlan& plan, Turn& turn);

// Starts the run from the model and the values that `sender` was asked for, and
// admits all registrations of the same model. `options` are the settings of the
// run with this plan (see TakeWorkersOptimizer).
// Errors: FailedPrecondition (it was not asked); those of the checks and of
//   ModelStore::Install.
absl::Status InstallModel(Run& run, const Sender& sender,
                          const CoordinatorOptions& options,
                          const ModelLayout& layout, const RunPlan& plan,
                          std::vector<LayerStatistics> statistics, Turn& turn);

// A model is registered, and all ranks that must be there are, or are not
// waited for any longer.
bool ReadyToStart(const Run& run, Instant now);
// Training may start. With several shards that is once the initial values are
// on disk: no shard could recover without them. Requests it when first called.
bool SafeToStart(Run& run, Turn& turn);
void StartTraining(Run& run, Turn& turn);

// The run ends after the steps that are in progress; at once before the start.
void BeginDrain(Run& run, const std::string& reason, Turn& turn);
// Ends the run once training is done and evaluated. No-op before that. With
// several shards the last state is on disk first: once workers have left, no
// step can be repeated.
void EndIfDone(Run& run, Turn& turn);
// Answers all pushes, tells all workers, and hands over the model. No-op if the
// run is over.
void EndRun(Run& run, const Turn::End& end, Turn& turn);

}  // namespace cohort
