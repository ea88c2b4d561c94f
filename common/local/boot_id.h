#pragma once

#include <string>

namespace cohort {

// Identifies the running kernel, which is where shared memory ends: containers
// of one host have the same. Empty if unknown.
std::string BootId();

}  // namespace cohort
