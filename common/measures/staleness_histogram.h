#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace cohort {

// The number of pushes decided at each staleness, in versions.
using StalenessCounts = std::map<int64_t, int64_t>;

// Counts of this staleness and above are combined.
inline constexpr int64_t kStalenessCountedMax = 256;

// Shares in ranges whose bounds double: "0: 12.5 %, 1: 75 %, 2-3: 12.5 %".
// Empty if nothing was counted.
std::string StalenessText(const StalenessCounts& counts);

}  // namespace cohort
