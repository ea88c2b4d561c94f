#include "server/ops/access_collector.h"

#include <string>

namespace cohort {

MetricFamilies AccessFamilies(const AccessControl& access,
                              const HandshakeFailures& failures) {
  prometheus::MetricFamily family = CounterFamily(
      "cohort_denied_calls_total",
      "Calls, pages and messages that a client was denied, by reason.");
  for (const Refusal refusal : kRefusals) {
    AddValue(family, static_cast<double>(access.denied(refusal)),
             {{.name = "reason", .value = std::string(RefusalName(refusal))}});
  }
  prometheus::MetricFamily handshakes = CounterFamily(
      "cohort_tls_handshake_failures_total",
      "Connections that ended before their TLS handshake, by port.");
  const auto add = [&](const char* port, const std::function<int64_t()>& of) {
    AddValue(handshakes, of == nullptr ? 0.0 : static_cast<double>(of()),
             {{.name = "port", .value = port}});
  };
  add("grpc", failures.grpc);
  add("ops", failures.ops);
  return {family, handshakes};
}

}  // namespace cohort
