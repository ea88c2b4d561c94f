// Information for operators and dashboards besides the run itself, over a real
// connection.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <optional>
#include <string>

#include "absl/time/clock.h"
#include "common/log/log.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"
#include "tests/rpc/hand_worker.h"
#include "tests/rpc/service_fixture.h"

namespace cohort {
namespace {

using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

class TelemetryServiceTest : public ServiceTest {
 protected:
  static v1::SessionRequest Heartbeat(
      const std::map<std::string, double>& phases) {
    v1::SessionRequest request;
    request.mutable_heartbeat()->mutable_phase_seconds()->insert(phases.begin(),
                                                                 phases.end());
    return request;
  }

  // The next echo on the session of rank 0.
  std::optional<v1::HeartbeatEcho> AwaitEcho() {
    while (std::optional<v1::SessionReply> reply =
               workers_[0]->session().Read()) {
      if (reply->has_heartbeat_echo()) return reply->heartbeat_echo();
    }
    return std::nullopt;
  }

  grpc::Status SetLevel(const std::string& level, v1::SetLogLevelReply& reply) {
    TimedContext context;
    v1::SetLogLevelRequest request;
    request.set_level(level);
    return workers_[0]->admin().SetLogLevel(&context, request, &reply);
  }

  // The phases of `rank`, as shown in the status that rank `asking` gets.
  std::map<std::string, double> PhasesOf(int rank, size_t asking = 0) {
    const v1::Status status = StatusFor(*workers_[asking]);
    const auto& phases = status.workers(rank).phase_seconds();
    return {phases.begin(), phases.end()};
  }
};

TEST_F(TelemetryServiceTest, StatusHasThePhasesThatAWorkerToldLast) {
  StartWithTwoWorkers(TinyOptions());
  v1::SessionRequest heartbeat =
      Heartbeat({{"data", 0.25}, {"wait", 0}, {"made-up", 3}});
  heartbeat.mutable_heartbeat()->set_sent_unix_us(1);
  workers_[0]->session().Write(heartbeat);
  // The echo follows the phases. That heartbeat and those without news change
  // nothing.
  ASSERT_TRUE(AwaitEcho().has_value());
  EXPECT_THAT(PhasesOf(0),
              UnorderedElementsAre(Pair("data", 0.25), Pair("wait", 0)));
  EXPECT_THAT(PhasesOf(1), IsEmpty());
  heartbeat = Heartbeat({});
  heartbeat.mutable_heartbeat()->set_sent_unix_us(2);
  workers_[0]->session().Write(heartbeat);
  ASSERT_TRUE(AwaitEcho().has_value());
  EXPECT_EQ(PhasesOf(0).size(), 2u);
  // A new incarnation has done nothing yet.
  workers_[0]->Leave();
  EXPECT_THAT(PhasesOf(0, 1), IsEmpty());
}

TEST_F(TelemetryServiceTest, StatusHasTheUseOfCoresAndMemory) {
  StartWithTwoWorkers(TinyOptions());
  v1::SessionRequest heartbeat = Heartbeat({});
  heartbeat.mutable_heartbeat()->set_sent_unix_us(1);
  heartbeat.mutable_heartbeat()->set_cpu_cores(1.5);
  heartbeat.mutable_heartbeat()->set_resident_bytes(1 << 20);
  heartbeat.mutable_heartbeat()->set_transport("shm");
  workers_[0]->session().Write(heartbeat);
  ASSERT_TRUE(AwaitEcho().has_value());
  const v1::Status status = StatusFor(*workers_[0]);
  EXPECT_EQ(status.workers(0).cpu_cores(), 1.5);
  EXPECT_EQ(status.workers(0).resident_bytes(), 1 << 20);
  EXPECT_EQ(status.workers(0).transport(), "shm");
  EXPECT_FALSE(status.workers(1).has_cpu_cores());
  EXPECT_EQ(status.workers(1).transport(), "");
}

TEST_F(TelemetryServiceTest, ImpossibleUseEndsTheSession) {
  for (const bool cpu : {true, false}) {
    Start(TinyOptions());
    JoinedWorker worker(server_->address());
    v1::SessionRequest heartbeat = Heartbeat({});
    if (cpu) {
      heartbeat.mutable_heartbeat()->set_cpu_cores(
          std::numeric_limits<double>::quiet_NaN());
    } else {
      heartbeat.mutable_heartbeat()->set_resident_bytes(-1);
    }
    worker.session().Write(heartbeat);
    EXPECT_THAT(
        worker.session().End(),
        EndedWith(grpc::INVALID_ARGUMENT,
                  cpu ? "heartbeat.cpu_cores" : "heartbeat.resident_bytes"));
  }
}

TEST_F(TelemetryServiceTest, PhasesThatAreNoTimesEndTheSession) {
  for (const double seconds : {-1.0, std::numeric_limits<double>::quiet_NaN(),
                               std::numeric_limits<double>::infinity()}) {
    Start(TinyOptions());
    JoinedWorker worker(server_->address());
    worker.session().Write(Heartbeat({{"data", seconds}}));
    EXPECT_THAT(
        worker.session().End(),
        EndedWith(grpc::INVALID_ARGUMENT, "heartbeat.phase_seconds.data"));
  }
}

TEST_F(TelemetryServiceTest, HeartbeatIsEchoedWithTheServersClock) {
  StartWithTwoWorkers(TinyOptions());
  const int64_t before = absl::ToUnixMicros(absl::Now());
  v1::SessionRequest heartbeat = Heartbeat({});
  heartbeat.mutable_heartbeat()->set_sent_unix_us(before);
  workers_[0]->session().Write(heartbeat);
  const v1::HeartbeatEcho echo = OkValue(AwaitEcho());
  EXPECT_EQ(echo.sent_unix_us(), before);
  EXPECT_GE(echo.server_unix_us(), before);
  EXPECT_LE(echo.server_unix_us(), absl::ToUnixMicros(absl::Now()));
}

TEST_F(TelemetryServiceTest, LogLevelIsToldAndChanged) {
  StartWithTwoWorkers(TinyOptions());
  SetLogLevel(LogLevel::kInfo);
  v1::SetLogLevelReply reply;
  ASSERT_TRUE(SetLevel("", reply).ok());
  EXPECT_EQ(reply.level(), "info");
  ASSERT_TRUE(SetLevel("error", reply).ok());
  EXPECT_EQ(reply.level(), "error");
  EXPECT_EQ(reply.previous(), "info");
  EXPECT_EQ(CurrentLogLevel(), LogLevel::kError);
  EXPECT_THAT(SetLevel("loud", reply),
              EndedWith(grpc::INVALID_ARGUMENT, "got 'loud'"));
  EXPECT_EQ(CurrentLogLevel(), LogLevel::kError);
  SetLogLevel(LogLevel::kInfo);
}

TEST_F(TelemetryServiceTest, PathsThatCannotBeWrittenAreRefusedAtTheStart) {
  const TempDir folder;
  WriteText(folder.File("file"), "text");
  ServerOptions options = TinyOptions();
  options.trace = folder.File("none/trace.json");
  absl::Status status = StartServer(options, out_).status();
  EXPECT_THAT(status, IsError(kFailedPrecondition, "--trace: cannot write"));
  options = TinyOptions();
  options.tensorboard_dir = folder.File("file");
  status = StartServer(options, out_).status();
  EXPECT_THAT(status,
              IsError(kFailedPrecondition, "--tensorboard: cannot write"));
}

}  // namespace
}  // namespace cohort
