#include "server/metrics/grpc_metrics.h"

#include <string>

#include "common/ops/metrics_page.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

const GrpcMethod kPull = {
    .type = "server_stream", .service = "v1.Parameters", .method = "Pull"};

// In the order of their names.
std::string Labels(const std::string& code = "", const std::string& le = "") {
  return "{" + (code.empty() ? code : "grpc_code=\"" + code + "\",") +
         "grpc_method=\"Pull\",grpc_service=\"v1.Parameters\","
         "grpc_type=\"server_stream\"" +
         (le.empty() ? le : ",le=\"" + le + "\"") + "} ";
}

std::string Page(const GrpcMetrics& metrics) {
  return MetricsPage({[&metrics] { return metrics.Collect(); }});
}

TEST(GrpcMetricsTest, EveryCodeIsThereFromTheStart) {
  const GrpcMetrics metrics({kPull});
  const std::string page = Page(metrics);
  EXPECT_THAT(page, HasSubstr("grpc_server_started_total" + Labels() + "0\n"));
  for (const char* code : {"OK", "Canceled", "Unavailable", "DataLoss"}) {
    EXPECT_THAT(page,
                HasSubstr("grpc_server_handled_total" + Labels(code) + "0\n"));
  }
}

TEST(GrpcMetricsTest, CountsCallsByMethodCodeAndDuration) {
  GrpcMetrics metrics({kPull});
  GrpcMetrics::Calls& calls = metrics.Of("/v1.Parameters/Pull");
  calls.Started();
  calls.Started();
  calls.Received();
  calls.Sent();
  calls.Handled(14, absl::Milliseconds(20));
  metrics.Of("/other.Service/Call").Started();
  const std::string page = Page(metrics);
  for (const std::string& line :
       {"grpc_server_started_total" + Labels() + "2\n",
        "grpc_server_msg_received_total" + Labels() + "1\n",
        "grpc_server_msg_sent_total" + Labels() + "1\n",
        "grpc_server_handled_total" + Labels("Unavailable") + "1\n",
        "grpc_server_handling_seconds_bucket" + Labels("", "0.01") + "0\n",
        "grpc_server_handling_seconds_bucket" + Labels("", "0.05") + "1\n",
        "grpc_server_handling_seconds_sum" + Labels() + "0.02\n",
        std::string("grpc_server_started_total{grpc_method=\"unknown\",grpc_"
                    "service=\"unknown\",grpc_type=\"unknown\"} 1\n")}) {
    EXPECT_THAT(page, HasSubstr(line));
  }
}

TEST(GrpcMetricsTest, CodesThatDoNotExistCountAsUnknown) {
  GrpcMetrics metrics({kPull});
  metrics.Of("/v1.Parameters/Pull").Handled(99, absl::ZeroDuration());
  EXPECT_THAT(Page(metrics), HasSubstr("grpc_server_handled_total" +
                                       Labels("Unknown") + "1\n"));
}

}  // namespace
}  // namespace cohort
