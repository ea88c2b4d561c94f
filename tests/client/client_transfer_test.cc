// Registering the model and pulling versions.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <string>
#include <vector>

#include "common/byte_rope.h"
#include "common/wire/convert.h"
#include "common/wire/message_checksum.h"
#include "tests/client/fake_server.h"
#include "tests/fakes/statuses.h"
#include "worker/client/client.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

// Receives the values of every partition, as a server does from the first
// worker.
class ValueTaker {
 public:
  grpc::Status operator()(FakeServer::RegisterIo& io) {
    if (!io.Read(&first)) return grpc::Status::OK;
    v1::RegisterReply reply;
    ToProto(TestPartitions(), reply.mutable_partitions());
    reply.set_loss_reference(8);
    reply.set_send_values(true);
    io.Write(reply);
    v1::RegisterRequest request;
    while (payloads.size() < 3 && io.Read(&request)) {
      const std::string& bytes = request.payload();
      const ByteRope rope = ByteRope::CopyText(bytes);
      ExpectOk(
          CheckPayload(request, rope, static_cast<int64_t>(bytes.size()) / 4));
      EXPECT_EQ(request.sender().rank(), 2);
      payloads[request.partition()] = bytes;
    }
    reply.Clear();
    reply.set_done(true);
    // As if another worker had registered in between.
    reply.set_loss_reference(16);
    io.Write(reply);
    return grpc::Status::OK;
  }

  v1::RegisterRequest first;
  std::map<int32_t, std::string> payloads;
};

TEST(ClientRegisterTest, FirstWorkerSendsLayoutPlanAndValues) {
  FakeServer server;
  ValueTaker taker;
  server.on_register = [&](FakeServer::RegisterIo& io) { return taker(io); };
  const auto client = JoinedClient(server.Options());
  const std::vector<LayerStatistics> statistics = {
      {.mean = {1, 2}, .variance = {3, 4}, .num_batches_tracked = 5}};
  const auto registration = OkValue(TryRegister(*client, statistics));
  EXPECT_EQ(registration.partitions, TestPartitions());
  EXPECT_EQ(registration.loss_reference, 16);
  EXPECT_EQ(FromProto(taker.first.layout())->parameters,
            TestLayout().parameters);
  EXPECT_EQ(taker.first.plan().dataset(), "test");
  EXPECT_EQ(*FromProto(taker.first.statistics(), TestLayout()), statistics);
  EXPECT_EQ(taker.payloads[0], FloatBytes({1, 2}));
  EXPECT_EQ(taker.payloads[1], FloatBytes({3}));
  EXPECT_EQ(taker.payloads[2], FloatBytes({4, 5}));
}

TEST(ClientRegisterTest, RefusalIsToldInTheServersWords) {
  FakeServer server;
  server.on_register = [](FakeServer::RegisterIo& io) {
    v1::RegisterRequest request;
    io.Read(&request);
    return grpc::Status(grpc::FAILED_PRECONDITION,
                        "a: got shape [2], want [3]");
  };
  const auto client = JoinedClient(server.Options());
  EXPECT_THAT(TryRegister(*client),
              IsError(kFailedPrecondition, "got shape [2]"));
}

// The server answers once all workers have registered. Until then it reports on
// the session which worker it waits for.
TEST(ClientRegisterTest, WhatIsWaitedForIsToldBeforeTheAnswer) {
  FakeServer server;
  std::promise<std::string> told;
  server.on_register = [&](FakeServer::RegisterIo& io) {
    server.Tell({.kind = AssignmentKind::kWait,
                 .reason = "waiting for worker 1",
                 .wait = absl::InfiniteDuration()});
    // The answer is held back until the client has processed the notice.
    EXPECT_EQ(told.get_future().get(), "waiting for worker 1");
    return RegisterWithoutValues(io);
  };
  const auto client = JoinedClient(server.Options());
  client->SetObserver(
      [&](const std::string& sentence) { told.set_value(sentence); });
  RegisterTestModel(*client);
}

TEST(ClientRegisterTest, ValuesThatDoNotFitTheLayoutAreRefused) {
  FakeServer server;
  const auto client = JoinedClient(server.Options());
  const std::vector<float> two = {1, 2};
  const std::vector<absl::Span<const float>> too_few = {two};
  EXPECT_TRUE(absl::IsInvalidArgument(
      client->Register(TestLayout(), {}, too_few, {}).status()));
  const std::vector<absl::Span<const float>> wrong_size = {two, two, two};
  EXPECT_THAT(client->Register(TestLayout(), {}, wrong_size, {}),
              IsError(kInvalidArgument, "frozen: got 2 elements"));
}

class ClientPullTest : public testing::Test {
 protected:
  FakeServer server_;
};

TEST_F(ClientPullTest, VersionComesAsOneWhole) {
  v1::PullRequest seen;
  server_.on_pull = [&](const v1::PullRequest& request,
                        FakeServer::PullIo& io) {
    seen = request;
    io.Write(HeaderReply(9));
    io.Write(PartitionReply(2, {4, 5}));
    io.Write(PartitionReply(0, {1, 2}));
    io.Write(PartitionReply(1, {3}));
    return grpc::Status::OK;
  };
  const auto client = JoinedClient(server_.Options());
  const auto pulled = OkValue(client->Pull({.version = Version(9),
                                            .weights = true,
                                            .statistics = true,
                                            .statistics_kind = "chief"}));
  EXPECT_EQ(seen.run_id(), "run-1");
  EXPECT_EQ(seen.version(), 9);
  EXPECT_TRUE(seen.weights());
  EXPECT_TRUE(seen.statistics());
  EXPECT_EQ(seen.statistics_kind(), "chief");
  EXPECT_EQ(pulled.version, Version(9));
  EXPECT_EQ(pulled.layout.parameters, TestLayout().parameters);
  EXPECT_EQ(pulled.partitions, TestPartitions());
  EXPECT_EQ(pulled.statistics, InitialStatistics(TestLayout()));
  ASSERT_EQ(pulled.weights.size(), 3u);
  EXPECT_EQ(pulled.weights[0].ToString(), FloatBytes({1, 2}));
  EXPECT_EQ(pulled.weights[1].ToString(), FloatBytes({3}));
  EXPECT_EQ(pulled.weights[2].ToString(), FloatBytes({4, 5}));
}

TEST_F(ClientPullTest, LargePartitionComesBackIntact) {
  constexpr int64_t kElements = 5'000'001;
  std::vector<float> values(kElements);
  for (int64_t i = 0; i < kElements; ++i) {
    values[static_cast<size_t>(i)] = static_cast<float>(i);
  }
  server_.on_pull = [&](const v1::PullRequest&, FakeServer::PullIo& io) {
    v1::PullReply header;
    ModelLayout layout;
    layout.parameters = {{.name = "w", .shape = {kElements}}};
    ToProto(layout, header.mutable_header()->mutable_layout());
    ToProto(MakePartitions(layout, int64_t{1} << 30),
            header.mutable_header()->mutable_partitions());
    io.Write(header);
    io.Write(PartitionReply(0, values));
    return grpc::Status::OK;
  };
  const auto client = JoinedClient(server_.Options());
  const auto pulled = OkValue(client->Pull({.weights = true}));
  EXPECT_TRUE(pulled.weights[0].ToString() == FloatBytes(values));
}

TEST_F(ClientPullTest, VersionThatIsGoneIsOutOfRangeAndNothingBreaks) {
  server_.on_pull = [](const v1::PullRequest&, FakeServer::PullIo&) {
    return grpc::Status(grpc::OUT_OF_RANGE, "version 3 is gone");
  };
  const auto client = JoinedClient(server_.Options());
  EXPECT_THAT(client->Pull({.version = Version(3), .weights = true}),
              IsError(kOutOfRange, "version 3 is gone"));
  server_.Tell(TrainAssignment(1, 0, 10));
  EXPECT_TRUE(client->NextAssignment().ok());
  EXPECT_EQ(server_.joins().size(), 1u);
}

TEST_F(ClientPullTest, WhatDoesNotFitTogetherIsRefused) {
  const std::vector<std::vector<v1::PullReply>> cases = {
      // A partition twice.
      {HeaderReply(9), PartitionReply(0, {1, 2}), PartitionReply(0, {1, 2})},
      // A partition that does not exist.
      {HeaderReply(9), PartitionReply(3, {1, 2})},
      // A wrong length.
      {HeaderReply(9), PartitionReply(0, {1})},
      // Another version.
      {HeaderReply(8)},
      // No header.
      {PartitionReply(0, {1, 2})}};
  for (const std::vector<v1::PullReply>& replies : cases) {
    FakeServer server;
    server.on_pull = [&](const v1::PullRequest&, FakeServer::PullIo& io) {
      for (const v1::PullReply& reply : replies) io.Write(reply);
      return grpc::Status::OK;
    };
    const auto client = JoinedClient(server.Options());
    EXPECT_TRUE(absl::IsInvalidArgument(
        client->Pull({.version = Version(9), .weights = true}).status()));
  }
}

TEST_F(ClientPullTest, IncompletePullIsUnavailable) {
  server_.on_pull = [](const v1::PullRequest&, FakeServer::PullIo& io) {
    io.Write(HeaderReply(9));
    io.Write(PartitionReply(0, {1, 2}));
    return grpc::Status::OK;
  };
  const auto client = JoinedClient(server_.Options());
  EXPECT_THAT(client->Pull({.version = Version(9), .weights = true}),
              IsError(kUnavailable, "1 of 3"));
}

// Damages the second partition's payload, or the header, so that its checksum
// does not match, in the first two pulls.
void DamagePulls(FakeServer& server, bool header, int& pulls) {
  server.on_pull = [&pulls, header](const v1::PullRequest&,
                                    FakeServer::PullIo& io) {
    const bool bad = pulls++ < 2;
    v1::PullReply first = HeaderReply(9);
    AddMessageChecksum(&first);
    if (bad && header) {
      first.mutable_header()->mutable_statistics(0)->set_mean(0, 5);
    }
    io.Write(first);
    io.Write(PartitionReply(0, {1, 2}));
    v1::PullReply reply = PartitionReply(1, {3});
    const std::string bytes = FloatBytes({3});
    reply.set_xxh3(Xxh3(absl::MakeConstSpan(
        reinterpret_cast<const std::byte*>(bytes.data()), bytes.size())));
    if (bad && !header) reply.set_payload(FloatBytes({4}));
    io.Write(reply);
    io.Write(PartitionReply(2, {4, 5}));
    return grpc::Status::OK;
  };
}

TEST_F(ClientPullTest, ADamagedPullIsReadAgainAndTold) {
  for (const bool header : {false, true}) {
    FakeServer server;
    int pulls = 0;
    DamagePulls(server, header, pulls);
    const auto client = JoinedClient(server.Options());
    std::vector<std::string> told;
    client->SetObserver([&told](const std::string& s) { told.push_back(s); });
    const auto pulled = OkValue(client->Pull(
        {.version = Version(9), .weights = true, .statistics = true}));
    EXPECT_EQ(pulled.weights[1].ToString(), FloatBytes({3}));
    EXPECT_EQ(pulled.statistics, InitialStatistics(TestLayout()));
    EXPECT_EQ(pulls, 3);
    ASSERT_EQ(told.size(), 2u);
    EXPECT_THAT(told[0], HasSubstr("reading the weights again: "));
    EXPECT_THAT(told[0], HasSubstr("got checksum "));
    // A damaged pull does not end the session.
    EXPECT_EQ(server.joins().size(), 1u);
  }
}

TEST_F(ClientPullTest, StopReleasesThePull) {
  Client* waiting = nullptr;
  server_.on_pull = [&](const v1::PullRequest&, FakeServer::PullIo& io) {
    io.Write(HeaderReply(9));
    waiting->RequestStop();
    return grpc::Status::OK;
  };
  const auto client = JoinedClient(server_.Options());
  waiting = client.get();
  EXPECT_TRUE(absl::IsCancelled(
      client->Pull({.version = Version(9), .weights = true}).status()));
}

}  // namespace
}  // namespace cohort
