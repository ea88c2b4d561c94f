#include "common/ops/ops_routes.h"

#include "absl/strings/str_cat.h"
#include "common/ops/build_info.h"
#include "common/ops/metrics_page.h"

namespace cohort {
namespace {

class BuildCollector final : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override {
    return {BuildInfoFamily()};
  }
};

constexpr int kServiceUnavailable = 503;

HttpResponse Readiness(const absl::Status& ready) {
  if (ready.ok()) return {.body = "ready\n"};
  return {.status = kServiceUnavailable,
          .body = absl::StrCat(ready.message(), "\n")};
}

}  // namespace

std::map<std::string, HttpHandler> OpsRoutes(const OpsPages& pages) {
  return {
      {"/metrics",
       [metrics = pages.metrics]() -> HttpResponse {
         const BuildCollector build;
         std::vector<const prometheus::Collectable*> all = {&build};
         all.insert(all.end(), metrics.begin(), metrics.end());
         return {.content_type = kMetricsContentType, .body = MetricsPage(all)};
       }},
      {"/livez", []() -> HttpResponse { return {.body = "alive\n"}; }},
      {"/readyz", [ready = pages.ready] { return Readiness(ready()); }},
  };
}

}  // namespace cohort
