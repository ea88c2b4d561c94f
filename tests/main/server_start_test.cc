// Servers that start, or report why they do not.

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cohort/v1/admin.grpc.pb.h"
#include "server/main/server.h"
#include "tests/fakes/raw_http.h"
#include "tests/fakes/temp_dir.h"
#include "tests/rpc/hand_worker.h"
#include "tests/rpc/service_fixture.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(StartServerTest, PortInUseIsRefusedWithAClearText) {
  std::ostringstream out;
  absl::StatusOr<std::unique_ptr<Server>> first =
      StartServer(TinyOptions(), out);
  ASSERT_TRUE(first.ok());
  ServerOptions options = TinyOptions();
  options.listen = (*first)->address();
  const absl::Status status = StartServer(options, out).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("cannot listen on ", options.listen)));
}

TEST(StartServerTest, OpenAddressNeedsInsecure) {
  std::ostringstream out;
  ServerOptions options = TinyOptions();
  options.listen = "0.0.0.0:0";
  const absl::Status status = StartServer(options, out).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--insecure"));
  options.insecure = true;
  EXPECT_TRUE(StartServer(options, out).ok());
}

TEST(StartServerTest, AdminMayHaveAPortOfItsOwn) {
  std::ostringstream out;
  ServerOptions options = TinyOptions();
  options.admin_listen = "127.0.0.1:0";
  const absl::StatusOr<std::unique_ptr<Server>> server =
      StartServer(options, out);
  ASSERT_TRUE(server.ok()) << server.status();
  constexpr absl::string_view kBefore = "cohortctl is served at ";
  const std::string text = out.str();
  const size_t at = text.find(kBefore.data(), 0, kBefore.size());
  ASSERT_NE(at, std::string::npos) << text;
  const size_t begin = at + kBefore.size();
  const std::string admin = text.substr(begin, text.find('\n', begin) - begin);
  const auto status_at = [](const std::string& address) {
    const auto stub = v1::Admin::NewStub(
        grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    v1::Status status;
    return stub->GetStatus(&context, {}, &status);
  };
  EXPECT_TRUE(status_at(admin).ok());
  const grpc::Status refused = status_at((*server)->address());
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(refused.error_message(),
            absl::StrCat("this port serves workers only; cohortctl is served "
                         "at ",
                         admin, " (--admin_listen)"));
  // Workers are served at the one port and not at the other.
  HandWorker worker((*server)->address());
  EXPECT_TRUE(worker.Join().ok());
  HandWorker astray(admin);
  EXPECT_EQ(astray.Join().error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

// Port 9 is served by nothing here.
TEST(StartServerTest, DataShardsThatAreNotThereAreNamedUntilTheStartIsGivenUp) {
  const TempDir folder;
  std::ostringstream out;
  ServerOptions options = TinyOptions();
  options.files.checkpoint_dir = folder.path();
  options.shard_addresses = {"127.0.0.1:9"};
  options.coordinator.shards = 2;
  options.ops_listen = "127.0.0.1:0";
  options.ops_address_file = folder.File("ops");
  HttpAnswer ready;
  nlohmann::json status;
  options.stop_requested = [&] {
    const std::string ops = ReadText(options.ops_address_file);
    ready = HttpGet(ops, "/readyz");
    status = nlohmann::json::parse(HttpGet(ops, "/status.json").body);
    return absl::StrContains(ready.body, "waiting for data shard 1");
  };
  const absl::Status started = StartServer(options, out).status();
  EXPECT_TRUE(absl::IsCancelled(started)) << started;
  EXPECT_EQ(ready.status, 503);
  EXPECT_EQ(status["phase"], "waiting");
  EXPECT_EQ(status["state"],
            "waiting for data shard 1 at 127.0.0.1:9, not there yet: cannot be "
            "reached (Connection refused)");
  ASSERT_EQ(status["shards"].size(), 2u);
  EXPECT_EQ(status["shards"][1]["connected"], false);
}

TEST(StartServerTest, ADataShardHasAPort) {
  const TempDir folder;
  std::ostringstream out;
  ServerOptions options = TinyOptions();
  options.files.checkpoint_dir = folder.path();
  options.shard_addresses = {"127.0.0.1:0"};
  options.coordinator.shards = 2;
  const absl::Status status = StartServer(options, out).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("--shard_addresses: got 127.0.0.1:0"));
}

TEST(StartServerTest, DashboardsAreALinkOfTheWeb) {
  std::ostringstream out;
  ServerOptions options = TinyOptions();
  options.dashboards_url = "javascript:alert(1)";
  const absl::Status status = StartServer(options, out).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--dashboards_url"));
  options.dashboards_url = "https://grafana.example/d/cohort";
  EXPECT_TRUE(StartServer(options, out).ok());
}

TEST(StartServerTest, ResumeNeedsACheckpointDirectory) {
  std::ostringstream out;
  ServerOptions options = TinyOptions();
  options.files.resume = true;
  EXPECT_EQ(StartServer(options, out).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(StartServerTest, ResultsOfALiveRunAreNotTouched) {
  const TempDir folder;
  std::ostringstream out;
  ServerOptions options = TinyOptions();
  options.files.results_dir = folder.path();
  absl::StatusOr<std::unique_ptr<Server>> first = StartServer(options, out);
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string history = ReadText(folder.File("history.csv"));
  WriteText(folder.File("history.csv"), history + "a row of the live run\n");
  const absl::Status second = StartServer(options, out).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.message()),
              HasSubstr(absl::StrCat("--results_dir: ", folder.path(),
                                     " is in use by another server (process ",
                                     getpid(), " on ")));
  EXPECT_EQ(ReadText(folder.File("history.csv")),
            history + "a row of the live run\n");
  first->reset();
  EXPECT_TRUE(StartServer(options, out).ok());
}

TEST(StartServerTest, ResultsAndCheckpointsMayShareAFolder) {
  const TempDir folder;
  std::ostringstream out;
  ServerOptions options = TinyOptions();
  options.files.results_dir = folder.path();
  options.files.checkpoint_dir = folder.path();
  EXPECT_TRUE(StartServer(options, out).ok());
}

TEST(StartServerTest, APipeInPlaceOfAResultIsRefused) {
  const TempDir folder;
  std::ostringstream out;
  ServerOptions options = TinyOptions();
  options.files.results_dir = folder.path();
  ASSERT_EQ(mkfifo(folder.File("history.csv").c_str(), 0600), 0);
  const absl::Status status = StartServer(options, out).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("a named pipe"));
}

// Each start is counted, regardless of checkpoints and time, so that an earlier
// incarnation is never mistaken for a later one.
TEST(StartServerTest, IncarnationsRiseFromStartToStart) {
  const TempDir folder;
  std::ostringstream out;
  ServerOptions options = TinyOptions();
  options.files.checkpoint_dir = folder.path();
  options.files.resume = true;
  int64_t before = 0;
  for (int64_t start = 0; start < 3; ++start) {
    absl::StatusOr<std::unique_ptr<Server>> server = StartServer(options, out);
    ASSERT_TRUE(server.ok()) << server.status();
    HandWorker worker((*server)->address());
    ASSERT_TRUE(worker.Join(0).ok());
    EXPECT_GT(worker.joined().incarnation(), before);
    EXPECT_EQ(worker.joined().incarnation(), (1 + start) << 32);
    before = worker.joined().incarnation();
  }
}

TEST(StartServerTest, TheRunsNameIsADnsLabel) {
  std::ostringstream out;
  ServerOptions options = TinyOptions();
  options.coordinator.run_name = "Not a label";
  const absl::Status status = StartServer(options, out).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("--run_name: got 'Not a label', want a DNS label"));
}

// How the server names itself to a worker and to people.
std::string NameOf(const ServerOptions& options, bool train = false) {
  std::ostringstream out;
  absl::StatusOr<std::unique_ptr<Server>> server = StartServer(options, out);
  EXPECT_TRUE(server.ok()) << server.status();
  if (!server.ok()) return "";
  HandWorker worker((*server)->address());
  EXPECT_TRUE(worker.Join(0).ok());
  HandWorker other((*server)->address());
  EXPECT_TRUE(other.Join(1).ok());
  if (train) {
    // The first worker's values are requested once both have come.
    RegisterCall first = worker.BeginRegister(TinyLayout(), TinyPlan());
    RegisterCall second = other.BeginRegister(TinyLayout(), TinyPlan());
    EXPECT_TRUE(worker.FinishRegister(first, kTinyValues).ok());
    EXPECT_TRUE(other.FinishRegister(second, kTinyValues).ok());
  }
  grpc::ClientContext context;
  SetDeadline(context);
  v1::Status status;
  EXPECT_TRUE(worker.admin().GetStatus(&context, {}, &status).ok());
  EXPECT_EQ(status.run_name(), worker.joined().run_name());
  if (options.coordinator.run_name.empty() && !options.files.resume) {
    EXPECT_EQ(status.run_name(), absl::StrCat("run-", status.run_id()));
  }
  return status.run_name();
}

TEST(StartServerTest, TheRunsNameIsToldAndKept) {
  const TempDir folder;
  ServerOptions options = TinyOptions();
  EXPECT_THAT(NameOf(options), HasSubstr("run-"));
  options.files.checkpoint_dir = folder.path();
  options.coordinator.run_name = "nightly";
  options.given = {"run_name"};
  EXPECT_EQ(NameOf(options, /*train=*/true), "nightly");
  // Resumed without the flag, then with a different value.
  options.files.resume = true;
  options.coordinator.run_name = "";
  options.given = {};
  EXPECT_EQ(NameOf(options), "nightly");
  options.coordinator.run_name = "weekly";
  options.given = {"run_name"};
  EXPECT_EQ(NameOf(options), "weekly");
}

TEST(StartServerTest, HealthServiceSaysServing) {
  std::ostringstream out;
  absl::StatusOr<std::unique_ptr<Server>> server =
      StartServer(TinyOptions(), out);
  ASSERT_TRUE(server.ok());
  grpc::GenericStub stub(grpc::CreateChannel(
      (*server)->address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  SetDeadline(context);
  // HealthCheckRequest{}; the answer is HealthCheckResponse{status: SERVING}.
  grpc::Slice nothing;
  const grpc::ByteBuffer request(&nothing, 1);
  grpc::ByteBuffer reply;
  std::mutex mu;
  std::condition_variable changed;
  std::optional<grpc::Status> status;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", grpc::StubOptions(),
                 &request, &reply, [&](const grpc::Status& end) {
                   std::lock_guard<std::mutex> lock(mu);
                   status = end;
                   changed.notify_all();
                 });
  std::unique_lock<std::mutex> lock(mu);
  changed.wait(lock, [&] { return status.has_value(); });
  ASSERT_TRUE(status->ok()) << status->error_message();
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(reply.Dump(&slices).ok());
  ASSERT_EQ(slices.size(), 1u);
  EXPECT_THAT(std::vector<int>(slices[0].begin(), slices[0].end()),
              ElementsAre(0x08, 0x01));
}

}  // namespace
}  // namespace cohort
