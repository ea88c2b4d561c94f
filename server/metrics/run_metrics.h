#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"
#include "server/metrics/run_figures.h"

namespace cohort {

// Limit on ranks with separate series; there may be more ranks.
inline constexpr int64_t kRankSeriesMax = 256;
// Limit on layers with separate series.
inline constexpr int64_t kLayerSeriesMax = 256;

// The metrics of a run. METRICS.md lists them.
std::vector<prometheus::MetricFamily> RunFamilies(const RunFigures& figures);

// The metrics of the newest figures, for a page of metrics.
class RunCollector final : public prometheus::Collectable {
 public:
  // `figures` must never return null.
  explicit RunCollector(std::function<SharedFigures()> figures);
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const std::function<SharedFigures()> figures_;
};

}  // namespace cohort
