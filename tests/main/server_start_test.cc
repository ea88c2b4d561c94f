// Servers that start, or report why they do not.

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cohort/v1/admin.grpc.pb.h"
#include "server/main/server.h"
#include "tests/fakes/raw_http.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"
#include "tests/rpc/hand_worker.h"
#include "tests/rpc/service_fixture.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class StartServerTest : public testing::Test {
 protected:
  const TempDir folder_;
  std::ostringstream out_;
  ServerOptions options_ = TinyOptions();
};

TEST_F(StartServerTest, PortInUseIsRefusedWithAClearText) {
  const std::unique_ptr<Server> first = OkValue(StartServer(options_, out_));
  options_.listen = first->address();
  EXPECT_THAT(StartServer(options_, out_),
              IsError(kUnavailable,
                      absl::StrCat("cannot listen on ", options_.listen)));
}

TEST_F(StartServerTest, OpenAddressNeedsInsecure) {
  options_.listen = "0.0.0.0:0";
  EXPECT_THAT(StartServer(options_, out_),
              IsError(kInvalidArgument, "--insecure"));
  options_.insecure = true;
  EXPECT_TRUE(StartServer(options_, out_).ok());
}

TEST_F(StartServerTest, AdminMayHaveAPortOfItsOwn) {
  options_.admin_listen = "127.0.0.1:0";
  const std::unique_ptr<Server> server = OkValue(StartServer(options_, out_));
  constexpr absl::string_view kBefore = "cohortctl is served at ";
  const std::string text = out_.str();
  const size_t at = text.find(kBefore.data(), 0, kBefore.size());
  ASSERT_NE(at, std::string::npos) << text;
  const size_t begin = at + kBefore.size();
  const std::string admin = text.substr(begin, text.find('\n', begin) - begin);
  EXPECT_TRUE(StatusAt(admin).ok());
  EXPECT_THAT(
      StatusAt(server->address()),
      EndedWith(grpc::UNIMPLEMENTED, absl::StrCat(admin, " (--admin_listen)")));
  // Workers are served at the one port and not at the other.
  HandWorker worker(server->address());
  EXPECT_TRUE(worker.Join().ok());
  HandWorker astray(admin);
  EXPECT_EQ(astray.Join().error_code(), grpc::UNIMPLEMENTED);
}

// Port 9 is served by nothing here.
TEST_F(StartServerTest,
       DataShardsThatAreNotThereAreNamedUntilTheStartIsGivenUp) {
  options_.files.checkpoint_dir = folder_.path();
  options_.shard_addresses = {"127.0.0.1:9"};
  options_.coordinator.shards = 2;
  options_.ops_listen = "127.0.0.1:0";
  options_.ops_address_file = folder_.File("ops");
  HttpAnswer ready;
  nlohmann::json status;
  options_.stop_requested = [&] {
    const std::string ops = ReadText(options_.ops_address_file);
    ready = HttpGet(ops, "/readyz");
    status = nlohmann::json::parse(HttpGet(ops, "/status.json").body);
    return absl::StrContains(ready.body, "waiting for data shard 1");
  };
  EXPECT_TRUE(absl::IsCancelled(StartServer(options_, out_).status()));
  EXPECT_EQ(ready.status, 503);
  EXPECT_EQ(status["phase"], "waiting");
  EXPECT_EQ(status["state"],
            "waiting for data shard 1 at 127.0.0.1:9, not there yet: cannot be "
            "reached (Connection refused)");
  ASSERT_EQ(status["shards"].size(), 2u);
  EXPECT_EQ(status["shards"][1]["connected"], false);
}

TEST_F(StartServerTest, ADataShardHasAPort) {
  options_.files.checkpoint_dir = folder_.path();
  options_.shard_addresses = {"127.0.0.1:0"};
  options_.coordinator.shards = 2;
  EXPECT_THAT(StartServer(options_, out_),
              IsError(kInvalidArgument, "--shard_addresses: got 127.0.0.1:0"));
}

TEST_F(StartServerTest, DashboardsAreALinkOfTheWeb) {
  options_.dashboards_url = "javascript:alert(1)";
  EXPECT_THAT(StartServer(options_, out_),
              IsError(kInvalidArgument, "--dashboards_url"));
  options_.dashboards_url = "https://grafana.example/d/cohort";
  EXPECT_TRUE(StartServer(options_, out_).ok());
}

TEST_F(StartServerTest, ResumeNeedsACheckpointDirectory) {
  options_.files.resume = true;
  EXPECT_TRUE(absl::IsFailedPrecondition(StartServer(options_, out_).status()));
}

TEST_F(StartServerTest, ResultsOfALiveRunAreNotTouched) {
  options_.files.results_dir = folder_.path();
  std::unique_ptr<Server> first = OkValue(StartServer(options_, out_));
  const std::string history = ReadText(folder_.File("history.csv"));
  WriteText(folder_.File("history.csv"), history + "a row of the live run\n");
  EXPECT_THAT(
      StartServer(options_, out_),
      IsError(kFailedPrecondition, absl::StrCat(folder_.path(), " is in use")));
  EXPECT_EQ(ReadText(folder_.File("history.csv")),
            history + "a row of the live run\n");
  first.reset();
  EXPECT_TRUE(StartServer(options_, out_).ok());
}

TEST_F(StartServerTest, ResultsAndCheckpointsMayShareAFolder) {
  options_.files.results_dir = folder_.path();
  options_.files.checkpoint_dir = folder_.path();
  EXPECT_TRUE(StartServer(options_, out_).ok());
}

TEST_F(StartServerTest, APipeInPlaceOfAResultIsRefused) {
  options_.files.results_dir = folder_.path();
  ASSERT_EQ(mkfifo(folder_.File("history.csv").c_str(), 0600), 0);
  EXPECT_THAT(StartServer(options_, out_),
              IsError(kFailedPrecondition, "a named pipe"));
}

// Each start is counted, regardless of checkpoints and time, so that an earlier
// incarnation is never mistaken for a later one.
TEST_F(StartServerTest, IncarnationsRiseFromStartToStart) {
  options_.files.checkpoint_dir = folder_.path();
  options_.files.resume = true;
  int64_t before = 0;
  for (int64_t start = 0; start < 3; ++start) {
    const auto server = OkValue(StartServer(options_, out_));
    const JoinedWorker worker(server->address());
    EXPECT_GT(worker.joined().incarnation(), before);
    EXPECT_EQ(worker.joined().incarnation(), (1 + start) << 32);
    before = worker.joined().incarnation();
  }
}

TEST_F(StartServerTest, TheRunsNameIsADnsLabel) {
  options_.coordinator.run_name = "Not a label";
  EXPECT_THAT(StartServer(options_, out_),
              IsError(kInvalidArgument, "--run_name: got 'Not a label'"));
}

// How the server names itself to a worker and to people.
std::string NameOf(const ServerOptions& options, bool train = false) {
  std::ostringstream out;
  const auto server = OkValue(StartServer(options, out));
  JoinedWorker worker(server->address());
  JoinedWorker other(server->address(), 1);
  if (train) {
    // The first worker's values are requested once both have come.
    RegisterCall first = worker.BeginRegister(TinyLayout(), TinyPlan());
    RegisterCall second = other.BeginRegister(TinyLayout(), TinyPlan());
    EXPECT_TRUE(worker.FinishRegister(first, kTinyValues).ok());
    EXPECT_TRUE(other.FinishRegister(second, kTinyValues).ok());
  }
  const v1::Status status = StatusFor(worker);
  EXPECT_EQ(status.run_name(), worker.joined().run_name());
  if (options.coordinator.run_name.empty() && !options.files.resume) {
    EXPECT_EQ(status.run_name(), absl::StrCat("run-", status.run_id()));
  }
  return status.run_name();
}

TEST_F(StartServerTest, TheRunsNameIsToldAndKept) {
  EXPECT_THAT(NameOf(options_), HasSubstr("run-"));
  options_.files.checkpoint_dir = folder_.path();
  options_.coordinator.run_name = "nightly";
  options_.given = {"run_name"};
  EXPECT_EQ(NameOf(options_, /*train=*/true), "nightly");
  // Resumed without the flag, then with a different value.
  options_.files.resume = true;
  options_.coordinator.run_name = "";
  options_.given = {};
  EXPECT_EQ(NameOf(options_), "nightly");
  options_.coordinator.run_name = "weekly";
  options_.given = {"run_name"};
  EXPECT_EQ(NameOf(options_), "weekly");
}

TEST_F(StartServerTest, HealthServiceSaysServing) {
  std::unique_ptr<Server> server = OkValue(StartServer(TinyOptions(), out_));
  grpc::GenericStub stub(PlainChannel(server->address()));
  TimedContext context;
  // HealthCheckRequest{}; the answer is HealthCheckResponse{status: SERVING}.
  grpc::Slice nothing;
  const grpc::ByteBuffer request(&nothing, 1);
  grpc::ByteBuffer reply;
  std::promise<grpc::Status> ended;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", grpc::StubOptions(),
                 &request, &reply, [&ended](const grpc::Status& status) {
                   ended.set_value(status);
                 });
  const grpc::Status status = ended.get_future().get();
  ASSERT_TRUE(status.ok()) << status.error_message();
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(reply.Dump(&slices).ok());
  ASSERT_EQ(slices.size(), 1u);
  EXPECT_THAT(std::vector<int>(slices[0].begin(), slices[0].end()),
              ElementsAre(0x08, 0x01));
}

}  // namespace
}  // namespace cohort
