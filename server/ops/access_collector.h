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
// cohort_tls_handshake_failures_total, by port: clients that did not get so
// far. Thread safety: safe.
class AccessCollector final : public prometheus::Collectable {
 public:
  // The failures of each port; a function may be null.
  struct Handshakes {
    std::function<int64_t()> grpc;
    std::function<int64_t()> ops;
  };

  // `access` must outlive the object.
  AccessCollector(const AccessControl& access, Handshakes handshakes)
      : access_(access), handshakes_(std::move(handshakes)) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const AccessControl& access_;
  const Handshakes handshakes_;
};

}  // namespace cohort
