#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/model_layout.h"

namespace cohort {

// Whether training may start from `values`, the elements of `partition`. It
// reads all of them, so it is called where they arrive and not under the lock
// of the state machine.
// Errors: InvalidArgument naming parameter and element: not finite.
absl::Status CheckInitialValues(const ModelLayout& layout,
                                const Partition& partition,
                                absl::Span<const float> values);

}  // namespace cohort
