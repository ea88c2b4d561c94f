#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/options.h"

namespace cohort::bench {

struct TrainingSetup {
  int32_t workers = 1;
  // Timed ones; a few more warm up.
  int32_t steps = 40;
  PolicyOptions policy;
  // How long the worker of the highest rank does nothing before each step.
  absl::Duration pause;
};

// Seconds a step of the quickstart's network (cnn, 28x28, 64 images a worker)
// in synchronous training: workers as threads of this process, timed by rank
// 0. Call SetArithmeticThreads(1) first, as the quickstart does.
absl::StatusOr<double> TrainingStepSeconds(const TrainingSetup& setup);

// Images of one worker and step.
inline constexpr int64_t kTrainingBatch = 64;

}  // namespace cohort::bench
