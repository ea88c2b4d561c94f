#include "server/ops/access_collector.h"

#include <string>

#include "common/ops/metrics_page.h"

namespace cohort {

std::vector<prometheus::MetricFamily> AccessCollector::Collect() const {
  prometheus::MetricFamily family = CounterFamily(
      "cohort_denied_calls_total",
      "Calls, pages and messages that a client was denied, by reason.");
  for (const Refusal refusal : kRefusals) {
    AddValue(family, static_cast<double>(access_.denied(refusal)),
             {{.name = "reason", .value = std::string(RefusalName(refusal))}});
  }
  prometheus::MetricFamily handshakes =
      CounterFamily("cohort_tls_handshake_failures_total",
                    "TLS handshakes that failed on the gRPC port.");
  AddValue(handshakes, handshake_failures_ == nullptr
                           ? 0.0
                           : static_cast<double>(handshake_failures_()));
  return {family, handshakes};
}

}  // namespace cohort
