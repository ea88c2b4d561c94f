#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace cohort::kernels::cuda {

// What the runtime answered, with what was being done: ResourceExhausted
// without memory, FailedPrecondition without a device or without code for it,
// Unavailable for everything else, which may be of earlier work.
absl::Status StatusOf(int error, absl::string_view what);

}  // namespace cohort::kernels::cuda
