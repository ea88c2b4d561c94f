// Reading a version without joining the run.

#include "worker/client/model_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/client/fake_server.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

absl::StatusOr<PulledVersion> Read(const FakeServer& server,
                                   const ModelLayout& layout = TestLayout(),
                                   absl::Duration timeout = absl::Seconds(30)) {
  return ReadNewest({.server = server.address(), .server_timeout = timeout},
                    layout);
}

// Sends all of version 9.
grpc::Status SendVersion(FakeServer::PullIo& io) {
  io.Write(HeaderReply(9));
  io.Write(PartitionReply(0, {1, 2}));
  io.Write(PartitionReply(1, {3}));
  io.Write(PartitionReply(2, {1, 2}));
  return grpc::Status::OK;
}

class ModelReaderTest : public testing::Test {
 protected:
  FakeServer server_;
};

TEST_F(ModelReaderTest, ReadsTheNewestVersionOfWhateverRunWithoutASession) {
  v1::PullRequest seen;
  server_.on_pull = [&](const v1::PullRequest& request,
                        FakeServer::PullIo& io) {
    seen = request;
    return SendVersion(io);
  };
  const auto pulled = OkValue(Read(server_));
  EXPECT_EQ(seen.run_id(), "");
  EXPECT_FALSE(seen.has_version());
  EXPECT_TRUE(seen.weights());
  EXPECT_TRUE(seen.statistics());
  EXPECT_EQ(pulled.version, Version(9));
  EXPECT_EQ(pulled.statistics, InitialStatistics(TestLayout()));
  ASSERT_EQ(pulled.weights.size(), 3u);
  EXPECT_EQ(pulled.weights[1].ToString(), FloatBytes({3}));
  EXPECT_TRUE(server_.joins().empty());
}

TEST_F(ModelReaderTest, AllShardsAreAskedForOneVersionOfOneGeneration) {
  FakeServer shard;
  server_.on_pull = [&](const v1::PullRequest&, FakeServer::PullIo& io) {
    v1::PullReply header = HeaderReply(9);
    header.mutable_header()->add_further_shards(shard.address());
    header.mutable_header()->set_generation(7);
    io.Write(header);
    io.Write(PartitionReply(0, {1, 2}));
    io.Write(PartitionReply(2, {1, 2}));
    return grpc::Status::OK;
  };
  v1::PullRequest asked;
  int tries = 0;
  shard.on_pull = [&](const v1::PullRequest& request, FakeServer::PullIo& io) {
    asked = request;
    if (++tries == 1) {
      return grpc::Status(grpc::UNAVAILABLE, "got generation 7");
    }
    // Versions are made faster than this reader comes.
    if (tries <= 25) {
      return grpc::Status(grpc::StatusCode::OUT_OF_RANGE, "is not held");
    }
    v1::PullReply header;
    header.mutable_header()->set_version(9);
    io.Write(header);
    io.Write(PartitionReply(1, {3}));
    return grpc::Status::OK;
  };
  const auto pulled = OkValue(Read(server_));
  EXPECT_EQ(tries, 26);
  EXPECT_EQ(asked.version(), 9);
  EXPECT_EQ(asked.generation(), 7);
  EXPECT_EQ(pulled.weights[1].ToString(), FloatBytes({3}));
}

TEST_F(ModelReaderTest, ADataShardThatRefusesIsNamed) {
  FakeServer shard;
  server_.on_pull = [&](const v1::PullRequest&, FakeServer::PullIo& io) {
    v1::PullReply header = HeaderReply(9);
    header.mutable_header()->add_further_shards(shard.address());
    io.Write(header);
    return grpc::Status::OK;
  };
  shard.on_pull = [](const v1::PullRequest&, FakeServer::PullIo&) {
    return grpc::Status(grpc::FAILED_PRECONDITION, "another run");
  };
  EXPECT_THAT(Read(server_), IsError(kFailedPrecondition,
                                     "from data shard 1 failed: another run"));
}

TEST_F(ModelReaderTest, AnotherModelIsRefusedByItsFirstDifference) {
  server_.on_pull = [](const auto&, auto& io) { return SendVersion(io); };
  ModelLayout other = TestLayout();
  other.parameters[0].shape = {7};
  EXPECT_THAT(Read(server_, other),
              IsError(kFailedPrecondition, other.parameters[0].name));
}

TEST_F(ModelReaderTest, RefusalIsToldInTheServersWords) {
  server_.on_pull = [](const v1::PullRequest&, FakeServer::PullIo&) {
    return grpc::Status(grpc::FAILED_PRECONDITION,
                        "no model is registered yet");
  };
  EXPECT_THAT(Read(server_),
              IsError(kFailedPrecondition, "no model is registered"));
}

TEST_F(ModelReaderTest, RepeatsThePullOfAServerThatRestarts) {
  int tries = 0;
  server_.on_pull = [&](const v1::PullRequest&, FakeServer::PullIo& io) {
    if (++tries == 1) {
      return grpc::Status(grpc::UNAVAILABLE, "restarting");
    }
    return SendVersion(io);
  };
  EXPECT_TRUE(Read(server_).ok());
  EXPECT_EQ(tries, 2);
}

TEST_F(ModelReaderTest, GivesUpOnAServerThatIsAway) {
  server_.Shutdown();
  EXPECT_THAT(Read(server_, TestLayout(), absl::Milliseconds(200)),
              IsError(kDeadlineExceeded, server_.address()));
}

TEST_F(ModelReaderTest, OptionsAreChecked) {
  const FakeServer server;
  ReaderOptions options;
  EXPECT_TRUE(
      absl::IsInvalidArgument(ReadNewest(options, TestLayout()).status()));
  options.server = server.address();
  options.server_timeout = absl::ZeroDuration();
  EXPECT_TRUE(
      absl::IsInvalidArgument(ReadNewest(options, TestLayout()).status()));
}

}  // namespace
}  // namespace cohort
