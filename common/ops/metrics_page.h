#pragma once

#include <functional>
#include <string>
#include <vector>

#include "prometheus/client_metric.h"
#include "prometheus/metric_family.h"

namespace cohort {

inline constexpr char kMetricsContentType[] =
    "text/plain; version=0.0.4; charset=utf-8";

using MetricFamilies = std::vector<prometheus::MetricFamily>;
// Metrics of this moment; on any thread.
using MetricSource = std::function<MetricFamilies()>;

// Everything that the sources have, in Prometheus' text format 0.0.4. They must
// not be null.
std::string MetricsPage(const std::vector<MetricSource>& sources);

// Gauges and counters with one value each, and families of labelled ones, for
// sources that store their own numbers.
prometheus::MetricFamily GaugeFamily(const std::string& name,
                                     const std::string& help);
prometheus::MetricFamily CounterFamily(const std::string& name,
                                       const std::string& help);
// Adds a value to a family of either type.
void AddValue(prometheus::MetricFamily& family, double value,
              std::vector<prometheus::ClientMetric::Label> labels = {});

}  // namespace cohort
