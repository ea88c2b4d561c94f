#pragma once

#include <cstdint>

#include "common/ops/metrics_page.h"
#include "server/metrics/run_figures.h"

namespace cohort {

// Limit on ranks with separate series; there may be more ranks.
inline constexpr int64_t kRankSeriesMax = 256;
// Limit on layers with separate series.
inline constexpr int64_t kLayerSeriesMax = 256;

// The metrics of a run. METRICS.md lists them.
MetricFamilies RunFamilies(const RunFigures& figures);

}  // namespace cohort
