#include "common/ops/certificate_collector.h"

#include "common/ops/metrics_page.h"

namespace cohort {

std::vector<prometheus::MetricFamily> CertificateCollector::Collect() const {
  prometheus::MetricFamily family = GaugeFamily(
      "cohort_tls_certificate_not_after_timestamp_seconds",
      "When the certificate of this process expires, seconds since 1970.");
  const absl::Time not_after = not_after_();
  if (not_after == absl::InfiniteFuture()) return {};
  AddValue(family, static_cast<double>(absl::ToUnixSeconds(not_after)));
  return {family};
}

}  // namespace cohort
