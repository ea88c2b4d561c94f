// Reading a version without joining the run.

#include "worker/client/model_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "common/wire/convert.h"
#include "tests/client/fake_server.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<ModelReader> Reader(
    const FakeServer& server, absl::Duration timeout = absl::Seconds(30)) {
  absl::StatusOr<std::unique_ptr<ModelReader>> reader =
      MakeModelReader({.server = server.address(), .server_timeout = timeout});
  EXPECT_TRUE(reader.ok()) << reader.status();
  return *std::move(reader);
}

// Version 9 of the test model.
v1::PullReply VersionHeader() {
  v1::PullReply reply;
  v1::PullHeader* header = reply.mutable_header();
  header->set_version(9);
  ToProto(TestLayout(), header->mutable_layout());
  ToProto(TestPartitions(), header->mutable_partitions());
  ToProto(InitialStatistics(TestLayout()), header->mutable_statistics());
  return reply;
}

v1::PullReply PartitionOf(int32_t partition) {
  v1::PullReply reply;
  reply.set_partition(partition);
  reply.set_encoding(v1::ENCODING_FLOAT32);
  reply.set_payload(partition == 1 ? FloatBytes({3}) : FloatBytes({1, 2}));
  return reply;
}

// Sends all of it.
grpc::Status SendVersion(FakeServer::PullIo& io) {
  io.Write(VersionHeader());
  for (int32_t partition = 0; partition < 3; ++partition) {
    io.Write(PartitionOf(partition));
  }
  return grpc::Status::OK;
}

TEST(ModelReaderTest, ReadsTheNewestVersionOfWhateverRunWithoutASession) {
  FakeServer server;
  v1::PullRequest seen;
  server.on_pull = [&](const v1::PullRequest& request, FakeServer::PullIo& io) {
    seen = request;
    return SendVersion(io);
  };
  const auto pulled = Reader(server)->Pull(TestLayout(), std::nullopt);
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(seen.run_id(), "");
  EXPECT_FALSE(seen.has_version());
  EXPECT_TRUE(seen.weights());
  EXPECT_TRUE(seen.statistics());
  EXPECT_EQ(pulled->version, Version(9));
  EXPECT_EQ(pulled->statistics, InitialStatistics(TestLayout()));
  ASSERT_EQ(pulled->weights.size(), 3u);
  EXPECT_EQ(pulled->weights[1].ToString(), FloatBytes({3}));
  EXPECT_TRUE(server.joins().empty());
}

TEST(ModelReaderTest, AllShardsAreAskedForOneVersionOfOneGeneration) {
  FakeServer server;
  FakeServer shard;
  server.on_pull = [&](const v1::PullRequest&, FakeServer::PullIo& io) {
    v1::PullReply header = VersionHeader();
    header.mutable_header()->add_further_shards(shard.address());
    header.mutable_header()->set_generation(7);
    io.Write(header);
    io.Write(PartitionOf(0));
    io.Write(PartitionOf(2));
    return grpc::Status::OK;
  };
  v1::PullRequest asked;
  int tries = 0;
  shard.on_pull = [&](const v1::PullRequest& request, FakeServer::PullIo& io) {
    asked = request;
    if (++tries == 1) {
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "got generation 7");
    }
    v1::PullReply header;
    header.mutable_header()->set_version(9);
    io.Write(header);
    io.Write(PartitionOf(1));
    return grpc::Status::OK;
  };
  const auto pulled = Reader(server)->Pull(TestLayout(), std::nullopt);
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(tries, 2);
  EXPECT_EQ(asked.version(), 9);
  EXPECT_EQ(asked.generation(), 7);
  EXPECT_EQ(pulled->weights[1].ToString(), FloatBytes({3}));
}

TEST(ModelReaderTest, ADataShardThatRefusesIsNamed) {
  FakeServer server;
  FakeServer shard;
  server.on_pull = [&](const v1::PullRequest&, FakeServer::PullIo& io) {
    v1::PullReply header = VersionHeader();
    header.mutable_header()->add_further_shards(shard.address());
    io.Write(header);
    return grpc::Status::OK;
  };
  shard.on_pull = [](const v1::PullRequest&, FakeServer::PullIo&) {
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "another run");
  };
  const absl::Status status =
      Reader(server)->Pull(TestLayout(), std::nullopt).status();
  EXPECT_EQ(
      status.message(),
      shard.address() + ": the pull from data shard 1 failed: another run");
}

TEST(ModelReaderTest, AnotherModelIsRefusedByItsFirstDifference) {
  FakeServer server;
  server.on_pull = [](const v1::PullRequest&, FakeServer::PullIo& io) {
    return SendVersion(io);
  };
  ModelLayout other = TestLayout();
  other.parameters[0].shape = {7};
  const absl::Status status =
      Reader(server)->Pull(other, std::nullopt).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(other.parameters[0].name));
}

TEST(ModelReaderTest, RefusalIsToldInTheServersWords) {
  FakeServer server;
  server.on_pull = [](const v1::PullRequest&, FakeServer::PullIo&) {
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION,
                        "no model is registered yet");
  };
  const absl::Status status =
      Reader(server)->Pull(TestLayout(), std::nullopt).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("no model is registered yet"));
}

TEST(ModelReaderTest, RepeatsThePullOfAServerThatRestarts) {
  FakeServer server;
  int tries = 0;
  server.on_pull = [&](const v1::PullRequest&, FakeServer::PullIo& io) {
    if (++tries == 1) {
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "restarting");
    }
    return SendVersion(io);
  };
  EXPECT_TRUE(Reader(server)->Pull(TestLayout(), std::nullopt).ok());
  EXPECT_EQ(tries, 2);
}

TEST(ModelReaderTest, GivesUpOnAServerThatIsAway) {
  FakeServer server;
  server.Shutdown();
  const absl::Status status = Reader(server, absl::Milliseconds(200))
                                  ->Pull(TestLayout(), std::nullopt)
                                  .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr(server.address()));
}

TEST(ModelReaderTest, StopReleasesThePull) {
  FakeServer server;
  std::unique_ptr<ModelReader> reader;
  server.on_pull = [&](const v1::PullRequest&, FakeServer::PullIo&) {
    reader->RequestStop();
    return grpc::Status::OK;
  };
  reader = Reader(server);
  EXPECT_EQ(reader->Pull(TestLayout(), std::nullopt).status().code(),
            absl::StatusCode::kCancelled);
}

TEST(ModelReaderTest, OptionsAreChecked) {
  const FakeServer server;
  ReaderOptions options;
  EXPECT_EQ(MakeModelReader(options).status().code(),
            absl::StatusCode::kInvalidArgument);
  options.server = server.address();
  options.server_timeout = absl::ZeroDuration();
  EXPECT_EQ(MakeModelReader(options).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cohort
