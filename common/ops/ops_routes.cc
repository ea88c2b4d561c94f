#include "common/ops/ops_routes.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/ops/build_info.h"

namespace cohort {
namespace {

constexpr int kServiceUnavailable = 503;

HttpResponse Readiness(const absl::Status& ready) {
  if (ready.ok()) return {.body = "ready\n"};
  return {.status = kServiceUnavailable,
          .body = absl::StrCat(ready.message(), "\n")};
}

}  // namespace

std::map<std::string, HttpHandler> OpsRoutes(const OpsPages& pages) {
  std::vector<MetricSource> metrics = {&BuildInfoFamilies};
  metrics.insert(metrics.end(), pages.metrics.begin(), pages.metrics.end());
  return {
      {"/metrics",
       [metrics = std::move(metrics)]() -> HttpResponse {
         return {.content_type = kMetricsContentType,
                 .body = MetricsPage(metrics)};
       }},
      {"/livez", []() -> HttpResponse { return {.body = "alive\n"}; }},
      {"/readyz", [ready = pages.ready] { return Readiness(ready()); }},
  };
}

}  // namespace cohort
