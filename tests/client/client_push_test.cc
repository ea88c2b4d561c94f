// Steps: rendezvous, gradients, verdicts, evaluation.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/wire/convert.h"
#include "common/wire/encoding.h"
#include "tests/client/fake_server.h"
#include "worker/client/client.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const ReducePass kPass{.step = Version(10)};

// A client that has registered the test model and taken step 10.
std::unique_ptr<Client> TrainingClient(FakeServer& server,
                                       const ClientOptions& options) {
  server.on_register = RegisterWithoutValues;
  server.on_open = [&server](int) { server.Tell(TrainAssignment(1, 0, 10)); };
  auto client = JoinedClient(options);
  RegisterTestModel(*client);
  const auto assignment = client->NextAssignment();
  EXPECT_TRUE(assignment.ok()) << assignment.status();
  return client;
}

std::unique_ptr<Client> TrainingClient(FakeServer& server) {
  return TrainingClient(server, server.Options());
}

ByteRope Floats(const std::vector<float>& values) {
  return ByteRope::Copy(
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()),
                          values.size() * sizeof(float)));
}

v1::ExchangeReply WeightsReply(int32_t partition, int64_t version,
                               const std::vector<float>& values) {
  v1::ExchangeReply reply;
  ToProto(PushKey{.sequence = Sequence(1)}, reply.mutable_key());
  reply.mutable_weights()->set_partition(partition);
  reply.mutable_weights()->set_version(version);
  DescribePayload(Floats(values), reply.mutable_weights());
  reply.set_payload(FloatBytes(values));
  return reply;
}

v1::ExchangeReply VerdictReply(Verdict verdict, int32_t weights_partitions) {
  v1::ExchangeReply reply;
  ToProto(PushKey{.sequence = Sequence(1)}, reply.mutable_key());
  PushVerdict decided{.verdict = verdict, .version = Version(11)};
  decided.next = TrainAssignment(2, 0, 11);
  ToProto(decided, weights_partitions, reply.mutable_verdict());
  return reply;
}

// Reads a whole push; false if the stream ended first.
bool ReadPush(FakeServer::ExchangeIo& io,
              std::vector<v1::ExchangeRequest>* push) {
  v1::ExchangeRequest request;
  while (io.Read(&request)) {
    push->push_back(request);
    if (request.has_closing()) return true;
  }
  return false;
}

// Waits for the client to end the stream.
void Drain(FakeServer::ExchangeIo& io) {
  v1::ExchangeRequest request;
  while (io.Read(&request)) {
  }
}

absl::StatusOr<PushResult> PushOnce(Client& client) {
  if (absl::Status s = client.OpenPush({.samples = 8, .loss_weight = 16});
      !s.ok()) {
    return s;
  }
  if (absl::Status s = client.SendGradient(2, Floats({5, 6}), {}); !s.ok()) {
    return s;
  }
  if (absl::Status s = client.SendGradient(0, Floats({0, 0}), {0}); !s.ok()) {
    return s;
  }
  return client.ClosePush({.loss_sum = 3, .correct = 4, .labels = 8});
}

TEST(ClientPushTest, PushCarriesGradientsAndCounts) {
  FakeServer server;
  std::vector<v1::ExchangeRequest> push;
  server.on_exchange = [&](FakeServer::ExchangeIo& io) {
    if (ReadPush(io, &push)) io.Write(VerdictReply(Verdict::kSkipped, 0));
    Drain(io);
    return grpc::Status::OK;
  };
  const auto client = TrainingClient(server);
  const auto result = PushOnce(*client);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(push.size(), 4u);
  for (const v1::ExchangeRequest& request : push) {
    EXPECT_EQ(request.sender().run_id(), "run-1");
    EXPECT_EQ(request.sender().rank(), 2);
    EXPECT_EQ(request.sender().incarnation(), 1);
    EXPECT_EQ(request.key().sequence(), 1);
    EXPECT_EQ(request.key().attempt(), 0);
  }
  EXPECT_EQ(push[0].opening().samples(), 8);
  EXPECT_EQ(push[0].opening().loss_weight(), 16);
  EXPECT_EQ(push[1].gradient().partition(), 2);
  EXPECT_EQ(push[1].payload(), FloatBytes({5, 6}));
  EXPECT_TRUE(CheckPayload(push[1].gradient(), Floats({5, 6}), 2).ok());
  EXPECT_TRUE(push[1].gradient().has_xxh3());
  EXPECT_TRUE(push[1].gradient().absent_slices().empty());
  EXPECT_EQ(push[2].gradient().partition(), 0);
  EXPECT_THAT(push[2].gradient().absent_slices(), ElementsAre(0));
  EXPECT_EQ(push[3].closing().loss_sum(), 3);
  EXPECT_EQ(push[3].closing().correct(), 4);
  EXPECT_EQ(push[3].closing().labels(), 8);
}

TEST(ClientPushTest, GradientsAreSentAsTheAssignmentSays) {
  FakeServer server;
  std::vector<v1::ExchangeRequest> push;
  server.on_exchange = [&](FakeServer::ExchangeIo& io) {
    if (ReadPush(io, &push)) io.Write(VerdictReply(Verdict::kSkipped, 0));
    Drain(io);
    return grpc::Status::OK;
  };
  server.on_register = RegisterWithoutValues;
  server.on_open = [&server](int) {
    Assignment assignment = TrainAssignment(1, 0, 10);
    assignment.gradients = ElementType::kBFloat16;
    server.Tell(assignment);
  };
  const auto client = JoinedClient(server.Options());
  RegisterTestModel(*client);
  ASSERT_TRUE(client->NextAssignment().ok());
  ASSERT_TRUE(client->OpenPush({.samples = 8, .loss_weight = 16}).ok());
  // Its length is checked as that of float32.
  EXPECT_EQ(client->SendGradient(2, Floats({5}), {}).code(),
            absl::StatusCode::kInvalidArgument);
  // 1 is 0x3f80; 1 + 2^-8 is a tie, and -2.5 is 0xc020.
  ASSERT_TRUE(client->SendGradient(2, Floats({1 + 0x1p-8F, -2.5F}), {}).ok());
  ASSERT_TRUE(client->SendGradient(0, Floats({0, 0}), {0}).ok());
  ASSERT_TRUE(client->ClosePush({.loss_sum = 3}).ok());
  ASSERT_EQ(push.size(), 4u);
  EXPECT_EQ(push[1].gradient().encoding(), v1::ENCODING_BFLOAT16);
  EXPECT_EQ(push[1].payload(), "\x80\x3f\x20\xc0");
  EXPECT_EQ(push[1].gradient().xxh3(),
            ByteRope::CopyText(push[1].payload()).Checksum());
  EXPECT_EQ(push[2].payload().size(), 4u);
  EXPECT_THAT(push[2].gradient().absent_slices(), ElementsAre(0));
}

// A change of `partition` from version 10 to `version`.
v1::ExchangeReply ChangeReply(int32_t partition, int64_t sequence,
                              int64_t version,
                              const std::vector<float>& change) {
  v1::ExchangeReply reply;
  ToProto(PushKey{.sequence = Sequence(sequence)}, reply.mutable_key());
  const ByteRope halves =
      EncodeGradient(Floats(change), ElementType::kBFloat16);
  v1::WeightsPartition& weights = *reply.mutable_weights();
  weights.set_partition(partition);
  weights.set_version(version);
  weights.set_base_version(version - 1);
  DescribePayload(halves, &weights, ElementType::kBFloat16);
  reply.set_payload(halves.ToString());
  return reply;
}

// A client in step 10 of a run in bfloat16.
std::unique_ptr<Client> HalfClient(FakeServer& server) {
  server.on_register = RegisterWithoutValues;
  server.on_open = [&server](int) {
    Assignment assignment = TrainAssignment(1, 0, 10);
    assignment.gradients = ElementType::kBFloat16;
    server.Tell(assignment);
  };
  server.on_pull = [](const v1::PullRequest& request, FakeServer::PullIo& io) {
    v1::PullReply header;
    header.mutable_header()->set_version(request.version());
    ToProto(TestLayout(), header.mutable_header()->mutable_layout());
    ToProto(TestPartitions(), header.mutable_header()->mutable_partitions());
    io.Write(header);
    for (int32_t p : {0, 1, 2}) {
      const std::vector<float> values(p == 1 ? 1 : 2, static_cast<float>(p));
      v1::PullReply reply;
      reply.set_partition(p);
      DescribePayload(Floats(values), &reply);
      reply.set_payload(FloatBytes(values));
      io.Write(reply);
    }
    return grpc::Status::OK;
  };
  auto client = JoinedClient(server.Options());
  RegisterTestModel(*client);
  const auto assignment = client->NextAssignment();
  EXPECT_TRUE(assignment.ok()) << assignment.status();
  return client;
}

absl::StatusOr<PushResult> PushFrom(Client& client, int64_t version) {
  PushOpening opening{.version = Version(version), .samples = 8};
  if (absl::Status s = client.OpenPush(opening); !s.ok()) return s;
  for (int32_t partition : {2, 0}) {
    if (absl::Status s = client.SendGradient(partition, Floats({0, 0}), {});
        !s.ok()) {
      return s;
    }
  }
  return client.ClosePush({});
}

// The first change is added to what was pulled, the second to the result.
TEST(ClientPushTest, ChangesAreAddedToTheWeightsThatAreHeld) {
  FakeServer server;
  std::vector<v1::ExchangeRequest> pushes;
  server.on_exchange = [&](FakeServer::ExchangeIo& io) {
    for (int64_t step : {1, 2}) {
      if (!ReadPush(io, &pushes)) break;
      io.Write(ChangeReply(0, step, 10 + step, {0.5F, -1}));
      io.Write(ChangeReply(2, step, 10 + step, {0x1p-20F, 3}));
      v1::ExchangeReply verdict = VerdictReply(Verdict::kApplied, 2);
      ToProto(PushKey{.sequence = Sequence(step)}, verdict.mutable_key());
      verdict.mutable_verdict()->set_version(10 + step);
      verdict.mutable_verdict()->mutable_next()->set_gradient_encoding(
          v1::ENCODING_BFLOAT16);
      io.Write(verdict);
    }
    Drain(io);
    return grpc::Status::OK;
  };
  const auto client = HalfClient(server);
  ASSERT_TRUE(client->Pull({.version = Version(10), .weights = true}).ok());
  auto result = PushFrom(*client, 10);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->weights[0].ToString(), FloatBytes({0.5F, -1}));
  EXPECT_EQ(result->weights[2].ToString(), FloatBytes({2 + 0x1p-20F, 5}));
  ASSERT_TRUE(client->NextAssignment().ok());
  result = PushFrom(*client, 11);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->weights[0].ToString(), FloatBytes({1, -2}));
  EXPECT_EQ(result->weights[2].ToString(), FloatBytes({2 + 0x1p-19F, 8}));
  EXPECT_TRUE(pushes[0].opening().takes_changes());
  EXPECT_TRUE(pushes[4].opening().takes_changes());
}

// It says that it does not, and what comes nevertheless is left out, so that
// the worker reads the version anew.
TEST(ClientPushTest, AClientWithoutTheWeightsTakesNoChanges) {
  FakeServer server;
  std::vector<v1::ExchangeRequest> push;
  server.on_exchange = [&](FakeServer::ExchangeIo& io) {
    if (ReadPush(io, &push)) {
      io.Write(ChangeReply(0, 1, 11, {1, 1}));
      io.Write(WeightsReply(2, 11, {7, 8}));
      io.Write(VerdictReply(Verdict::kApplied, 2));
    }
    Drain(io);
    return grpc::Status::OK;
  };
  const auto client = HalfClient(server);
  // Another version than the one that the push has read.
  ASSERT_TRUE(client->Pull({.version = Version(9), .weights = true}).ok());
  const auto result = PushFrom(*client, 10);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(push[0].opening().takes_changes());
  EXPECT_EQ(result->weights[0].size_bytes(), 0);
  EXPECT_EQ(result->weights[2].ToString(), FloatBytes({7, 8}));
}

// Tentative weights come early, only the last version of replaced ones counts,
// and the verdict may overtake the rest.
TEST(ClientPushTest, WeightsAndVerdictMayComeInAnyOrder) {
  FakeServer server;
  server.on_exchange = [](FakeServer::ExchangeIo& io) {
    v1::ExchangeRequest request;
    io.Read(&request);
    io.Write(WeightsReply(2, 10, {-1, -1}));
    io.Write(WeightsReply(2, 11, {7, 8}));
    std::vector<v1::ExchangeRequest> push;
    if (ReadPush(io, &push)) {
      io.Write(VerdictReply(Verdict::kApplied, 2));
      io.Write(WeightsReply(0, 11, {5, 6}));
    }
    Drain(io);
    return grpc::Status::OK;
  };
  const auto client = TrainingClient(server);
  const auto result = PushOnce(*client);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->verdict.verdict, Verdict::kApplied);
  EXPECT_EQ(result->verdict.version, Version(11));
  ASSERT_EQ(result->weights.size(), 3u);
  EXPECT_EQ(result->weights[0].ToString(), FloatBytes({5, 6}));
  EXPECT_EQ(result->weights[1].size_bytes(), 0);
  EXPECT_EQ(result->weights[2].ToString(), FloatBytes({7, 8}));
  // The verdict contains the next assignment.
  const auto next = client->NextAssignment();
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->sequence, Sequence(2));
  EXPECT_EQ(next->version, Version(11));
}

TEST(ClientPushTest, APushIsNotDoneWithoutAllItsWeights) {
  FakeServer server;
  server.on_exchange = [](FakeServer::ExchangeIo& io) {
    std::vector<v1::ExchangeRequest> push;
    if (ReadPush(io, &push)) {
      io.Write(VerdictReply(Verdict::kApplied, 2));
      io.Write(WeightsReply(0, 11, {5, 6}));
    }
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "restarting");
  };
  const auto client = TrainingClient(server);
  const absl::Status status = PushOnce(*client).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

TEST(ClientPushTest, TentativeWeightsOfASkippedStepAreNotReturned) {
  FakeServer server;
  server.on_exchange = [](FakeServer::ExchangeIo& io) {
    std::vector<v1::ExchangeRequest> push;
    if (ReadPush(io, &push)) {
      io.Write(WeightsReply(0, 11, {5, 6}));
      io.Write(VerdictReply(Verdict::kSkipped, 0));
    }
    Drain(io);
    return grpc::Status::OK;
  };
  const auto client = TrainingClient(server);
  const auto result = PushOnce(*client);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->verdict.verdict, Verdict::kSkipped);
  for (const ByteRope& rope : result->weights) {
    EXPECT_EQ(rope.size_bytes(), 0);
  }
}

TEST(ClientPushTest, DamagedWeightsVoidThePushAndTheConnection) {
  FakeServer server;
  server.on_exchange = [](FakeServer::ExchangeIo& io) {
    std::vector<v1::ExchangeRequest> push;
    if (ReadPush(io, &push)) {
      v1::ExchangeReply reply = WeightsReply(0, 11, {5, 6});
      reply.set_payload(FloatBytes({5, 7}));
      io.Write(reply);
    }
    Drain(io);
    return grpc::Status::OK;
  };
  const auto client = TrainingClient(server);
  const absl::Status status = PushOnce(*client).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("checksum"));
  const auto again = client->NextAssignment();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->sequence, Sequence(1));
  EXPECT_EQ(server.joins().size(), 2u);
}

TEST(ClientPushTest, RefusedPushIsFinal) {
  FakeServer server;
  server.on_exchange = [](FakeServer::ExchangeIo& io) {
    std::vector<v1::ExchangeRequest> push;
    ReadPush(io, &push);
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "bad length");
  };
  const auto client = TrainingClient(server);
  const absl::Status status = PushOnce(*client).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("bad length"));
  EXPECT_EQ(client->NextAssignment().status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ClientPushTest, StepThatEndsEarlyReleasesThePush) {
  FakeServer server;
  server.on_exchange = [&](FakeServer::ExchangeIo& io) {
    std::vector<v1::ExchangeRequest> push;
    if (ReadPush(io, &push)) server.TellAborted(10, 0);
    Drain(io);
    return grpc::Status::OK;
  };
  const auto client = TrainingClient(server);
  const absl::Status status = PushOnce(*client).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  // The rest of the step is refused at once.
  EXPECT_EQ(client->OpenPush({}).code(), absl::StatusCode::kAborted);
  server.Tell(TrainAssignment(1, 1, 10));
  const auto again = client->NextAssignment();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->attempt, Attempt(1));
  // The connection never broke.
  EXPECT_EQ(server.joins().size(), 1u);
}

TEST(ClientPushTest, AnEarlierClosingIsRepeatedUnderItsKey) {
  FakeServer server;
  v1::ExchangeRequest repeated;
  server.on_exchange = [&](FakeServer::ExchangeIo& io) {
    if (io.Read(&repeated)) {
      v1::ExchangeReply reply;
      *reply.mutable_key() = repeated.key();
      PushVerdict decided{.verdict = Verdict::kApplied,
                          .duplicate = true,
                          .version = Version(10)};
      decided.next = TrainAssignment(2, 0, 11);
      ToProto(decided, 0, reply.mutable_verdict());
      io.Write(reply);
    }
    std::vector<v1::ExchangeRequest> push;
    if (ReadPush(io, &push)) io.Write(VerdictReply(Verdict::kSkipped, 0));
    Drain(io);
    return grpc::Status::OK;
  };
  const auto client = TrainingClient(server);
  const auto verdict = client->RepeatClosing(
      {.sequence = Sequence(0), .attempt = Attempt(3)}, {.loss_sum = 7});
  ASSERT_TRUE(verdict.ok()) << verdict.status();
  EXPECT_TRUE(verdict->duplicate);
  EXPECT_EQ(verdict->version, Version(10));
  EXPECT_EQ(repeated.key().attempt(), 3);
  EXPECT_EQ(repeated.closing().loss_sum(), 7);
  // The push of the present assignment follows on the same stream.
  const auto result = PushOnce(*client);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->verdict.verdict, Verdict::kSkipped);
}

TEST(ClientPushTest, GradientThatDoesNotFitIsRefused) {
  FakeServer server;
  server.on_exchange = [](FakeServer::ExchangeIo& io) {
    Drain(io);
    return grpc::Status::OK;
  };
  const auto client = TrainingClient(server);
  EXPECT_EQ(client->SendGradient(0, Floats({1, 2}), {}).code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(client->OpenPush({.samples = 1, .loss_weight = 1}).ok());
  EXPECT_EQ(client->SendGradient(0, Floats({1}), {}).code(),
            absl::StatusCode::kInvalidArgument);
  // Partition 1 is frozen, 3 does not exist.
  for (int32_t partition : {-1, 1, 3}) {
    EXPECT_EQ(client->SendGradient(partition, Floats({1, 2}), {}).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

const Moments kMoments{.count = 1, .first = {1}, .second = {0}};

v1::ReduceReply ReduceReplyTo(const v1::ReduceRequest& request,
                              const Moments& all) {
  v1::ReduceReply reply;
  *reply.mutable_key() = request.key();
  reply.set_count(all.count);
  EncodeMoments(all, reply.mutable_values());
  return reply;
}

TEST(ClientReduceTest, MomentsGoOutAndComeBackCombined) {
  FakeServer server;
  std::vector<v1::ReduceRequest> seen;
  server.on_reduce = [&](FakeServer::ReduceIo& io) {
    v1::ReduceRequest request;
    while (io.Read(&request)) {
      seen.push_back(request);
      io.Write(ReduceReplyTo(request, {.count = 2 * request.count(),
                                       .first = {10, 20},
                                       .second = {30, 40}}));
    }
    return grpc::Status::OK;
  };
  const auto client = TrainingClient(server);
  for (int call = 0; call < 3; ++call) {
    const Contribution local{
        .place = {.part = 1, .layer = -1, .site = "a.py:f", .call = call},
        .moments = {.count = 5, .first = {1, 2}, .second = {3, 4}},
        .extents = {7, 8}};
    const auto global = client->Reduce(kPass, {local});
    ASSERT_TRUE(global.ok()) << global.status();
    ASSERT_EQ(global->size(), 1u);
    EXPECT_EQ((*global)[0].count, 10);
    EXPECT_THAT((*global)[0].first, ElementsAre(10, 20));
    EXPECT_THAT((*global)[0].second, ElementsAre(30, 40));
  }
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[2].sender().rank(), 2);
  EXPECT_EQ(seen[2].key().call(), 2);
  EXPECT_EQ(seen[2].key().part(), 1);
  EXPECT_EQ(seen[2].key().layer(), -1);
  EXPECT_EQ(seen[2].key().site(), "a.py:f");
  EXPECT_THAT(seen[2].extents(), ElementsAre(7, 8));
  EXPECT_EQ(seen[2].count(), 5);
  const auto sent = DecodeMoments(ReducePhase::kForward, 5, seen[2].values());
  EXPECT_THAT(sent->first, ElementsAre(1, 2));
  EXPECT_THAT(sent->second, ElementsAre(3, 4));
}

const std::vector<Contribution> kTwo = {
    {.moments = {.count = 5, .first = {1, 2}, .second = {3, 4}}},
    {.place = {.layer = 1}, .moments = kMoments}};
const Moments kAllOfFirst{.count = 9, .first = {10, 20}, .second = {30, 40}};
const Moments kAllOfSecond{.count = 7, .first = {3}, .second = {4}};

// Builds the further part of a request as if it had been sent alone.
v1::ReduceRequest FurtherOf(const v1::ReduceRequest& request) {
  v1::ReduceRequest alone;
  EXPECT_EQ(request.further_size(), 1);
  *alone.mutable_key() = request.further(0).key();
  alone.set_count(request.further(0).count());
  alone.set_values(request.further(0).values());
  return alone;
}

void ExpectBoth(const absl::StatusOr<std::vector<Moments>>& all) {
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(all->size(), 2u);
  EXPECT_EQ((*all)[0].count, 9);
  EXPECT_THAT((*all)[0].first, ElementsAre(10, 20));
  EXPECT_EQ((*all)[1].count, 7);
  EXPECT_THAT((*all)[1].first, ElementsAre(3));
}

TEST(ClientReduceTest, SeveralGoInOneRequestAndComeBackInOneReply) {
  FakeServer server;
  server.on_reduce = [&](FakeServer::ReduceIo& io) {
    v1::ReduceRequest request;
    while (io.Read(&request)) {
      EXPECT_TRUE(request.takes_further_results());
      const v1::ReduceRequest further = FurtherOf(request);
      EXPECT_EQ(further.key().layer(), 1);
      EXPECT_EQ(further.count(), 1);
      v1::ReduceReply reply = ReduceReplyTo(request, kAllOfFirst);
      const v1::ReduceReply second = ReduceReplyTo(further, kAllOfSecond);
      v1::ReducePart& part = *reply.add_further();
      *part.mutable_key() = second.key();
      part.set_count(second.count());
      part.set_values(second.values());
      io.Write(reply);
    }
    return grpc::Status::OK;
  };
  const auto client = TrainingClient(server);
  ExpectBoth(client->Reduce(kPass, kTwo));
}

TEST(ClientReduceTest, SeveralMayBeAnsweredOneByOneInAnyOrder) {
  FakeServer server;
  server.on_reduce = [&](FakeServer::ReduceIo& io) {
    v1::ReduceRequest request;
    while (io.Read(&request)) {
      io.Write(ReduceReplyTo(FurtherOf(request), kAllOfSecond));
      io.Write(ReduceReplyTo(request, kAllOfFirst));
    }
    return grpc::Status::OK;
  };
  const auto client = TrainingClient(server);
  ExpectBoth(client->Reduce(kPass, kTwo));
}

TEST(ClientReduceTest, AResultThatComesTwiceCountsOnce) {
  FakeServer server;
  server.on_reduce = [&](FakeServer::ReduceIo& io) {
    v1::ReduceRequest request;
    while (io.Read(&request)) {
      io.Write(ReduceReplyTo(request, kAllOfFirst));
      io.Write(ReduceReplyTo(request, kAllOfFirst));
      io.Write(ReduceReplyTo(FurtherOf(request), kAllOfSecond));
    }
    return grpc::Status::OK;
  };
  const auto client = TrainingClient(server);
  ExpectBoth(client->Reduce(kPass, kTwo));
}

TEST(ClientReduceTest, OneAbortedOfSeveralVoidsTheStep) {
  FakeServer server;
  server.on_reduce = [&](FakeServer::ReduceIo& io) {
    v1::ReduceRequest request;
    while (io.Read(&request)) {
      v1::ReduceReply aborted;
      *aborted.mutable_key() = FurtherOf(request).key();
      aborted.set_aborted("rank 3 was lost");
      io.Write(aborted);
    }
    return grpc::Status::OK;
  };
  const auto client = TrainingClient(server);
  const absl::Status status = client->Reduce(kPass, kTwo).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 3 was lost"));
}

TEST(ClientReduceTest, AnswerOfAnotherWidthIsRefused) {
  FakeServer server;
  server.on_reduce = [&](FakeServer::ReduceIo& io) {
    v1::ReduceRequest request;
    while (io.Read(&request)) {
      io.Write(ReduceReplyTo(request,
                             {.count = 1, .first = {1, 2}, .second = {3, 4}}));
    }
    return grpc::Status::OK;
  };
  const auto client = TrainingClient(server);
  const absl::Status status =
      client->Reduce(kPass, {{.moments = kMoments}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("got moments of 2 channels, want 1"));
}

TEST(ClientReduceTest, AbortedAnswerVoidsTheStepOnly) {
  FakeServer server;
  server.on_reduce = [](FakeServer::ReduceIo& io) {
    v1::ReduceRequest request;
    while (io.Read(&request)) {
      v1::ReduceReply reply;
      *reply.mutable_key() = request.key();
      reply.set_aborted("rank 3 was lost");
      io.Write(reply);
    }
    return grpc::Status::OK;
  };
  const auto client = TrainingClient(server);
  const absl::Status status =
      client->Reduce(kPass, {{.moments = kMoments}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 3 was lost"));
  server.Tell(TrainAssignment(1, 1, 10));
  EXPECT_EQ(client->NextAssignment()->attempt, Attempt(1));
  EXPECT_EQ(server.joins().size(), 1u);
}

TEST(ClientReduceTest, NoticeReleasesAWaitingRendezvous) {
  FakeServer server;
  server.on_reduce = [&](FakeServer::ReduceIo& io) {
    v1::ReduceRequest request;
    while (io.Read(&request)) server.TellAborted(10, 0);
    return grpc::Status::OK;
  };
  const auto client = TrainingClient(server);
  EXPECT_EQ(client->Reduce(kPass, {{.moments = kMoments}}).status().code(),
            absl::StatusCode::kAborted);
}

TEST(ClientReduceTest, LateAnswerOfAnEndedAttemptIsIgnored) {
  FakeServer server;
  server.on_reduce = [&](FakeServer::ReduceIo& io) {
    v1::ReduceRequest first;
    v1::ReduceRequest second;
    io.Read(&first);
    server.TellAborted(10, 0);
    io.Read(&second);
    for (const v1::ReduceRequest& request : {first, second}) {
      v1::ReduceReply reply;
      *reply.mutable_key() = request.key();
      reply.set_count(request.key().attempt());
      reply.set_values(request.values());
      io.Write(reply);
    }
    io.Read(&first);
    return grpc::Status::OK;
  };
  const auto client = TrainingClient(server);
  ASSERT_EQ(client->Reduce(kPass, {{.moments = kMoments}}).status().code(),
            absl::StatusCode::kAborted);
  ReducePass again = kPass;
  again.attempt = Attempt(1);
  const auto global = client->Reduce(again, {{.moments = kMoments}});
  ASSERT_TRUE(global.ok()) << global.status();
  EXPECT_EQ(global->front().count, 1);
}

TEST(ClientReduceTest, StopFromAnotherThreadReleasesTheRendezvous) {
  FakeServer server;
  Client* waiting = nullptr;
  server.on_reduce = [&](FakeServer::ReduceIo& io) {
    v1::ReduceRequest request;
    while (io.Read(&request)) waiting->RequestStop();
    return grpc::Status::OK;
  };
  const auto client = TrainingClient(server);
  waiting = client.get();
  EXPECT_EQ(client->Reduce(kPass, {{.moments = kMoments}}).status().code(),
            absl::StatusCode::kCancelled);
}

TEST(ClientReduceTest, LostSessionReleasesTheRendezvous) {
  FakeServer server;
  server.on_reduce = [&](FakeServer::ReduceIo& io) {
    v1::ReduceRequest request;
    while (io.Read(&request)) {
      server.EndSession(absl::UnavailableError("restarting"));
    }
    return grpc::Status::OK;
  };
  const auto client = TrainingClient(server);
  EXPECT_EQ(client->Reduce(kPass, {{.moments = kMoments}}).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_TRUE(client->NextAssignment().ok());
  EXPECT_EQ(server.joins().size(), 2u);
}

TEST(ClientReportTest, EvaluationIsReportedAndTheNextWorkTaken) {
  FakeServer server;
  server.on_open = [&](int) {
    Assignment evaluate = TrainAssignment(3, 0, 10);
    evaluate.kind = AssignmentKind::kEvaluate;
    server.Tell(evaluate);
  };
  v1::ReportRequest seen;
  server.on_report = [&](const v1::ReportRequest& request) {
    seen = request;
    return TrainAssignment(4, 0, 10);
  };
  const auto client = JoinedClient(server.Options());
  EXPECT_EQ(client->ReportEvaluation({}).code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(client->NextAssignment()->kind, AssignmentKind::kEvaluate);
  ASSERT_TRUE(client
                  ->ReportEvaluation({.samples = 5,
                                      .loss_sum = 2.5,
                                      .loss_weight = 5,
                                      .correct = 3,
                                      .labels = 5})
                  .ok());
  EXPECT_EQ(seen.sender().incarnation(), 1);
  EXPECT_EQ(seen.sequence(), 3);
  EXPECT_EQ(seen.samples(), 5);
  EXPECT_EQ(seen.loss_sum(), 2.5);
  EXPECT_EQ(seen.loss_weight(), 5);
  EXPECT_EQ(seen.correct(), 3);
  EXPECT_EQ(seen.labels(), 5);
  EXPECT_EQ(client->NextAssignment()->sequence, Sequence(4));
}

TEST(ClientReportTest, EndsACollection) {
  FakeServer server;
  server.on_open = [&](int) {
    Assignment collect = TrainAssignment(3, 0, 10);
    collect.kind = AssignmentKind::kCollectMoments;
    server.Tell(collect);
  };
  v1::ReportRequest seen;
  server.on_report = [&](const v1::ReportRequest& request) {
    seen = request;
    return TrainAssignment(4, 0, 10);
  };
  const auto client = JoinedClient(server.Options());
  EXPECT_EQ(client->ReportMoments({}).code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(client->NextAssignment()->kind, AssignmentKind::kCollectMoments);
  EXPECT_EQ(client->ReportEvaluation({}).code(),
            absl::StatusCode::kFailedPrecondition);
  const std::vector<CallMoments> calls = {
      {.layer = 1,
       .call = 0,
       .moments = {.count = 4, .first = {2}, .second = {3}}}};
  ASSERT_TRUE(client->ReportMoments(calls).ok());
  EXPECT_EQ(seen.sequence(), 3);
  ASSERT_TRUE(seen.has_collected());
  ASSERT_EQ(seen.collected().calls_size(), 1);
  EXPECT_EQ(seen.collected().calls(0).layer(), 1);
  EXPECT_EQ(seen.collected().calls(0).m2(0), 3);
  EXPECT_EQ(client->NextAssignment()->sequence, Sequence(4));
}

TEST(ClientReportTest, FencedReportLeadsToANewIncarnation) {
  FakeServer server;
  server.on_open = [&](int) {
    Assignment evaluate = TrainAssignment(3, 0, 10);
    evaluate.kind = AssignmentKind::kEvaluate;
    server.Tell(evaluate);
  };
  server.on_report =
      [](const v1::ReportRequest&) -> absl::StatusOr<Assignment> {
    return absl::AbortedError("fenced");
  };
  const auto client = JoinedClient(server.Options());
  ASSERT_TRUE(client->NextAssignment().ok());
  EXPECT_EQ(client->ReportEvaluation({}).code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(client->NextAssignment().ok());
  EXPECT_EQ(server.joins().size(), 2u);
}

TEST(ClientPushTest, SharedMemoryThatMustBeTakenAndCannotIsAnError) {
  FakeServer server;
  ClientOptions options = server.Options();
  options.local = LocalMode::kSharedMemory;
  const auto client = TrainingClient(server, options);
  const absl::Status status = PushOnce(*client).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("--local=shm: the server offers no shared memory"));
}

}  // namespace
}  // namespace cohort
