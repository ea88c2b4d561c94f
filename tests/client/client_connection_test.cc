// Joining, waiting for work, losing the connection and stopping.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/wire/convert.h"
#include "common/wire/security.h"
#include "tests/client/fake_server.h"
#include "tests/fakes/small_grpc_server.h"
#include "tests/fakes/statuses.h"
#include "tests/security/test_authority.h"
#include "worker/client/client.h"

namespace cohort {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ClientConnectionTest : public testing::Test {
 protected:
  FakeServer server_;
};

TEST_F(ClientConnectionTest, JoinTellsWhoIAmAndReturnsWhatTheServerSays) {
  ClientOptions options = server_.Options();
  options.fingerprint = "f";
  options.description = "host:1";
  const auto client = OkValue(MakeGrpcClient(options));
  const auto membership = OkValue(client->Join());
  EXPECT_EQ(membership.rank, Rank(2));
  EXPECT_EQ(membership.run_id, "run-1");
  EXPECT_EQ(membership.incarnation, Incarnation(1));
  EXPECT_EQ(membership.seed, 99u);
  EXPECT_EQ(membership.version, Version(10));
  EXPECT_EQ(membership.workers, 4);
  EXPECT_EQ(membership.policy, "sync");
  const v1::Join join = server_.joins().at(0);
  EXPECT_EQ(join.rank(), 2);
  EXPECT_EQ(join.run_id(), "");
  EXPECT_EQ(join.incarnation(), 0);
  EXPECT_EQ(join.batch_size(), 8);
  EXPECT_EQ(join.fingerprint(), "f");
  EXPECT_EQ(join.description(), "host:1");
}

TEST_F(ClientConnectionTest, UnusableOptionsAreRefused) {
  ClientOptions good;
  good.server = "127.0.0.1:1";
  good.batch_size = 1;
  EXPECT_TRUE(MakeGrpcClient(good).ok());
  ClientOptions bad = good;
  bad.server = "";
  EXPECT_FALSE(MakeGrpcClient(bad).ok());
  bad = good;
  bad.rank = Rank(-1);
  EXPECT_FALSE(MakeGrpcClient(bad).ok());
  bad = good;
  bad.batch_size = 0;
  EXPECT_FALSE(MakeGrpcClient(bad).ok());
  bad = good;
  bad.server_timeout = absl::ZeroDuration();
  EXPECT_FALSE(MakeGrpcClient(bad).ok());
}

Assignment WaitAssignment(const std::string& reason) {
  return {.kind = AssignmentKind::kWait, .reason = reason};
}

// Records what a client reports, and gives it phases and a clock request.
class RecordedHooks final : public ClientHooks {
 public:
  void OnJoined(const Membership& membership, bool again) override {
    MutexLock lock(mu);
    joined.emplace_back(membership.rank.value(), again);
  }
  void OnRetry(absl::string_view method) override {
    MutexLock lock(mu);
    retries.emplace_back(method);
  }
  void OnObstacle(const std::string& text) override {
    MutexLock lock(mu);
    obstacles.push_back(text);
    changed.NotifyAll();
  }
  WorkerReport TakeReport() override {
    return {.phases = {{"forward", 0.5}},
            .cpu_cores = 1.25,
            .resident_bytes = 4096};
  }
  bool WantsServerClock() const override { return true; }
  void OnExchangePath(absl::string_view /*transport*/,
                      absl::string_view /*text*/) override {}
  void OnTlsFiles(bool /*fault*/, absl::string_view /*text*/) override {}
  void OnServerClock(absl::Duration offset, absl::Duration error) override {
    MutexLock lock(mu);
    clock = {offset, error};
    changed.NotifyAll();
  }

  Mutex mu;
  CondVar changed;
  std::vector<std::pair<int32_t, bool>> joined ABSL_GUARDED_BY(mu);
  std::vector<std::string> retries ABSL_GUARDED_BY(mu);
  std::vector<std::string> obstacles ABSL_GUARDED_BY(mu);
  std::optional<std::pair<absl::Duration, absl::Duration>> clock
      ABSL_GUARDED_BY(mu);
};

// The first obstacle that a worker with these files meets.
std::string ObstacleFor(const std::string& server, const TlsFiles& tls) {
  RecordedHooks hooks;
  const auto client = OkValue(MakeGrpcClient(
      {.server = server, .tls = tls, .batch_size = 1, .hooks = &hooks}));
  std::thread join([&] { client->Join().IgnoreError(); });
  std::string text;
  {
    MutexLock lock(hooks.mu);
    while (hooks.obstacles.empty()) hooks.changed.Wait(hooks.mu);
    text = hooks.obstacles.front();
  }
  client->RequestStop();
  join.join();
  return text;
}

TEST_F(ClientConnectionTest, WrongCertificatesAreObstaclesThatSayWhatToDo) {
  TestAuthority authority;
  const SmallGrpcServer server((*Security::Load(authority.Issue("server/0")))
                                   ->ForServer(/*require_certificate=*/true));
  EXPECT_THAT(ObstacleFor(server.address(), {}),
              HasSubstr("the server speaks TLS"));
  EXPECT_THAT(
      ObstacleFor(server.address(), {.ca = authority.Issue("worker/0").ca}),
      HasSubstr("clients with a certificate"));
  TestAuthority other;
  EXPECT_THAT(ObstacleFor(server.address(), other.Issue("worker/0")),
              HasSubstr("another authority"));
}

TEST_F(ClientConnectionTest, AnExpiredCertificateOfItsOwnIsFinal) {
  TestAuthority authority;
  // It expires while the worker waits for its server. The client itself refuses
  // one that has expired already.
  absl::StatusOr<std::unique_ptr<Client>> client;
  do {
    client = MakeGrpcClient(
        {.server = "127.0.0.1:1",
         .tls = authority.Issue("worker/0", "demo", absl::Seconds(2)),
         .batch_size = 1,
         .own_certificate_grace = absl::Milliseconds(1)});
  } while (!client.ok());
  const absl::Status joined = (*client)->Join().status();
  EXPECT_THAT(joined, IsError(kFailedPrecondition, "has expired"));
  EXPECT_THAT(std::string(joined.message()), HasSubstr("renew it"));
}

TEST_F(ClientConnectionTest, CallsBeforeJoinAreRefused) {
  ClientOptions options;
  options.server = "127.0.0.1:1";
  options.batch_size = 1;
  const auto client = OkValue(MakeGrpcClient(options));
  EXPECT_TRUE(absl::IsFailedPrecondition(client->NextAssignment().status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(client->OpenPush({})));
}

TEST_F(ClientConnectionTest, JoinWaitsUntilTheRankIsFree) {
  int refusals = 0;
  server_.on_join = [&](const v1::Join& join) -> absl::StatusOr<v1::JoinReply> {
    if (++refusals <= 2) {
      return absl::AlreadyExistsError(
          absl::StrCat("rank 2 is alive for ", 4 - refusals, " s"));
    }
    return server_.Admit(join);
  };
  const auto client = OkValue(MakeGrpcClient(server_.Options()));
  std::vector<std::string> told;
  client->SetObserver([&](const std::string& s) { told.push_back(s); });
  EXPECT_TRUE(client->Join().ok());
  EXPECT_EQ(server_.joins().size(), 3u);
  // Reported once, not at every try, although the text counts down.
  EXPECT_THAT(told, ElementsAre(HasSubstr("rank 2 is alive for 3 s"),
                                HasSubstr("joined as rank")));
}

TEST_F(ClientConnectionTest, ARankThatIsNotNeededAnyMoreIsNoError) {
  server_.on_join = [](const v1::Join&) {
    return absl::OutOfRangeError("rank 2 is no longer needed");
  };
  const auto client = OkValue(MakeGrpcClient(server_.Options()));
  std::string told;
  client->SetObserver([&told](const std::string& text) { told = text; });
  EXPECT_TRUE(absl::IsCancelled(client->Join().status()));
  EXPECT_THAT(told, HasSubstr("rank 2 is no longer needed"));
}

TEST_F(ClientConnectionTest, UnreachableServerIsGivenUpByName) {
  ClientOptions options = server_.Options();
  options.server_timeout = absl::Seconds(2);
  server_.Shutdown();
  const auto client = OkValue(MakeGrpcClient(options));
  const absl::Status status = client->Join().status();
  EXPECT_EQ(status.code(), kDeadlineExceeded);
  // The reason, and not that the last attempt ran out of time.
  EXPECT_THAT(status,
              IsError(kDeadlineExceeded,
                      "within 2s: cannot be reached (Connection refused)"));
}

TEST_F(ClientConnectionTest, ServersNeedAPort) {
  ClientOptions options{.server = "server", .batch_size = 1};
  EXPECT_THAT(MakeGrpcClient(options),
              IsError(kInvalidArgument, "--server: got 'server'"));
}

TEST_F(ClientConnectionTest, WaitIsToldInTheServersWords) {
  server_.on_open = [&](int) { server_.Tell(WaitAssignment("for 2 workers")); };
  const auto client = JoinedClient(server_.Options());
  std::vector<std::string> told;
  client->SetObserver([&](const std::string& sentence) {
    told.push_back(sentence);
    server_.Tell(TrainAssignment(1, 0, 10));
  });
  const auto assignment = OkValue(client->NextAssignment());
  EXPECT_EQ(assignment.kind, AssignmentKind::kTrain);
  EXPECT_EQ(assignment.sequence, Sequence(1));
  EXPECT_EQ(assignment.range, (IndexRange{.begin = 0, .end = 8}));
  EXPECT_THAT(told, Contains("for 2 workers"));
}

TEST_F(ClientConnectionTest, SilenceOfALiveServerIsGivenUp) {
  ClientOptions options = server_.Options();
  options.server_timeout = absl::Seconds(2);
  const auto client = JoinedClient(options);
  EXPECT_THAT(client->NextAssignment(),
              IsError(kDeadlineExceeded, "an assignment"));
}

TEST_F(ClientConnectionTest, EndOfTheRunIsToldEvenIfTheSessionEnds) {
  server_.on_open = [&](int) {
    server_.Tell({.kind = AssignmentKind::kFinished, .reason = "last epoch"});
    server_.EndSession(absl::FailedPreconditionError("the run is over"));
  };
  const auto client = JoinedClient(server_.Options());
  std::string told;
  client->SetObserver([&told](const std::string& text) { told = text; });
  const auto assignment = OkValue(client->NextAssignment());
  EXPECT_EQ(assignment.kind, AssignmentKind::kFinished);
  EXPECT_EQ(assignment.reason, "last epoch");
  EXPECT_EQ(told, "last epoch");
}

TEST_F(ClientConnectionTest, BrokenSessionIsResumedAsTheSameIncarnation) {
  server_.on_register = RegisterWithoutValues;
  server_.on_open = [&](int) { server_.Tell(TrainAssignment(1, 0, 10)); };
  const auto client = JoinedClient(server_.Options());
  RegisterTestModel(*client);
  ASSERT_TRUE(client->NextAssignment().ok());

  server_.EndSession(absl::UnavailableError("restarting"));
  // The same assignment again, as sent on the second session.
  const auto again = OkValue(client->NextAssignment());
  EXPECT_EQ(again.sequence, Sequence(1));
  EXPECT_EQ(again.attempt, Attempt(0));
  const std::vector<v1::Join> joins = server_.joins();
  ASSERT_EQ(joins.size(), 2u);
  EXPECT_EQ(joins[1].rank(), 2);
  EXPECT_EQ(joins[1].run_id(), "run-1");
  EXPECT_EQ(joins[1].incarnation(), 1);
}

TEST_F(ClientConnectionTest, FencedIncarnationComesBackAsANewOneAndRegisters) {
  int registrations = 0;
  server_.on_register = [&](FakeServer::RegisterIo& io) {
    ++registrations;
    return RegisterWithoutValues(io);
  };
  server_.on_join = [&](const v1::Join& join) -> absl::StatusOr<v1::JoinReply> {
    if (join.incarnation() > 0) {
      return absl::AbortedError("rank 2 is now held by a newer process");
    }
    return server_.Admit(join);
  };
  server_.on_open = [&](int session) {
    if (session > 1) server_.Tell(TrainAssignment(4, 0, 13));
  };
  const auto client = JoinedClient(server_.Options());
  RegisterTestModel(*client);
  server_.EndSession(absl::AbortedError("fenced"));
  const auto assignment = OkValue(client->NextAssignment());
  EXPECT_EQ(assignment.sequence, Sequence(4));
  const std::vector<v1::Join> joins = server_.joins();
  ASSERT_EQ(joins.size(), 3u);
  EXPECT_EQ(joins[1].incarnation(), 1);
  EXPECT_EQ(joins[2].incarnation(), 0);
  EXPECT_EQ(joins[2].rank(), 2);
  EXPECT_EQ(joins[2].run_id(), "run-1");
  EXPECT_EQ(registrations, 2);
}

TEST_F(ClientConnectionTest, ServerThatLostTheRunEndsTheWorker) {
  bool lost = false;
  server_.on_register = [&](FakeServer::RegisterIo& io) {
    if (!lost) return RegisterWithoutValues(io);
    v1::RegisterRequest request;
    io.Read(&request);
    EXPECT_TRUE(request.statistics().empty());
    v1::RegisterReply reply;
    ToProto(TestPartitions(), reply.mutable_partitions());
    reply.set_loss_reference(8);
    reply.set_send_values(true);
    io.Write(reply);
    return grpc::Status::OK;
  };
  const auto client = JoinedClient(server_.Options());
  RegisterTestModel(*client);
  lost = true;
  server_.on_join = [&](v1::Join join) -> absl::StatusOr<v1::JoinReply> {
    // The server knows no incarnation and starts a new one.
    join.set_incarnation(0);
    return server_.Admit(join);
  };
  server_.EndSession(absl::UnavailableError("restarting"));
  const absl::Status status = client->NextAssignment().status();
  EXPECT_THAT(status, IsError(kFailedPrecondition, "lost its model"));
  // The error is permanent.
  EXPECT_EQ(client->NextAssignment().status(), status);
}

TEST_F(ClientConnectionTest, AnotherRunUnderTheSameAddressIsFinal) {
  const auto client = JoinedClient(server_.Options());
  server_.on_join = [&](const v1::Join& join) -> absl::StatusOr<v1::JoinReply> {
    v1::JoinReply reply = server_.Admit(join);
    reply.set_run_id("run-2");
    return reply;
  };
  server_.EndSession(absl::UnavailableError("restarting"));
  EXPECT_THAT(client->NextAssignment(), IsError(kNotFound, "run-2"));
}

TEST_F(ClientConnectionTest, HeartbeatsNameTheWorkInProgress) {
  server_.on_open = [&](int) { server_.Tell(TrainAssignment(7, 0, 10)); };
  const auto client = JoinedClient(server_.Options());
  server_.AwaitReceived([](const v1::SessionRequest& request) {
    return request.has_heartbeat() && request.heartbeat().sequence() == 0;
  });
  ASSERT_TRUE(client->NextAssignment().ok());
  server_.AwaitReceived([](const v1::SessionRequest& request) {
    return request.has_heartbeat() && request.heartbeat().sequence() == 7;
  });
}

TEST_F(ClientConnectionTest, HooksHearOfRetriesAndReturns) {
  RecordedHooks hooks;
  FakeServer server;
  ClientOptions options = server.Options();
  options.hooks = &hooks;
  int tries = 0;
  server.on_join = [&](const v1::Join& join) -> absl::StatusOr<v1::JoinReply> {
    if (++tries == 1) return absl::AlreadyExistsError("rank 2 is alive");
    return server.Admit(join);
  };
  server.on_open = [&](int session) {
    if (session == 3) server.Tell(TrainAssignment(1, 0, 0));
  };
  const auto client = JoinedClient(options);
  server.EndSession(absl::UnavailableError("restarting"));
  ASSERT_TRUE(client->NextAssignment().ok());
  MutexLock lock(hooks.mu);
  EXPECT_THAT(hooks.joined,
              ElementsAre(std::pair(2, false), std::pair(2, true)));
  EXPECT_THAT(hooks.retries, ElementsAre("Session"));
}

// The fake's clock is two minutes ahead.
TEST_F(ClientConnectionTest, HeartbeatsCarryPhasesAndBringTheServersClock) {
  RecordedHooks hooks;
  FakeServer server;
  ClientOptions options = server.Options();
  options.hooks = &hooks;
  server.echo_ahead = absl::Minutes(2);
  const auto client = JoinedClient(options);
  server.AwaitReceived([](const v1::SessionRequest& request) {
    return request.heartbeat().phase_seconds().count("forward") == 1 &&
           request.heartbeat().cpu_cores() == 1.25 &&
           request.heartbeat().resident_bytes() == 4096 &&
           request.heartbeat().sent_unix_us() > 0;
  });
  MutexLock lock(hooks.mu);
  while (!hooks.clock.has_value()) hooks.changed.Wait(hooks.mu);
  const auto& [offset, error] = *hooks.clock;
  EXPECT_GE(error, absl::ZeroDuration());
  EXPECT_LE(absl::AbsDuration(offset - absl::Minutes(2)),
            error + absl::Microseconds(2));
}

TEST_F(ClientConnectionTest, StopEndsTheWaitAndLeaveStillSaysGoodBye) {
  Client* stopped = nullptr;
  server_.on_open = [&](int) { server_.Tell(WaitAssignment("rank 3")); };
  const auto client = JoinedClient(server_.Options());
  stopped = client.get();
  std::thread stopper;
  client->SetObserver([&](const std::string&) {
    stopper = std::thread([&] { stopped->RequestStop(); });
  });
  EXPECT_TRUE(absl::IsCancelled(client->NextAssignment().status()));
  stopper.join();
  EXPECT_EQ(client->OpenPush({}).code(), kCancelled);
  client->Leave({.reason = "SIGTERM"});
  server_.AwaitReceived([](const v1::SessionRequest& request) {
    return request.has_leave() && request.leave().reason() == "SIGTERM";
  });
}

TEST_F(ClientConnectionTest, StopEndsTheRetriesOfAJoin) {
  const auto client = OkValue(MakeGrpcClient(server_.Options()));
  server_.on_join = [&](const v1::Join&) -> absl::StatusOr<v1::JoinReply> {
    client->RequestStop();
    return absl::AlreadyExistsError("rank 2 is alive");
  };
  EXPECT_EQ(client->Join().status().code(), kCancelled);
}

TEST_F(ClientConnectionTest, NothingWorksAfterLeaving) {
  const auto client = JoinedClient(server_.Options());
  client->Leave({.reason = "done"});
  EXPECT_TRUE(absl::IsFailedPrecondition(client->NextAssignment().status()));
}

TEST_F(ClientConnectionTest, LostServerIsLookedForUntilStopped) {
  auto first = std::make_unique<FakeServer>();
  const auto client = JoinedClient(first->Options());
  first->Shutdown();
  // The client retries until a server listens there again. The stop replaces
  // that here, because another process could take the port.
  int told = 0;
  client->SetObserver([&](const std::string&) {
    if (++told == 2) client->RequestStop();
  });
  EXPECT_TRUE(absl::IsCancelled(client->NextAssignment().status()));
  EXPECT_EQ(told, 2);
}

}  // namespace
}  // namespace cohort
