#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"
#include "server/access/access_control.h"

namespace cohort {

// cohort_denied_calls_total, by reason: calls and pages that were denied, and
// messages that name another rank than their client's.
// cohort_tls_handshake_failures_total: clients that did not get so far.
// Thread safety: safe.
class AccessCollector final : public prometheus::Collectable {
 public:
  // `access` must outlive the object. `handshake_failures` may be null.
  AccessCollector(const AccessControl& access,
                  std::function<int64_t()> handshake_failures)
      : access_(access), handshake_failures_(std::move(handshake_failures)) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const AccessControl& access_;
  const std::function<int64_t()> handshake_failures_;
};

}  // namespace cohort
