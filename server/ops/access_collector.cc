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
  AddValue(family, static_cast<double>(figures_.Newest()->service.denied_ranks),
           {{.name = "reason", .value = "rank"}});
  return {family};
}

}  // namespace cohort
