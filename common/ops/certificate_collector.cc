#include "common/ops/certificate_collector.h"

namespace cohort {

MetricFamilies CertificateFamilies(absl::Time not_after) {
  if (not_after == absl::InfiniteFuture()) return {};
  prometheus::MetricFamily family = GaugeFamily(
      "cohort_tls_certificate_not_after_timestamp_seconds",
      "When the certificate of this process expires, seconds since 1970.");
  AddValue(family, static_cast<double>(absl::ToUnixSeconds(not_after)));
  return {family};
}

}  // namespace cohort
