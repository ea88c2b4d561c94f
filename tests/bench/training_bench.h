#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/settings/options.h"

namespace cohort::bench {

struct TrainingSetup {
  int32_t workers = 1;
  std::string model = "cnn";
  int64_t batch_size = 64;
  // Timed steps; a few more warm up.
  int32_t steps = 40;
  PolicyOptions policy;
  // How long the worker of the highest rank pauses before each step.
  absl::Duration pause;
  // How long every worker pauses for each sample of a step; that of the highest
  // rank three times as long.
  absl::Duration sample_pause;
  // If true, gradients are held back until the backward pass is over.
  bool send_after_backward = false;
};

struct TrainingSeconds {
  // Mean seconds of a whole step.
  double step = 0;
  // Median seconds from the end of the backward pass to the weights of the next
  // version: the part of the exchange that is not hidden.
  double exposed = 0;
};

// Times synchronous training on 28x28 images: workers as threads of this
// process, timed by rank 0. Call SetArithmeticThreads(1) first, as the
// quickstart does.
absl::StatusOr<TrainingSeconds> TimeTraining(const TrainingSetup& setup);

}  // namespace cohort::bench
