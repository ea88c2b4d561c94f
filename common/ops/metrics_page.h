#pragma once

#include <string>
#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace cohort {

inline constexpr char kMetricsContentType[] =
    "text/plain; version=0.0.4; charset=utf-8";

// Everything that the collectables collect, in Prometheus' text format 0.0.4.
// They must not be null.
std::string MetricsPage(
    const std::vector<const prometheus::Collectable*>& collectables);

// Gauges and counters with one value each, and families of labelled ones, for
// collectables that store their own numbers.
prometheus::MetricFamily GaugeFamily(const std::string& name,
                                     const std::string& help);
prometheus::MetricFamily CounterFamily(const std::string& name,
                                       const std::string& help);
// Adds a value to a family of either type.
void AddValue(prometheus::MetricFamily& family, double value,
              std::vector<prometheus::ClientMetric::Label> labels = {});

}  // namespace cohort
