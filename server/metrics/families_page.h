#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "common/ops/metrics_page.h"
#include "prometheus/client_metric.h"
#include "prometheus/metric_family.h"
#include "server/metrics/bucket_counts.h"

namespace cohort {

using MetricLabels = std::vector<prometheus::ClientMetric::Label>;

// Collects the families of one page. A family is begun by its name and filled
// at once.
class FamiliesPage {
 public:
  FamiliesPage& Gauge(const char* name, const char* help) {
    families_.push_back(GaugeFamily(name, help));
    return *this;
  }
  FamiliesPage& Counter(const char* name, const char* help) {
    families_.push_back(CounterFamily(name, help));
    return *this;
  }
  FamiliesPage& Histogram(const char* name, const char* help) {
    families_.push_back({name, help, prometheus::MetricType::Histogram, {}});
    return *this;
  }

  template <typename Number>
  FamiliesPage& Value(Number value, MetricLabels labels = {}) {
    AddValue(families_.back(), static_cast<double>(value), std::move(labels));
    return *this;
  }
  // No-op if `value` is absent.
  template <typename Number>
  FamiliesPage& Value(const std::optional<Number>& value,
                      MetricLabels labels = {}) {
    if (value.has_value()) Value(*value, std::move(labels));
    return *this;
  }
  FamiliesPage& Value(const BucketCounts& counts, MetricLabels labels = {}) {
    prometheus::ClientMetric metric;
    metric.label = std::move(labels);
    metric.histogram = counts.ToMetric();
    families_.back().metric.push_back(std::move(metric));
    return *this;
  }

  // Returns the families, except those without a value.
  MetricFamilies Take() {
    std::erase_if(families_, [](const auto& f) { return f.metric.empty(); });
    return std::move(families_);
  }

 private:
  MetricFamilies families_;
};

}  // namespace cohort
