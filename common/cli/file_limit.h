#pragma once

#include <cstdint>

namespace cohort {

// The number of files and connections that this process may have open at a
// time.
int64_t FileLimit();

// Raises that limit as far as the process may without privileges, and returns
// it. Shells and container runtimes start processes with a low soft limit
// (often 1024) for the sake of programs that use select; ours do not.
int64_t RaiseFileLimit();

}  // namespace cohort
