#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace cohort {

// Calls `body` once for each of 0 to n - 1 with this many threads (1: in the
// calling thread), and returns when all calls have ended. Each thread takes
// every `threads`-th number, in ascending order.
void ParallelFor(int32_t threads, int64_t n,
                 absl::FunctionRef<void(int64_t)> body);

}  // namespace cohort
