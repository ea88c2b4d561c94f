#pragma once

#include <cstdint>
#include <string>

namespace cohort {

// Sets how many threads LibTorch and its libraries use. Call before any
// arithmetic.
void SetArithmeticThreads(int32_t threads);

// Such as "libtorch 1.13.0".
std::string LibraryVersions();

}  // namespace cohort
