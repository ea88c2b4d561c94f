#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace cohort {

// cohort_tls_certificate_not_after_timestamp_seconds: when the certificate of
// this process expires. No value without one.
// Thread safety: safe.
class CertificateCollector final : public prometheus::Collectable {
 public:
  // `not_after` returns InfiniteFuture without a certificate.
  explicit CertificateCollector(std::function<absl::Time()> not_after)
      : not_after_(std::move(not_after)) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const std::function<absl::Time()> not_after_;
};

}  // namespace cohort
