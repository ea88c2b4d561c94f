#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace cohort {

// Calls `body` once for each of 0 to n - 1, with this many threads (1: in the
// calling one), and returns when all calls have ended. Each thread gets every
// `threads`-th number, ascending.
void ParallelFor(int32_t threads, int64_t n,
                 absl::FunctionRef<void(int64_t)> body);

}  // namespace cohort
