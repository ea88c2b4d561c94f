#pragma once

#include "absl/time/time.h"
#include "common/ops/metrics_page.h"

namespace cohort {

// cohort_tls_certificate_not_after_timestamp_seconds: when the certificate of
// this process expires. Nothing for InfiniteFuture, without one.
MetricFamilies CertificateFamilies(absl::Time not_after);

}  // namespace cohort
