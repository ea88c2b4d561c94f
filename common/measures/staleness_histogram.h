#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace cohort {

// How many pushes were decided with which staleness, in versions.
using StalenessCounts = std::map<int64_t, int64_t>;

// Counts of this staleness and above are kept as one.
inline constexpr int64_t kStalenessCountedMax = 256;

// Shares in ranges whose ends double: "0: 12.5 %, 1: 75 %, 2-3: 12.5 %".
// Empty if nothing was counted.
std::string StalenessText(const StalenessCounts& counts);

}  // namespace cohort
