// The client without its retries: each call is tried once.

#include "worker/client/grpc_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/wire/security.h"
#include "tests/client/fake_server.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

TEST(GrpcClientTest, ARefusedJoinIsTriedOnce) {
  FakeServer server;
  server.on_join = [](const v1::Join&) -> absl::StatusOr<v1::JoinReply> {
    return absl::AlreadyExistsError("rank 2 is alive");
  };
  GrpcClient client(server.Options());
  EXPECT_TRUE(absl::IsAlreadyExists(client.Join().status()));
  EXPECT_EQ(server.joins().size(), 1u);
}

TEST(GrpcClientTest, ALostSessionIsToldAndJoinReturnsToTheSameIncarnation) {
  FakeServer server;
  GrpcClient client(server.Options());
  ASSERT_TRUE(client.Join().ok());
  server.EndSession(absl::UnavailableError("restarting"));
  const absl::Status lost = client.NextAssignment().status();
  EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
  EXPECT_THAT(std::string(lost.message()), HasSubstr("restarting"));
  EXPECT_EQ(server.joins().size(), 1u);

  const auto again = client.Join();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->incarnation, Incarnation(1));
  EXPECT_EQ(server.joins().at(1).incarnation(), 1);
}

TEST(GrpcClientTest, AfterAnAbortedJoinTheNextStartsANewIncarnation) {
  FakeServer server;
  GrpcClient client(server.Options());
  ASSERT_TRUE(client.Join().ok());
  server.on_join = [&](const v1::Join& join) -> absl::StatusOr<v1::JoinReply> {
    if (join.incarnation() > 0) {
      return absl::AbortedError("rank 2 is now held by a newer process");
    }
    return server.Admit(join);
  };
  EXPECT_TRUE(absl::IsAborted(client.Join().status()));
  const auto again = client.Join();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->incarnation, Incarnation(2));
}

// The connection of the one before may be damaged: it would be stuck for each
// further incarnation, too.
TEST(GrpcClientTest, ANewIncarnationConnectsAnew) {
  FakeServer server;
  server.on_register = RegisterWithoutValues;
  GrpcClient client(server.Options());
  ASSERT_TRUE(client.Join().ok());
  RegisterTestModel(client);
  server.on_join = [&](const v1::Join& join) -> absl::StatusOr<v1::JoinReply> {
    if (join.incarnation() > 0) {
      return absl::AbortedError("no progress for 6 s");
    }
    return server.Admit(join);
  };
  EXPECT_TRUE(absl::IsAborted(client.Join().status()));
  const auto again = client.Join();
  ASSERT_TRUE(again.ok()) << again.status();
  const std::vector<std::string> peers = server.register_peers();
  ASSERT_EQ(peers.size(), 2u);
  EXPECT_NE(peers[0], peers[1]);
}

TEST(GrpcClientTest, AFailedRegistrationIsTriedOnce) {
  FakeServer server;
  int tries = 0;
  server.on_register = [&](FakeServer::RegisterIo&) {
    ++tries;
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "restarting");
  };
  GrpcClient client(server.Options());
  ASSERT_TRUE(client.Join().ok());
  const std::vector<float> two = {1, 2};
  const std::vector<float> one = {3};
  const std::vector<absl::Span<const float>> values = {two, one, two};
  EXPECT_TRUE(absl::IsUnavailable(
      client.Register(TestLayout(), {}, values, {}).status()));
  EXPECT_EQ(tries, 1);
}

TEST(GrpcClientTest, ADamagedPullIsTriedOnce) {
  FakeServer server;
  int pulls = 0;
  server.on_pull = [&](const v1::PullRequest&, FakeServer::PullIo& io) {
    ++pulls;
    v1::PullReply reply;
    reply.mutable_header()->set_version(9);
    reply.set_message_xxh3(1);
    io.Write(reply);
    return grpc::Status::OK;
  };
  GrpcClient client(server.Options());
  ASSERT_TRUE(client.Join().ok());
  const absl::Status status = client.Pull({.version = Version(9)}).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_EQ(pulls, 1);
}

TEST(GrpcClientTest, ADataShardThatCannotBeReachedIsNamed) {
  FakeServer server;
  FakeServer shard;
  server.on_join = [&](const v1::Join& join) {
    v1::JoinReply reply = server.Admit(join);
    reply.add_shards(server.address());
    reply.add_shards(shard.address());
    return reply;
  };
  shard.Shutdown();
  ClientOptions options = server.Options();
  options.server_timeout = absl::Seconds(1);
  GrpcClient client(options, *Security::Load({}));
  std::vector<std::string> told;
  client.SetObserver([&](const std::string& text) { told.push_back(text); });
  const absl::Status status = client.Join().status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  const std::string text = "data shard 1 at " + shard.address() +
                           ": cannot be reached (Connection refused)";
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  ASSERT_FALSE(told.empty());
  EXPECT_THAT(told.front(), HasSubstr("waiting: " + text));
}

// A name that leads to another process from here than from the server, or to a
// data shard that shard 0 is not connected to yet.
TEST(GrpcClientTest, AProcessThatIsNotTheDataShardIsNamed) {
  FakeServer server;
  FakeServer shard;
  std::vector<v1::PullRequest> asked;
  grpc::Status answer = grpc::Status::OK;
  server.on_join = [&](const v1::Join& join) {
    v1::JoinReply reply = server.Admit(join);
    reply.add_shards(server.address());
    reply.add_shards(shard.address());
    return reply;
  };
  shard.on_pull = [&](const v1::PullRequest& request, FakeServer::PullIo&) {
    asked.push_back(request);
    return answer;
  };
  const absl::StatusOr<Membership> joined = GrpcClient(server.Options()).Join();
  ASSERT_TRUE(joined.ok()) << joined.status();
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].run_id(), joined->run_id);
  EXPECT_EQ(asked[0].shard(), 1);
  EXPECT_FALSE(asked[0].has_version());

  answer = grpc::Status(grpc::StatusCode::UNAVAILABLE, "shard 0 is not there");
  ClientOptions options = server.Options();
  options.server_timeout = absl::Seconds(1);
  GrpcClient client(options, *Security::Load({}));
  const absl::Status status = client.Join().status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("data shard 1 at " + shard.address() +
                        ": shard 0 is not there"));
  // A few times a second.
  EXPECT_LT(asked.size(), 30u);
}

}  // namespace
}  // namespace cohort
