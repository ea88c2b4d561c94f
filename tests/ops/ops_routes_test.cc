#include "common/ops/ops_routes.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/ops/metrics_page.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cohort {
namespace {

MetricFamilies TwoNumbers() {
  prometheus::MetricFamily gauge = GaugeFamily("cohort_a", "First.");
  AddValue(gauge, 1.5);
  prometheus::MetricFamily counter = CounterFamily("cohort_b_total", "More.");
  AddValue(counter, 2, {{"kind", "odd \"one\"\n"}});
  AddValue(counter, 3, {{"kind", "even"}});
  return {gauge, counter};
}

TEST(OpsRoutesTest, MetricsAreInTextFormat) {
  const auto routes = OpsRoutes({.metrics = {&TwoNumbers}});
  const HttpResponse page = routes.at("/metrics")();
  EXPECT_EQ(page.content_type, "text/plain; version=0.0.4; charset=utf-8");
  const size_t begin = page.body.find("# HELP cohort_a");
  ASSERT_NE(begin, std::string::npos);
  EXPECT_THAT(page.body.substr(0, begin),
              testing::HasSubstr("cohort_build_info{version="));
  EXPECT_EQ(page.body.substr(begin),
            "# HELP cohort_a First.\n"
            "# TYPE cohort_a gauge\n"
            "cohort_a 1.5\n"
            "# HELP cohort_b_total More.\n"
            "# TYPE cohort_b_total counter\n"
            "cohort_b_total{kind=\"odd \\\"one\\\"\\n\"} 2\n"
            "cohort_b_total{kind=\"even\"} 3\n");
}

TEST(OpsRoutesTest, ReadinessFollowsTheProcessAndLivenessDoesNot) {
  absl::Status ready = absl::UnavailableError("restoring a checkpoint");
  const auto routes = OpsRoutes({.ready = [&ready] { return ready; }});
  EXPECT_EQ(routes.at("/readyz")().status, 503);
  EXPECT_EQ(routes.at("/readyz")().body, "restoring a checkpoint\n");
  EXPECT_EQ(routes.at("/livez")().status, 200);
  ready = absl::OkStatus();
  EXPECT_EQ(routes.at("/readyz")().status, 200);
}

}  // namespace
}  // namespace cohort
