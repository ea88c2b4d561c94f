#include "worker/metrics/worker_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "common/log/log.h"
#include "common/ops/log_collector.h"
#include "common/ops/metrics_page.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

constexpr absl::string_view kStates[] = {"joining", "training"};
constexpr absl::string_view kMethods[] = {"Session", "Register"};

std::string Page(const WorkerMetrics& metrics) {
  return absl::StrCat(
      "\n",
      MetricsPage({[&metrics] { return metrics.Collect(); }, &LogFamilies}));
}

TEST(WorkerMetricsTest, EveryLabelIsThereFromTheStart) {
  const WorkerMetrics metrics(kStates, kMethods);
  const std::string page = Page(metrics);
  for (const char* line :
       {"cohort_worker_steps_total 0\n", "cohort_worker_samples_total 0\n",
        "cohort_worker_reconnects_total 0\n",
        "cohort_worker_pulled_version 0\n",
        "cohort_worker_rpc_retries_total{grpc_method=\"Session\"} 0\n",
        "cohort_worker_rpc_retries_total{grpc_method=\"Register\"} 0\n",
        "cohort_worker_state{state=\"joining\"} 1\n",
        "cohort_worker_state{state=\"training\"} 0\n",
        "cohort_log_messages_total{level=\"error\"} "}) {
    EXPECT_THAT(page, HasSubstr(absl::StrCat("\n", line)));
  }
  for (const absl::string_view phase : kStepPhaseNames) {
    EXPECT_THAT(page, HasSubstr(absl::StrCat(
                          "cohort_worker_step_duration_seconds_count{phase=\"",
                          phase, "\"} 0\n")));
  }
}

TEST(WorkerMetricsTest, StepsAreCountedWithTheirPhases) {
  WorkerMetrics metrics(kStates, kMethods);
  metrics.AddStep({absl::Milliseconds(250), absl::Milliseconds(500)}, 32, 1.5);
  // All labels were ignored: the loss stays.
  metrics.AddStep({absl::Milliseconds(250)}, 30, std::nullopt);
  metrics.SetState("training");
  metrics.SetVersion(7);
  metrics.AddRetry("Register");
  metrics.AddRetry("unheard of");
  metrics.AddReconnect();
  const std::string page = Page(metrics);
  for (const char* line :
       {"cohort_worker_steps_total 2\n", "cohort_worker_samples_total 62\n",
        "cohort_worker_loss 1.5\n", "cohort_worker_pulled_version 7\n",
        "cohort_worker_step_duration_seconds_sum{phase=\"data\"} 0.5\n",
        "cohort_worker_step_duration_seconds_sum{phase=\"forward\"} 0.5\n",
        "cohort_worker_step_duration_seconds_bucket{phase=\"data\",le=\"0.2\"}"
        " 0\n",
        "cohort_worker_step_duration_seconds_bucket{phase=\"data\",le=\"0.5\"}"
        " 2\n",
        "cohort_worker_rpc_retries_total{grpc_method=\"Register\"} 1\n",
        "cohort_worker_reconnects_total 1\n",
        "cohort_worker_state{state=\"joining\"} 0\n",
        "cohort_worker_state{state=\"training\"} 1\n"}) {
    EXPECT_THAT(page, HasSubstr(absl::StrCat("\n", line)));
  }
}

TEST(WorkerMetricsTest, MessagesOfTheLogAreCounted) {
  const WorkerMetrics metrics(kStates, kMethods);
  const int64_t before = LogMessageCount(LogLevel::kError);
  testing::internal::CaptureStderr();
  Log(LogLevel::kError, "text");
  testing::internal::GetCapturedStderr();
  EXPECT_THAT(
      Page(metrics),
      HasSubstr(absl::StrCat("\ncohort_log_messages_total{level=\"error\"} ",
                             before + 1, "\n")));
}

}  // namespace
}  // namespace cohort
