#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cohort::bench {

// The work of all workers of a run. They do no arithmetic.
struct RunShape {
  int32_t workers = 1;
  int32_t steps = 1;
  // Channels of the one batch-norm layer; 0: there is none.
  int64_t channels = 0;
  // Rendezvous a step, and how many of them share a wait.
  int32_t calls = 0;
  int32_t together = 1;
  // Elements of each parameter.
  std::vector<int64_t> parameters;
};

// As an argument of a process: whole numbers, separated by commas.
std::string ShapeText(const RunShape& shape);
// Errors: InvalidArgument.
absl::StatusOr<RunShape> ShapeFromText(absl::string_view text);

}  // namespace cohort::bench
