// The operations port of a server that trains, over real connections.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "tests/fakes/raw_http.h"
#include "tests/fakes/statuses.h"
#include "tests/rpc/hand_worker.h"
#include "tests/rpc/service_fixture.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

ServerOptions WithOps() {
  ServerOptions options = TinyOptions();
  options.ops_listen = "127.0.0.1:0";
  return options;
}

// The value of the series with exactly this text.
std::optional<double> ValueOf(const std::string& page,
                              const std::string& series) {
  const size_t at = page.find("\n" + series + " ");
  if (at == std::string::npos) return std::nullopt;
  const size_t begin = at + series.size() + 2;
  double value = 0;
  if (!absl::SimpleAtod(page.substr(begin, page.find('\n', begin) - begin),
                        &value)) {
    return std::nullopt;
  }
  return value;
}

class OpsPortTest : public ServiceTest {
 protected:
  std::string Metrics() {
    return HttpGet(server_->ops_address(), "/metrics").body;
  }
  nlohmann::json Status() {
    return nlohmann::json::parse(
        HttpGet(server_->ops_address(), "/status.json").body);
  }
  // Numbers are gathered four times a second.
  double AwaitValue(const std::string& series, double wanted) {
    const SteadyClock clock;
    const Instant end = clock.Now() + absl::Seconds(10);
    std::optional<double> value;
    do {
      value = ValueOf(Metrics(), series);
    } while (value != wanted && clock.Now() < end);
    return value.value_or(-1);
  }
};

TEST_F(OpsPortTest, IsReadyOnceTheServerListensAndUntilItStops) {
  Start(WithOps());
  EXPECT_THAT(out_.str(), HasSubstr(absl::StrCat("page: http://",
                                                 server_->ops_address(), "/")));
  EXPECT_EQ(HttpGet(server_->ops_address(), "/readyz").status, 200);
  EXPECT_EQ(HttpGet(server_->ops_address(), "/livez").status, 200);
  const std::string address = server_->ops_address();
  server_->Stop();
  EXPECT_EQ(HttpGet(address, "/readyz").status, 0);
}

TEST_F(OpsPortTest, CountsAStepAndItsCalls) {
  ServerOptions options = WithOps();
  options.coordinator.epochs = 3;
  StartWithTwoWorkers(options);
  TrainOneStep();
  for (ExchangeCall& exchange : exchanges_) AwaitVerdict(exchange);
  const std::string run = absl::StrCat("{run=\"", server_->run_id(), "\"}");
  EXPECT_EQ(AwaitValue(absl::StrCat("cohort_model_version", run), 1), 1);
  const std::string page = Metrics();
  EXPECT_EQ(ValueOf(page, "cohort_pushes_total{result=\"applied\"}"), 2);
  EXPECT_EQ(ValueOf(page, "cohort_samples_total"), 4);
  EXPECT_EQ(ValueOf(page, "cohort_barrier_wait_seconds_count"), 2);
  EXPECT_EQ(ValueOf(page, "cohort_aggregation_duration_seconds_count"), 1);
  EXPECT_EQ(ValueOf(page, "cohort_apply_duration_seconds_count"), 1);
  EXPECT_EQ(ValueOf(page, "cohort_parameters"), 4);
  // Two gradients of four floats; each is answered with the new weights.
  const std::string encoding = "{encoding=\"float32\"}";
  EXPECT_EQ(ValueOf(page, "cohort_push_bytes_total" + encoding), 32);
  EXPECT_EQ(ValueOf(page, "cohort_pull_bytes_total" + encoding), 32);
  EXPECT_EQ(ValueOf(page, "cohort_push_bytes_total{encoding=\"bfloat16\"}"), 0);
  const std::string exchange =
      "{grpc_method=\"Exchange\",grpc_service=\"cohort.v1.Parameters\","
      "grpc_type=\"bidi_stream\"}";
  EXPECT_EQ(ValueOf(page, "grpc_server_started_total" + exchange), 2);
  EXPECT_EQ(ValueOf(page, "grpc_server_msg_received_total" + exchange), 6);
  // To each worker its weights and the verdict.
  EXPECT_EQ(ValueOf(page, "grpc_server_msg_sent_total" + exchange), 4);
  EXPECT_THAT(page, HasSubstr("process_resident_memory_bytes"));
  EXPECT_THAT(page, HasSubstr("cohort_log_messages_total{level=\"error\"} "));
  EXPECT_THAT(page, HasSubstr("cohort_build_info{version="));
  EXPECT_EQ(ValueOf(page, absl::StrCat("cohort_run_info{run=\"",
                                       server_->run_id(), "\",run_name=\"run-",
                                       server_->run_id(), "\"}")),
            1);
}

TEST_F(OpsPortTest, CountsTheBytesOfEachEncoding) {
  ServerOptions options = WithOps();
  options.coordinator.epochs = 3;
  options.coordinator.policy.wire = ElementType::kBFloat16;
  StartWithTwoWorkers(options);
  PushInBFloat16();
  for (ExchangeCall& exchange : exchanges_) AwaitVerdict(exchange);
  // The other worker keeps no weights.
  EXPECT_EQ(AwaitValue("cohort_pull_bytes_total{encoding=\"bfloat16\"}", 8), 8);
  EXPECT_EQ(AwaitValue("cohort_pull_bytes_total{encoding=\"float32\"}", 16),
            16);
  const std::string page = Metrics();
  EXPECT_EQ(ValueOf(page, "cohort_push_bytes_total{encoding=\"bfloat16\"}"),
            16);
  EXPECT_EQ(ValueOf(page, "cohort_push_bytes_total{encoding=\"float32\"}"), 0);
}

TEST_F(OpsPortTest, TheStatusHasTheNumbersOfTheMetrics) {
  ServerOptions options = WithOps();
  options.coordinator.epochs = 3;
  StartWithTwoWorkers(options);
  TrainOneStep();
  for (ExchangeCall& exchange : exchanges_) AwaitVerdict(exchange);
  AwaitValue("cohort_samples_total", 4);
  const std::string page = Metrics();
  const nlohmann::json status = Status();
  for (const auto& [result, count] : status["push_verdicts"].items()) {
    EXPECT_EQ(ValueOf(page, absl::StrCat("cohort_pushes_total{result=\"",
                                         result, "\"}")),
              count.get<double>())
        << result;
  }
  EXPECT_EQ(status["learning_rate"], *ValueOf(page, "cohort_learning_rate"));
  // Its text has 16 digits.
  EXPECT_DOUBLE_EQ(status["train_loss"].get<double>(),
                   *ValueOf(page, "cohort_loss{split=\"train\"}"));
  EXPECT_EQ(status["workers_live"],
            *ValueOf(page, "cohort_workers_registered"));
  EXPECT_EQ(status["samples_total"], *ValueOf(page, "cohort_samples_planned"));
  EXPECT_EQ(status["run_id"], server_->run_id());
  EXPECT_EQ(status["run_name"], absl::StrCat("run-", server_->run_id()));
}

TEST_F(OpsPortTest, NamesWhoIsGone) {
  ServerOptions options = WithOps();
  options.coordinator.epochs = 3;
  StartWithTwoWorkers(options);
  workers_[1]->BreakSession();
  EXPECT_EQ(
      AwaitValue("cohort_worker_evictions_total{reason=\"disconnect\"}", 1), 1);
  const nlohmann::json status = Status();
  EXPECT_EQ(status["phase"], "waiting");
  EXPECT_EQ(status["waited_for"], nlohmann::json::array({1}));
  EXPECT_THAT(status["state"].get<std::string>(), HasSubstr("worker 1"));
  EXPECT_EQ(status["workers"][1]["state"], "vacant");
}

TEST_F(OpsPortTest, TellsOfCheckpointsAndWhatARestartContinues) {
  ServerOptions options = WithOps();
  options.coordinator.epochs = 3;
  options.files.checkpoint_dir = TemporaryFolder("ops-checkpoints");
  StartWithTwoWorkers(options);
  TrainOneStep();
  for (ExchangeCall& exchange : exchanges_) AwaitVerdict(exchange);
  EXPECT_EQ(ValueOf(Metrics(), "cohort_checkpoints_total"), 0);
  TimedContext context;
  v1::CheckpointReply reply;
  const grpc::Status saved = workers_[0]->admin().Checkpoint(
      &context, v1::CheckpointRequest(), &reply);
  ASSERT_TRUE(saved.ok()) << saved.error_message();
  EXPECT_EQ(AwaitValue("cohort_checkpoints_total", 1), 1);
  const std::string page = Metrics();
  EXPECT_EQ(ValueOf(page, "cohort_checkpoint_last_version"), 1);
  EXPECT_EQ(ValueOf(page, "cohort_checkpoint_duration_seconds_count"), 1);
  EXPECT_GT(ValueOf(page, "cohort_checkpoint_size_bytes"), 100);
  EXPECT_GT(ValueOf(page, "cohort_storage_free_bytes"), 0);
  EXPECT_EQ(Status()["checkpoint"]["version"], 1);

  exchanges_.clear();
  workers_.clear();
  server_.reset();
  options.files.resume = true;
  Start(options);
  const std::string after = Metrics();
  EXPECT_EQ(ValueOf(after, "cohort_restores_total{result=\"ok\"}"), 1);
  EXPECT_EQ(ValueOf(after, "cohort_checkpoint_last_version"), 1);
  // The previous process wrote it a moment ago.
  const double written = OkValue(
      ValueOf(after, "cohort_checkpoint_last_success_timestamp_seconds"));
  EXPECT_NEAR(written, absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()),
              120);
}

TEST_F(OpsPortTest, SlowClientsDoNotHoldUpTraining) {
  ServerOptions options = WithOps();
  options.coordinator.epochs = 3;
  StartWithTwoWorkers(options);
  std::vector<RawConnection> slow;
  for (int i = 0; i < 200; ++i) {
    slow.emplace_back(server_->ops_address());
    slow.back().Send(i % 2 == 0
                         ? "GET /chart.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
                         : "GET /metrics HTTP/1.1\r\nHost: lo");
  }
  TrainOneStep();
  for (ExchangeCall& exchange : exchanges_) {
    EXPECT_EQ(AwaitVerdict(exchange).version(), 1);
  }
  EXPECT_EQ(HttpGet(server_->ops_address(), "/livez").status, 200);
}

TEST_F(OpsPortTest, APortInUseEndsTheStart) {
  Start(WithOps());
  ServerOptions second = WithOps();
  second.ops_listen = server_->ops_address();
  std::ostringstream out;
  EXPECT_THAT(StartServer(second, out), IsError(kUnavailable, "--ops_listen"));
}

TEST_F(OpsPortTest, AFileForAPortThatIsOffIsRefused) {
  ServerOptions options = TinyOptions();
  options.ops_address_file = "somewhere";
  std::ostringstream out;
  EXPECT_TRUE(absl::IsInvalidArgument(StartServer(options, out).status()));
}

}  // namespace
}  // namespace cohort
