#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace cohort {

struct BatchShare {
  int64_t batch_size = 1;
  double share = 1;
};

// The images of a worker in one step: batch size times share, rounded to the
// nearest (halves up). Each worker registers its own number, and all sums are
// weighted by it. So workers of different speed can do steps of equal length,
// and a step stays exact.
//
// Errors: InvalidArgument a batch size below 1; a share that is not a number
//   above 0, leaves less than one image, or more than 2^31.
absl::StatusOr<int64_t> SamplesOf(const BatchShare& share);

}  // namespace cohort
