#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/ops/http_server.h"
#include "common/ops/metrics_page.h"

namespace cohort {

// The parts of the operations port that every process of Cohort has.
struct OpsPages {
  // Must not be null.
  std::vector<MetricSource> metrics;
  // OK once the process can do its work; otherwise the message says what it
  // waits for.
  std::function<absl::Status()> ready;
};

// /metrics, with cohort_build_info first, /livez (200 as long as the port
// answers at all) and /readyz (200, or 503 with the reason).
std::map<std::string, HttpHandler> OpsRoutes(const OpsPages& pages);

}  // namespace cohort
