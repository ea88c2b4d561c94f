#pragma once

#include <cstdint>
#include <optional>

#include "common/ids.h"
#include "common/push.h"
#include "worker/telemetry/step_phases.h"

namespace cohort {

// The activity of a trainer.
enum class TrainerState { kWaiting, kTraining, kEvaluating, kCollecting };

// One step that ended with a verdict.
struct StepReport {
  // The version after the verdict.
  Version version;
  Verdict verdict = Verdict::kApplied;
  int64_t samples = 0;
  // Mean over this worker's samples; absent if none had a valid label.
  std::optional<double> loss;
  PhaseTimes phases = {};
};

// Receives a trainer's events, for the log, metrics and heartbeats. Called on
// the thread that trains, and must return at once.
class TrainerObserver {
 public:
  virtual ~TrainerObserver() = default;
  virtual void OnState(TrainerState state) = 0;
  // The weights in the model are of this version.
  virtual void OnWeights(Version version) = 0;
  virtual void OnStep(const StepReport& report) = 0;
};

}  // namespace cohort
