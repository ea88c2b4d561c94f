#include "common/ops/metrics_page.h"

#include <iterator>
#include <utility>

#include "prometheus/metric_type.h"
#include "prometheus/text_serializer.h"

namespace cohort {

std::string MetricsPage(const std::vector<MetricSource>& sources) {
  MetricFamilies families;
  for (const MetricSource& source : sources) {
    MetricFamilies own = source();
    families.insert(families.end(), std::make_move_iterator(own.begin()),
                    std::make_move_iterator(own.end()));
  }
  return prometheus::TextSerializer().Serialize(families);
}

prometheus::MetricFamily GaugeFamily(const std::string& name,
                                     const std::string& help) {
  return {name, help, prometheus::MetricType::Gauge, {}};
}

prometheus::MetricFamily CounterFamily(const std::string& name,
                                       const std::string& help) {
  return {name, help, prometheus::MetricType::Counter, {}};
}

void AddValue(prometheus::MetricFamily& family, double value,
              std::vector<prometheus::ClientMetric::Label> labels) {
  prometheus::ClientMetric metric;
  metric.label = std::move(labels);
  if (family.type == prometheus::MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  family.metric.push_back(std::move(metric));
}

}  // namespace cohort
