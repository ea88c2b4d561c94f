// The client without its retries: each call is tried once.

#include "worker/client/grpc_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/wire/security.h"
#include "tests/client/fake_server.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

class GrpcClientTest : public testing::Test {
 protected:
  FakeServer server_;
};

TEST_F(GrpcClientTest, ARefusedJoinIsTriedOnce) {
  server_.on_join = [](const v1::Join&) {
    return absl::AlreadyExistsError("rank 2 is alive");
  };
  GrpcClient client(server_.Options());
  EXPECT_TRUE(absl::IsAlreadyExists(client.Join().status()));
  EXPECT_EQ(server_.joins().size(), 1u);
}

TEST_F(GrpcClientTest, ALostSessionIsToldAndJoinReturnsToTheSameIncarnation) {
  GrpcClient client(server_.Options());
  ASSERT_TRUE(client.Join().ok());
  server_.EndSession(absl::UnavailableError("restarting"));
  EXPECT_THAT(client.NextAssignment(), IsError(kUnavailable, "restarting"));
  EXPECT_EQ(server_.joins().size(), 1u);

  const auto again = OkValue(client.Join());
  EXPECT_EQ(again.incarnation, Incarnation(1));
  EXPECT_EQ(server_.joins().at(1).incarnation(), 1);
}

// The connection of the one before may be damaged: it would be stuck for each
// further incarnation, too.
TEST_F(GrpcClientTest, ANewIncarnationConnectsAnew) {
  server_.on_register = RegisterWithoutValues;
  GrpcClient client(server_.Options());
  ASSERT_TRUE(client.Join().ok());
  RegisterTestModel(client);
  server_.on_join = [&](const v1::Join& join) -> absl::StatusOr<v1::JoinReply> {
    if (join.incarnation() > 0) {
      return absl::AbortedError("no progress for 6 s");
    }
    return server_.Admit(join);
  };
  EXPECT_TRUE(absl::IsAborted(client.Join().status()));
  EXPECT_EQ(OkValue(client.Join()).incarnation, Incarnation(2));
  const std::vector<std::string> peers = server_.register_peers();
  ASSERT_EQ(peers.size(), 2u);
  EXPECT_NE(peers[0], peers[1]);
}

TEST_F(GrpcClientTest, AFailedRegistrationIsTriedOnce) {
  int tries = 0;
  server_.on_register = [&](FakeServer::RegisterIo&) {
    ++tries;
    return grpc::Status(grpc::UNAVAILABLE, "restarting");
  };
  GrpcClient client(server_.Options());
  ASSERT_TRUE(client.Join().ok());
  EXPECT_TRUE(absl::IsUnavailable(TryRegister(client).status()));
  EXPECT_EQ(tries, 1);
}

TEST_F(GrpcClientTest, ADamagedPullIsTriedOnce) {
  int pulls = 0;
  server_.on_pull = [&](const v1::PullRequest&, FakeServer::PullIo& io) {
    ++pulls;
    v1::PullReply reply;
    reply.mutable_header()->set_version(9);
    reply.set_message_xxh3(1);
    io.Write(reply);
    return grpc::Status::OK;
  };
  GrpcClient client(server_.Options());
  ASSERT_TRUE(client.Join().ok());
  EXPECT_TRUE(absl::IsDataLoss(client.Pull({.version = Version(9)}).status()));
  EXPECT_EQ(pulls, 1);
}

TEST_F(GrpcClientTest, ADataShardThatCannotBeReachedIsNamed) {
  FakeServer shard;
  server_.on_join = [&](const v1::Join& join) {
    v1::JoinReply reply = server_.Admit(join);
    reply.add_shards(server_.address());
    reply.add_shards(shard.address());
    return reply;
  };
  shard.Shutdown();
  ClientOptions options = server_.Options();
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
TEST_F(GrpcClientTest, AProcessThatIsNotTheDataShardIsNamed) {
  FakeServer shard;
  std::vector<v1::PullRequest> asked;
  grpc::Status answer = grpc::Status::OK;
  server_.on_join = [&](const v1::Join& join) {
    v1::JoinReply reply = server_.Admit(join);
    reply.add_shards(server_.address());
    reply.add_shards(shard.address());
    return reply;
  };
  shard.on_pull = [&](const v1::PullRequest& request, FakeServer::PullIo&) {
    asked.push_back(request);
    return answer;
  };
  const Membership joined = OkValue(GrpcClient(server_.Options()).Join());
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].run_id(), joined.run_id);
  EXPECT_EQ(asked[0].shard(), 1);
  EXPECT_FALSE(asked[0].has_version());

  answer = grpc::Status(grpc::UNAVAILABLE, "shard 0 is not there");
  ClientOptions options = server_.Options();
  options.server_timeout = absl::Seconds(1);
  GrpcClient client(options, *Security::Load({}));
  EXPECT_THAT(client.Join(),
              IsError(kUnavailable, "data shard 1 at " + shard.address()));
  // A few times a second.
  EXPECT_LT(asked.size(), 30u);
}

}  // namespace
}  // namespace cohort
