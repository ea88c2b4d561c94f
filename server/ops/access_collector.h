#pragma once

#include <cstdint>
#include <functional>

#include "common/ops/metrics_page.h"
#include "server/access/access_control.h"

namespace cohort {

// The TLS handshakes that failed at each port; a function may be null.
struct HandshakeFailures {
  std::function<int64_t()> grpc;
  std::function<int64_t()> ops;
};

// cohort_denied_calls_total, by reason: calls and pages that were denied, and
// messages that name another rank than their client's.
// cohort_tls_handshake_failures_total, by port: clients that did not get so
// far.
MetricFamilies AccessFamilies(const AccessControl& access,
                              const HandshakeFailures& failures);

}  // namespace cohort
