#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"

namespace cohort {

// Sets how many threads LibTorch and its libraries use. Call before any
// arithmetic.
void SetArithmeticThreads(int32_t threads);

// Runs ranges of [0, tasks) on the same threads, as kernels::ParallelFor does.
void RunOnArithmeticThreads(
    int64_t tasks, absl::FunctionRef<void(int64_t begin, int64_t end)> run);

// Such as "libtorch 1.13.0".
std::string LibraryVersions();

}  // namespace cohort
