#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace cohort::kernels::cuda {

// The runtime's error as a status that names the operation: ResourceExhausted
// without memory, FailedPrecondition without a device or without code for it,
// Unavailable for all others, which earlier work may have caused.
absl::Status StatusOf(int error, absl::string_view what);

}  // namespace cohort::kernels::cuda
