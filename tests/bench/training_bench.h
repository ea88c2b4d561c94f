#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace cohort::bench {

// Images a second of the quickstart's network (cnn, 28x28, batch 64 a worker)
// in synchronous training with global batch norm: workers as threads of this
// process. Call SetArithmeticThreads(1) first, as the quickstart does.
absl::StatusOr<double> TrainingImagesPerSecond(int32_t workers, int32_t steps);

}  // namespace cohort::bench
