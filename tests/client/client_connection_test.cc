// Joining, waiting for work, losing the connection and stopping.

#include <gmock/gmock.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <map>
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
#include "tests/security/test_authority.h"
#include "worker/client/client.h"

namespace cohort {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ClientConnectionTest, JoinTellsWhoIAmAndReturnsWhatTheServerSays) {
  FakeServer server;
  ClientOptions options = server.Options();
  options.fingerprint = "f";
  options.description = "host:1";
  const auto client = MakeGrpcClient(options);
  ASSERT_TRUE(client.ok()) << client.status();
  const auto membership = (*client)->Join();
  ASSERT_TRUE(membership.ok()) << membership.status();
  EXPECT_EQ(membership->rank, Rank(2));
  EXPECT_EQ(membership->run_id, "run-1");
  EXPECT_EQ(membership->incarnation, Incarnation(1));
  EXPECT_EQ(membership->seed, 99u);
  EXPECT_EQ(membership->version, Version(10));
  EXPECT_EQ(membership->workers, 4);
  EXPECT_EQ(membership->policy, "sync");
  const v1::Join join = server.joins().at(0);
  EXPECT_EQ(join.rank(), 2);
  EXPECT_EQ(join.run_id(), "");
  EXPECT_EQ(join.incarnation(), 0);
  EXPECT_EQ(join.batch_size(), 8);
  EXPECT_EQ(join.fingerprint(), "f");
  EXPECT_EQ(join.description(), "host:1");
}

TEST(ClientConnectionTest, UnusableOptionsAreRefused) {
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

// A server with certificates.
class TlsServer {
 public:
  TlsServer() {
    grpc::ServerBuilder builder;
    builder.RegisterCallbackGenericService(&service_);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0",
                             (*Security::Load(authority.Issue("server/0")))
                                 ->ForServer(/*require_certificate=*/true),
                             &port);
    server_ = builder.BuildAndStart();
    address = absl::StrCat("127.0.0.1:", port);
  }

  TestAuthority authority;
  std::string address;

 private:
  grpc::CallbackGenericService service_;
  std::unique_ptr<grpc::Server> server_;
};

// The first obstacle that a worker with these files meets.
std::string ObstacleFor(const std::string& server, const TlsFiles& tls) {
  RecordedHooks hooks;
  const auto client = MakeGrpcClient(
      {.server = server, .tls = tls, .batch_size = 1, .hooks = &hooks});
  EXPECT_TRUE(client.ok()) << client.status();
  std::thread join([&] { (*client)->Join().IgnoreError(); });
  std::string text;
  {
    MutexLock lock(hooks.mu);
    while (hooks.obstacles.empty()) hooks.changed.Wait(hooks.mu);
    text = hooks.obstacles.front();
  }
  (*client)->RequestStop();
  join.join();
  return text;
}

TEST(ClientConnectionTest, WrongCertificatesAreObstaclesThatSayWhatToDo) {
  TlsServer server;
  EXPECT_THAT(ObstacleFor(server.address, {}),
              HasSubstr("the server speaks TLS and this side does not"));
  EXPECT_THAT(ObstacleFor(server.address,
                          {.ca = server.authority.Issue("worker/0").ca}),
              HasSubstr("takes only clients with a certificate"));
  TestAuthority other;
  EXPECT_THAT(ObstacleFor(server.address, other.Issue("worker/0")),
              HasSubstr("another authority"));
}

TEST(ClientConnectionTest, AnExpiredCertificateOfItsOwnIsFinal) {
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
  EXPECT_EQ(joined.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(joined.message()), HasSubstr("has expired"));
  EXPECT_THAT(std::string(joined.message()), HasSubstr("renew it"));
}

TEST(ClientConnectionTest, CallsBeforeJoinAreRefused) {
  ClientOptions options;
  options.server = "127.0.0.1:1";
  options.batch_size = 1;
  const auto client = MakeGrpcClient(options);
  ASSERT_TRUE(client.ok());
  EXPECT_EQ((*client)->NextAssignment().status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*client)->OpenPush({}).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(ClientConnectionTest, JoinWaitsUntilTheRankIsFree) {
  FakeServer server;
  int refusals = 0;
  server.on_join = [&](const v1::Join& join) -> absl::StatusOr<v1::JoinReply> {
    if (++refusals <= 2) {
      return absl::AlreadyExistsError(
          absl::StrCat("rank 2 is alive for ", 4 - refusals, " s"));
    }
    return server.Admit(join);
  };
  const auto client = MakeGrpcClient(server.Options());
  ASSERT_TRUE(client.ok());
  std::vector<std::string> told;
  (*client)->SetObserver([&](const std::string& s) { told.push_back(s); });
  EXPECT_TRUE((*client)->Join().ok());
  EXPECT_EQ(server.joins().size(), 3u);
  // Reported once, not at every try, although the text counts down.
  ASSERT_EQ(told.size(), 1u);
  EXPECT_THAT(told[0], HasSubstr("rank 2 is alive for 3 s"));
}

TEST(ClientConnectionTest, WrongRunIsFinal) {
  FakeServer server;
  server.on_join = [](const v1::Join&) -> absl::StatusOr<v1::JoinReply> {
    return absl::FailedPreconditionError("the run is over");
  };
  const auto client = MakeGrpcClient(server.Options());
  ASSERT_TRUE(client.ok());
  const absl::Status status = (*client)->Join().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the run is over"));
  EXPECT_EQ(server.joins().size(), 1u);
}

TEST(ClientConnectionTest, ARankThatIsNotNeededAnyMoreIsNoError) {
  FakeServer server;
  server.on_join = [](const v1::Join&) -> absl::StatusOr<v1::JoinReply> {
    return absl::OutOfRangeError("rank 2 is no longer needed");
  };
  const auto client = MakeGrpcClient(server.Options());
  ASSERT_TRUE(client.ok());
  std::string told;
  (*client)->SetObserver([&told](const std::string& text) { told = text; });
  EXPECT_TRUE(absl::IsCancelled((*client)->Join().status()));
  EXPECT_THAT(told, HasSubstr("rank 2 is no longer needed"));
}

TEST(ClientConnectionTest, TheEndIsToldWithItsReason) {
  FakeServer server;
  server.on_open = [&](int) {
    server.Tell(
        {.kind = AssignmentKind::kFinished, .reason = "drained: told to"});
  };
  const auto client = JoinedClient(server.Options());
  std::string told;
  client->SetObserver([&told](const std::string& text) { told = text; });
  const auto assignment = client->NextAssignment();
  ASSERT_TRUE(assignment.ok()) << assignment.status();
  EXPECT_EQ(assignment->kind, AssignmentKind::kFinished);
  EXPECT_EQ(told, "drained: told to");
}

TEST(ClientConnectionTest, UnreachableServerIsGivenUpByName) {
  FakeServer server;
  ClientOptions options = server.Options();
  options.server_timeout = absl::Seconds(2);
  server.Shutdown();
  const auto client = MakeGrpcClient(options);
  ASSERT_TRUE(client.ok());
  const absl::Status status = (*client)->Join().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  // The reason, and not that the last attempt ran out of time.
  EXPECT_EQ(status.message(),
            "could not join " + options.server +
                " within 2s: cannot be reached (Connection refused); is a "
                "cohort-server running at that address?");
}

TEST(ClientConnectionTest, ServersNeedAPort) {
  ClientOptions options{.server = "server", .batch_size = 1};
  EXPECT_EQ(MakeGrpcClient(options).status().message(),
            "--server: got 'server', want host:port such as 127.0.0.1:7070, "
            "with a port of 0 to 65535, or unix:/path");
}

TEST(ClientConnectionTest, WaitsAreToldAndWaitedOut) {
  FakeServer server;
  server.on_open = [&](int) {
    Assignment wait;
    wait.kind = AssignmentKind::kWait;
    wait.reason = "waiting for 2 of 4 workers";
    server.Tell(wait);
    server.Tell(TrainAssignment(1, 0, 10));
  };
  // The work may overtake the check for the wait, so only the result is
  // certain.
  const auto client = JoinedClient(server.Options());
  const auto assignment = client->NextAssignment();
  ASSERT_TRUE(assignment.ok()) << assignment.status();
  EXPECT_EQ(assignment->kind, AssignmentKind::kTrain);
  EXPECT_EQ(assignment->sequence, Sequence(1));
  EXPECT_EQ(assignment->range, (IndexRange{.begin = 0, .end = 8}));
}

TEST(ClientConnectionTest, WaitIsToldInTheServersWords) {
  FakeServer server;
  server.on_open = [&](int) {
    Assignment wait;
    wait.kind = AssignmentKind::kWait;
    wait.reason = "waiting for 2 of 4 workers";
    server.Tell(wait);
  };
  const auto client = JoinedClient(server.Options());
  std::vector<std::string> told;
  client->SetObserver([&](const std::string& sentence) {
    told.push_back(sentence);
    server.Tell(TrainAssignment(1, 0, 10));
  });
  EXPECT_TRUE(client->NextAssignment().ok());
  EXPECT_THAT(told, Contains("waiting for 2 of 4 workers"));
}

TEST(ClientConnectionTest, SilenceOfALiveServerIsGivenUp) {
  FakeServer server;
  ClientOptions options = server.Options();
  options.server_timeout = absl::Seconds(2);
  const auto client = JoinedClient(options);
  const absl::Status status = client->NextAssignment().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("an assignment"));
}

TEST(ClientConnectionTest, EndOfTheRunIsToldEvenIfTheSessionEnds) {
  FakeServer server;
  server.on_open = [&](int) {
    Assignment end;
    end.kind = AssignmentKind::kFinished;
    end.reason = "last epoch";
    server.Tell(end);
    server.EndSession(absl::FailedPreconditionError("the run is over"));
  };
  const auto client = JoinedClient(server.Options());
  const auto assignment = client->NextAssignment();
  ASSERT_TRUE(assignment.ok()) << assignment.status();
  EXPECT_EQ(assignment->kind, AssignmentKind::kFinished);
  EXPECT_EQ(assignment->reason, "last epoch");
}

TEST(ClientConnectionTest, BrokenSessionIsResumedAsTheSameIncarnation) {
  FakeServer server;
  server.on_register = RegisterWithoutValues;
  server.on_open = [&](int) { server.Tell(TrainAssignment(1, 0, 10)); };
  const auto client = JoinedClient(server.Options());
  RegisterTestModel(*client);
  ASSERT_TRUE(client->NextAssignment().ok());

  server.EndSession(absl::UnavailableError("restarting"));
  // The same assignment again, as sent on the second session.
  const auto again = client->NextAssignment();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->sequence, Sequence(1));
  EXPECT_EQ(again->attempt, Attempt(0));
  const std::vector<v1::Join> joins = server.joins();
  ASSERT_EQ(joins.size(), 2u);
  EXPECT_EQ(joins[1].rank(), 2);
  EXPECT_EQ(joins[1].run_id(), "run-1");
  EXPECT_EQ(joins[1].incarnation(), 1);
}

TEST(ClientConnectionTest, FencedIncarnationComesBackAsANewOneAndRegisters) {
  FakeServer server;
  int registrations = 0;
  server.on_register = [&](FakeServer::RegisterIo& io) {
    ++registrations;
    return RegisterWithoutValues(io);
  };
  server.on_join = [&](const v1::Join& join) -> absl::StatusOr<v1::JoinReply> {
    if (join.incarnation() > 0) {
      return absl::AbortedError("rank 2 is now held by a newer process");
    }
    return server.Admit(join);
  };
  server.on_open = [&](int session) {
    if (session > 1) server.Tell(TrainAssignment(4, 0, 13));
  };
  const auto client = JoinedClient(server.Options());
  RegisterTestModel(*client);
  server.EndSession(absl::AbortedError("fenced"));
  const auto assignment = client->NextAssignment();
  ASSERT_TRUE(assignment.ok()) << assignment.status();
  EXPECT_EQ(assignment->sequence, Sequence(4));
  const std::vector<v1::Join> joins = server.joins();
  ASSERT_EQ(joins.size(), 3u);
  EXPECT_EQ(joins[1].incarnation(), 1);
  EXPECT_EQ(joins[2].incarnation(), 0);
  EXPECT_EQ(joins[2].rank(), 2);
  EXPECT_EQ(joins[2].run_id(), "run-1");
  EXPECT_EQ(registrations, 2);
}

TEST(ClientConnectionTest, ServerThatLostTheRunEndsTheWorker) {
  FakeServer server;
  bool lost = false;
  server.on_register = [&](FakeServer::RegisterIo& io) {
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
  const auto client = JoinedClient(server.Options());
  RegisterTestModel(*client);
  lost = true;
  server.on_join = [&](v1::Join join) -> absl::StatusOr<v1::JoinReply> {
    // The server knows no incarnation and starts a new one.
    join.set_incarnation(0);
    return server.Admit(join);
  };
  server.EndSession(absl::UnavailableError("restarting"));
  const absl::Status status = client->NextAssignment().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("lost its model"));
  // The error is permanent.
  EXPECT_EQ(client->NextAssignment().status(), status);
}

TEST(ClientConnectionTest, AnotherRunUnderTheSameAddressIsFinal) {
  FakeServer server;
  const auto client = JoinedClient(server.Options());
  server.on_join = [&](const v1::Join& join) -> absl::StatusOr<v1::JoinReply> {
    v1::JoinReply reply = server.Admit(join);
    reply.set_run_id("run-2");
    return reply;
  };
  server.EndSession(absl::UnavailableError("restarting"));
  const absl::Status status = client->NextAssignment().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("run-2"));
}

TEST(ClientConnectionTest, HeartbeatsNameTheWorkInProgress) {
  FakeServer server;
  server.on_open = [&](int) { server.Tell(TrainAssignment(7, 0, 10)); };
  const auto client = JoinedClient(server.Options());
  server.AwaitReceived([](const v1::SessionRequest& request) {
    return request.has_heartbeat() && request.heartbeat().sequence() == 0;
  });
  ASSERT_TRUE(client->NextAssignment().ok());
  server.AwaitReceived([](const v1::SessionRequest& request) {
    return request.has_heartbeat() && request.heartbeat().sequence() == 7;
  });
}

TEST(ClientConnectionTest, HooksHearOfRetriesAndReturns) {
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
TEST(ClientConnectionTest, HeartbeatsCarryPhasesAndBringTheServersClock) {
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

TEST(ClientConnectionTest, StopEndsTheWaitAndLeaveStillSaysGoodBye) {
  FakeServer server;
  Client* stopped = nullptr;
  server.on_open = [&](int) {
    Assignment wait;
    wait.kind = AssignmentKind::kWait;
    wait.reason = "rank 3";
    server.Tell(wait);
  };
  const auto client = JoinedClient(server.Options());
  stopped = client.get();
  std::thread stopper;
  client->SetObserver([&](const std::string&) {
    stopper = std::thread([&] { stopped->RequestStop(); });
  });
  EXPECT_EQ(client->NextAssignment().status().code(),
            absl::StatusCode::kCancelled);
  stopper.join();
  EXPECT_EQ(client->OpenPush({}).code(), absl::StatusCode::kCancelled);
  client->Leave({.reason = "SIGTERM"});
  server.AwaitReceived([](const v1::SessionRequest& request) {
    return request.has_leave() && request.leave().reason() == "SIGTERM";
  });
}

TEST(ClientConnectionTest, StopEndsTheRetriesOfAJoin) {
  FakeServer server;
  const auto client = MakeGrpcClient(server.Options());
  ASSERT_TRUE(client.ok());
  server.on_join = [&](const v1::Join&) -> absl::StatusOr<v1::JoinReply> {
    (*client)->RequestStop();
    return absl::AlreadyExistsError("rank 2 is alive");
  };
  EXPECT_EQ((*client)->Join().status().code(), absl::StatusCode::kCancelled);
}

TEST(ClientConnectionTest, NothingWorksAfterLeaving) {
  FakeServer server;
  const auto client = JoinedClient(server.Options());
  client->Leave({.reason = "done"});
  EXPECT_EQ(client->NextAssignment().status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(ClientConnectionTest, LostServerIsLookedForUntilStopped) {
  auto first = std::make_unique<FakeServer>();
  const auto client = JoinedClient(first->Options());
  first->Shutdown();
  // The client goes on until a server listens there again. The stop replaces
  // that here, because another process could take the port meanwhile.
  int told = 0;
  client->SetObserver([&](const std::string&) {
    if (++told == 2) client->RequestStop();
  });
  EXPECT_EQ(client->NextAssignment().status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(told, 2);
}

}  // namespace
}  // namespace cohort
