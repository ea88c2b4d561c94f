// Steps: rendezvous, gradients, verdicts, evaluation.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "common/wire/encoding.h"
#include "tests/client/fake_server.h"
#include "tests/fakes/float_ropes.h"
#include "tests/fakes/statuses.h"
#include "worker/client/client.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;

const ReducePass kPass{.step = Version(10)};

// A client that has registered the test model and taken step 10.
std::unique_ptr<Client> TrainingClient(
    FakeServer& server, const ClientOptions& options,
    ElementType gradients = ElementType::kFloat32) {
  server.on_register = RegisterWithoutValues;
  server.on_open = [&server, gradients](int) {
    Assignment assignment = TrainAssignment(1, 0, 10);
    assignment.gradients = gradients;
    server.Tell(assignment);
  };
  auto client = JoinedClient(options);
  RegisterTestModel(*client);
  const auto assignment = client->NextAssignment();
  EXPECT_TRUE(assignment.ok()) << assignment.status();
  return client;
}

std::unique_ptr<Client> TrainingClient(FakeServer& server) {
  return TrainingClient(server, server.Options());
}

v1::ExchangeReply WeightsReply(int32_t partition, int64_t version,
                               const std::vector<float>& values) {
  v1::ExchangeReply reply;
  ToProto(PushKey{.sequence = Sequence(1)}, reply.mutable_key());
  reply.mutable_weights()->set_partition(partition);
  reply.mutable_weights()->set_version(version);
  DescribePayload(RopeOver(values), reply.mutable_weights());
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

// Answers a push with these replies. The push goes to `push`.
void AnswerPush(FakeServer& server,
                const std::vector<v1::ExchangeReply>& replies,
                std::vector<v1::ExchangeRequest>* push) {
  server.on_exchange = [replies, push](FakeServer::ExchangeIo& io) {
    if (ReadPush(io, push)) {
      for (const v1::ExchangeReply& reply : replies) io.Write(reply);
    }
    return Drain(io);
  };
}

absl::StatusOr<PushResult> PushOnce(Client& client) {
  COHORT_RETURN_IF_ERROR(client.OpenPush({.samples = 8, .loss_weight = 16}));
  COHORT_RETURN_IF_ERROR(client.SendGradient(2, RopeOver({5, 6}), {}));
  COHORT_RETURN_IF_ERROR(client.SendGradient(0, RopeOver({0, 0}), {0}));
  return client.ClosePush({.loss_sum = 3, .correct = 4, .labels = 8});
}

class ClientPushTest : public testing::Test {
 protected:
  FakeServer server_;
  std::vector<v1::ExchangeRequest> push_;
};

TEST_F(ClientPushTest, PushCarriesGradientsAndCounts) {
  AnswerPush(server_, {VerdictReply(Verdict::kSkipped, 0)}, &push_);
  const auto client = TrainingClient(server_);
  const auto result = OkValue(PushOnce(*client));
  ASSERT_EQ(push_.size(), 4u);
  for (const v1::ExchangeRequest& request : push_) {
    EXPECT_EQ(request.sender().run_id(), "run-1");
    EXPECT_EQ(request.sender().rank(), 2);
    EXPECT_EQ(request.sender().incarnation(), 1);
    EXPECT_EQ(request.key().sequence(), 1);
    EXPECT_EQ(request.key().attempt(), 0);
  }
  EXPECT_EQ(push_[0].opening().samples(), 8);
  EXPECT_EQ(push_[0].opening().loss_weight(), 16);
  EXPECT_EQ(push_[1].gradient().partition(), 2);
  EXPECT_EQ(push_[1].payload(), FloatBytes({5, 6}));
  EXPECT_TRUE(CheckPayload(push_[1].gradient(), RopeOver({5, 6}), 2).ok());
  EXPECT_TRUE(push_[1].gradient().has_xxh3());
  EXPECT_TRUE(push_[1].gradient().absent_slices().empty());
  EXPECT_EQ(push_[2].gradient().partition(), 0);
  EXPECT_THAT(push_[2].gradient().absent_slices(), ElementsAre(0));
  EXPECT_EQ(push_[3].closing().loss_sum(), 3);
  EXPECT_EQ(push_[3].closing().correct(), 4);
  EXPECT_EQ(push_[3].closing().labels(), 8);
}

// Each update has a key; the verdict is that of all.
TEST_F(ClientPushTest, AnUpdateIsAnsweredByItsWeights) {
  server_.on_exchange = [this](FakeServer::ExchangeIo& io) {
    v1::ExchangeRequest request;
    while (io.Read(&request)) {
      push_.push_back(request);
      if (request.gradient().partition() != 0 || !request.has_gradient()) {
        if (request.has_closing()) io.Write(VerdictReply(Verdict::kApplied, 2));
        continue;
      }
      const int32_t update = request.key().update();
      for (const int32_t partition : {0, 2}) {
        const float value = static_cast<float>(10 * update + partition);
        v1::ExchangeReply reply = WeightsReply(partition, 11, {value, 1});
        // One of the update before comes late.
        io.Write(reply);
        reply.mutable_key()->set_update(update);
        io.Write(reply);
      }
    }
    return grpc::Status::OK;
  };
  const auto client = TrainingClient(server_);
  const auto send = [&client](bool continues) {
    ExpectOk(client->OpenPush(
        {.samples = 8, .loss_weight = 16, .continues = continues}));
    ExpectOk(client->SendGradient(2, RopeOver({5, 6}), {}));
    ExpectOk(client->SendGradient(0, RopeOver({0, 0}), {0}));
  };
  for (const float update : {0.0F, 1.0F}) {
    send(/*continues=*/true);
    const auto weights = OkValue(client->AwaitUpdate());
    EXPECT_EQ(weights[0].ToString(), FloatBytes({10 * update, 1}));
    EXPECT_EQ(weights[2].ToString(), FloatBytes({10 * update + 2, 1}));
  }
  send(/*continues=*/false);
  const auto result = OkValue(client->ClosePush({.loss_sum = 3}));
  EXPECT_EQ(result.weights[2].ToString(), FloatBytes({22, 1}));
  EXPECT_EQ(push_[0].key().update(), 0);
  EXPECT_TRUE(push_[0].opening().continues());
  EXPECT_EQ(push_.back().key().update(), 2);
}

TEST_F(ClientPushTest, GradientsAreSentAsTheAssignmentSays) {
  AnswerPush(server_, {VerdictReply(Verdict::kSkipped, 0)}, &push_);
  const auto client =
      TrainingClient(server_, server_.Options(), ElementType::kBFloat16);
  ASSERT_TRUE(client->OpenPush({.samples = 8, .loss_weight = 16}).ok());
  // Its length is checked as that of float32.
  EXPECT_TRUE(
      absl::IsInvalidArgument(client->SendGradient(2, RopeOver({5}), {})));
  // 1 is 0x3f80; 1 + 2^-8 is a tie, and -2.5 is 0xc020.
  ASSERT_TRUE(client->SendGradient(2, RopeOver({1 + 0x1p-8F, -2.5F}), {}).ok());
  ASSERT_TRUE(client->SendGradient(0, RopeOver({0, 0}), {0}).ok());
  ASSERT_TRUE(client->ClosePush({.loss_sum = 3}).ok());
  ASSERT_EQ(push_.size(), 4u);
  EXPECT_EQ(push_[1].gradient().encoding(), v1::ENCODING_BFLOAT16);
  EXPECT_EQ(push_[1].payload(), "\x80\x3f\x20\xc0");
  EXPECT_EQ(push_[1].gradient().xxh3(),
            ByteRope::CopyText(push_[1].payload()).Checksum());
  EXPECT_EQ(push_[2].payload().size(), 4u);
  EXPECT_THAT(push_[2].gradient().absent_slices(), ElementsAre(0));
}

// A change of `partition` from version 10 to `version`.
v1::ExchangeReply ChangeReply(int32_t partition, int64_t sequence,
                              int64_t version,
                              const std::vector<float>& change) {
  v1::ExchangeReply reply;
  ToProto(PushKey{.sequence = Sequence(sequence)}, reply.mutable_key());
  const ByteRope halves =
      EncodeGradient(RopeOver(change), ElementType::kBFloat16);
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
  server.on_pull = [](const v1::PullRequest& request, FakeServer::PullIo& io) {
    io.Write(HeaderReply(request.version()));
    io.Write(PartitionReply(0, {0, 0}));
    io.Write(PartitionReply(1, {1}));
    io.Write(PartitionReply(2, {2, 2}));
    return grpc::Status::OK;
  };
  return TrainingClient(server, server.Options(), ElementType::kBFloat16);
}

absl::StatusOr<PushResult> PushFrom(Client& client, int64_t version) {
  PushOpening opening{.version = Version(version), .samples = 8};
  COHORT_RETURN_IF_ERROR(client.OpenPush(opening));
  for (int32_t partition : {2, 0}) {
    COHORT_RETURN_IF_ERROR(
        client.SendGradient(partition, RopeOver({0, 0}), {}));
  }
  return client.ClosePush({});
}

// The first change is added to what was pulled, the second to the result.
TEST_F(ClientPushTest, ChangesAreAddedToTheWeightsThatAreHeld) {
  std::vector<v1::ExchangeRequest> pushes;
  server_.on_exchange = [&](FakeServer::ExchangeIo& io) {
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
    return Drain(io);
  };
  const auto client = HalfClient(server_);
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
// the worker reads the version again.
TEST_F(ClientPushTest, AClientWithoutTheWeightsTakesNoChanges) {
  AnswerPush(server_,
             {ChangeReply(0, 1, 11, {1, 1}), WeightsReply(2, 11, {7, 8}),
              VerdictReply(Verdict::kApplied, 2)},
             &push_);
  const auto client = HalfClient(server_);
  // Another version than the one that the push has read.
  ASSERT_TRUE(client->Pull({.version = Version(9), .weights = true}).ok());
  const auto result = OkValue(PushFrom(*client, 10));
  EXPECT_FALSE(push_[0].opening().takes_changes());
  EXPECT_EQ(result.weights[0].size_bytes(), 0);
  EXPECT_EQ(result.weights[2].ToString(), FloatBytes({7, 8}));
}

// Tentative weights come early, only the last version of replaced ones counts,
// and the verdict may overtake the rest.
TEST_F(ClientPushTest, WeightsAndVerdictMayComeInAnyOrder) {
  server_.on_exchange = [](FakeServer::ExchangeIo& io) {
    v1::ExchangeRequest request;
    io.Read(&request);
    io.Write(WeightsReply(2, 10, {-1, -1}));
    io.Write(WeightsReply(2, 11, {7, 8}));
    std::vector<v1::ExchangeRequest> push;
    if (ReadPush(io, &push)) {
      io.Write(VerdictReply(Verdict::kApplied, 2));
      io.Write(WeightsReply(0, 11, {5, 6}));
    }
    return Drain(io);
  };
  const auto client = TrainingClient(server_);
  const auto result = OkValue(PushOnce(*client));
  EXPECT_EQ(result.verdict.verdict, Verdict::kApplied);
  EXPECT_EQ(result.verdict.version, Version(11));
  ASSERT_EQ(result.weights.size(), 3u);
  EXPECT_EQ(result.weights[0].ToString(), FloatBytes({5, 6}));
  EXPECT_EQ(result.weights[1].size_bytes(), 0);
  EXPECT_EQ(result.weights[2].ToString(), FloatBytes({7, 8}));
  // The verdict contains the next assignment.
  const auto next = OkValue(client->NextAssignment());
  EXPECT_EQ(next.sequence, Sequence(2));
  EXPECT_EQ(next.version, Version(11));
}

TEST_F(ClientPushTest, APushIsNotDoneWithoutAllItsWeights) {
  const auto returned = std::make_shared<absl::Notification>();
  server_.on_exchange = [returned](FakeServer::ExchangeIo& io) {
    std::vector<v1::ExchangeRequest> push;
    if (ReadPush(io, &push)) {
      io.Write(VerdictReply(Verdict::kApplied, 2));
      io.Write(WeightsReply(0, 11, {5, 6}));
    }
    // A client that takes this for all has the time to.
    returned->WaitForNotificationWithTimeout(absl::Milliseconds(100));
    return grpc::Status(grpc::UNAVAILABLE, "restarting");
  };
  const auto client = TrainingClient(server_);
  const auto result = PushOnce(*client);
  returned->Notify();
  EXPECT_TRUE(absl::IsUnavailable(result.status()));
}

TEST_F(ClientPushTest, TentativeWeightsOfASkippedStepAreNotReturned) {
  AnswerPush(server_,
             {WeightsReply(0, 11, {5, 6}), VerdictReply(Verdict::kSkipped, 0)},
             &push_);
  const auto client = TrainingClient(server_);
  const auto result = OkValue(PushOnce(*client));
  EXPECT_EQ(result.verdict.verdict, Verdict::kSkipped);
  for (const ByteRope& rope : result.weights) {
    EXPECT_EQ(rope.size_bytes(), 0);
  }
}

TEST_F(ClientPushTest, DamagedWeightsVoidThePushAndTheConnection) {
  v1::ExchangeReply damaged = WeightsReply(0, 11, {5, 6});
  damaged.set_payload(FloatBytes({5, 7}));
  AnswerPush(server_, {damaged}, &push_);
  const auto client = TrainingClient(server_);
  EXPECT_THAT(PushOnce(*client), IsError(kUnavailable, "checksum"));
  const auto again = OkValue(client->NextAssignment());
  EXPECT_EQ(again.sequence, Sequence(1));
  EXPECT_EQ(server_.joins().size(), 2u);
}

TEST_F(ClientPushTest, ADamagedVerdictVoidsThePushAndTheConnection) {
  v1::ExchangeReply damaged = VerdictReply(Verdict::kApplied, 11);
  damaged.set_message_xxh3(1);
  AnswerPush(server_, {WeightsReply(0, 11, {5, 6}), damaged}, &push_);
  const auto client = TrainingClient(server_);
  EXPECT_THAT(PushOnce(*client), IsError(kUnavailable, "ExchangeReply"));
}

TEST_F(ClientPushTest, RefusedPushIsFinal) {
  server_.on_exchange = [](FakeServer::ExchangeIo& io) {
    std::vector<v1::ExchangeRequest> push;
    ReadPush(io, &push);
    return grpc::Status(grpc::INVALID_ARGUMENT, "bad length");
  };
  const auto client = TrainingClient(server_);
  const absl::Status status = PushOnce(*client).status();
  EXPECT_THAT(status, IsError(kInvalidArgument, "bad length"));
  EXPECT_TRUE(absl::IsInvalidArgument(client->NextAssignment().status()));
}

TEST_F(ClientPushTest, StepThatEndsEarlyReleasesThePush) {
  server_.on_exchange = [&](FakeServer::ExchangeIo& io) {
    std::vector<v1::ExchangeRequest> push;
    if (ReadPush(io, &push)) server_.TellAborted(10, 0);
    return Drain(io);
  };
  const auto client = TrainingClient(server_);
  const absl::Status status = PushOnce(*client).status();
  EXPECT_EQ(status.code(), kAborted);
  // The rest of the step is refused at once.
  EXPECT_EQ(client->OpenPush({}).code(), kAborted);
  server_.Tell(TrainAssignment(1, 1, 10));
  const auto again = OkValue(client->NextAssignment());
  EXPECT_EQ(again.attempt, Attempt(1));
  // The connection never broke.
  EXPECT_EQ(server_.joins().size(), 1u);
}

TEST_F(ClientPushTest, AnEarlierClosingIsRepeatedUnderItsKey) {
  v1::ExchangeRequest repeated;
  server_.on_exchange = [&](FakeServer::ExchangeIo& io) {
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
    return Drain(io);
  };
  const auto client = TrainingClient(server_);
  const auto verdict = OkValue(client->RepeatClosing(
      {.sequence = Sequence(0), .attempt = Attempt(3)}, {.loss_sum = 7}));
  EXPECT_TRUE(verdict.duplicate);
  EXPECT_EQ(verdict.version, Version(10));
  EXPECT_EQ(repeated.key().attempt(), 3);
  EXPECT_EQ(repeated.closing().loss_sum(), 7);
  // The push of the present assignment follows on the same stream.
  const auto result = OkValue(PushOnce(*client));
  EXPECT_EQ(result.verdict.verdict, Verdict::kSkipped);
}

TEST_F(ClientPushTest, GradientThatDoesNotFitIsRefused) {
  server_.on_exchange = Drain;
  const auto client = TrainingClient(server_);
  EXPECT_TRUE(absl::IsFailedPrecondition(
      client->SendGradient(0, RopeOver({1, 2}), {})));
  ASSERT_TRUE(client->OpenPush({.samples = 1, .loss_weight = 1}).ok());
  EXPECT_TRUE(
      absl::IsInvalidArgument(client->SendGradient(0, RopeOver({1}), {})));
  // Partition 1 is frozen, 3 does not exist.
  for (int32_t partition : {-1, 1, 3}) {
    EXPECT_TRUE(absl::IsInvalidArgument(
        client->SendGradient(partition, RopeOver({1, 2}), {})));
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

// What the server does with each request.
void OnReduce(
    FakeServer& server,
    std::function<void(const v1::ReduceRequest&, FakeServer::ReduceIo&)>
        answer) {
  server.on_reduce = [answer = std::move(answer)](FakeServer::ReduceIo& io) {
    v1::ReduceRequest request;
    while (io.Read(&request)) answer(request, io);
    return grpc::Status::OK;
  };
}

class ClientReduceTest : public testing::Test {
 protected:
  FakeServer server_;
};

TEST_F(ClientReduceTest, MomentsGoOutAndComeBackCombined) {
  std::vector<v1::ReduceRequest> seen;
  OnReduce(server_, [&](const v1::ReduceRequest& request,
                        FakeServer::ReduceIo& io) {
    seen.push_back(request);
    io.Write(ReduceReplyTo(
        request,
        {.count = 2 * request.count(), .first = {10, 20}, .second = {30, 40}}));
  });
  const auto client = TrainingClient(server_);
  for (int call = 0; call < 3; ++call) {
    const Contribution local{
        .place = {.part = 1, .layer = -1, .site = "a.py:f", .call = call},
        .moments = {.count = 5, .first = {1, 2}, .second = {3, 4}},
        .extents = {7, 8}};
    const auto global = OkValue(client->Reduce(kPass, {local}));
    ASSERT_EQ(global.size(), 1u);
    EXPECT_EQ(global[0].count, 10);
    EXPECT_THAT(global[0].first, ElementsAre(10, 20));
    EXPECT_THAT(global[0].second, ElementsAre(30, 40));
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

TEST_F(ClientReduceTest, SeveralGoInOneRequestAndComeBackInOneReply) {
  OnReduce(
      server_, [&](const v1::ReduceRequest& request, FakeServer::ReduceIo& io) {
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
      });
  const auto client = TrainingClient(server_);
  ExpectBoth(client->Reduce(kPass, kTwo));
}

TEST_F(ClientReduceTest, SeveralMayBeAnsweredOneByOneInAnyOrder) {
  OnReduce(server_,
           [&](const v1::ReduceRequest& request, FakeServer::ReduceIo& io) {
             io.Write(ReduceReplyTo(FurtherOf(request), kAllOfSecond));
             io.Write(ReduceReplyTo(request, kAllOfFirst));
           });
  const auto client = TrainingClient(server_);
  ExpectBoth(client->Reduce(kPass, kTwo));
}

TEST_F(ClientReduceTest, AResultThatComesTwiceCountsOnce) {
  OnReduce(server_,
           [&](const v1::ReduceRequest& request, FakeServer::ReduceIo& io) {
             io.Write(ReduceReplyTo(request, kAllOfFirst));
             io.Write(ReduceReplyTo(request, kAllOfFirst));
             io.Write(ReduceReplyTo(FurtherOf(request), kAllOfSecond));
           });
  const auto client = TrainingClient(server_);
  ExpectBoth(client->Reduce(kPass, kTwo));
}

TEST_F(ClientReduceTest, OneAbortedOfSeveralVoidsTheStep) {
  OnReduce(server_,
           [&](const v1::ReduceRequest& request, FakeServer::ReduceIo& io) {
             v1::ReduceReply aborted;
             *aborted.mutable_key() = FurtherOf(request).key();
             aborted.set_aborted("rank 3 was lost");
             io.Write(aborted);
           });
  const auto client = TrainingClient(server_);
  EXPECT_THAT(client->Reduce(kPass, kTwo),
              IsError(kAborted, "rank 3 was lost"));
}

TEST_F(ClientReduceTest, ADamagedAnswerVoidsTheConnection) {
  OnReduce(server_,
           [&](const v1::ReduceRequest& request, FakeServer::ReduceIo& io) {
             v1::ReduceReply damaged = ReduceReplyTo(request, kMoments);
             damaged.set_message_xxh3(1);
             io.Write(damaged);
           });
  const auto client = TrainingClient(server_);
  EXPECT_THAT(client->Reduce(kPass, {{.moments = kMoments}}),
              IsError(kUnavailable, "ReduceReply"));
}

TEST_F(ClientReduceTest, AnswerOfAnotherWidthIsRefused) {
  OnReduce(server_,
           [&](const v1::ReduceRequest& request, FakeServer::ReduceIo& io) {
             io.Write(ReduceReplyTo(
                 request, {.count = 1, .first = {1, 2}, .second = {3, 4}}));
           });
  const auto client = TrainingClient(server_);
  EXPECT_THAT(client->Reduce(kPass, {{.moments = kMoments}}),
              IsError(kInternal, "got moments of 2 channels"));
}

TEST_F(ClientReduceTest, AbortedAnswerVoidsTheStepOnly) {
  OnReduce(server_,
           [](const v1::ReduceRequest& request, FakeServer::ReduceIo& io) {
             v1::ReduceReply reply;
             *reply.mutable_key() = request.key();
             reply.set_aborted("rank 3 was lost");
             io.Write(reply);
           });
  const auto client = TrainingClient(server_);
  EXPECT_THAT(client->Reduce(kPass, {{.moments = kMoments}}),
              IsError(kAborted, "rank 3 was lost"));
  server_.Tell(TrainAssignment(1, 1, 10));
  EXPECT_EQ(client->NextAssignment()->attempt, Attempt(1));
  EXPECT_EQ(server_.joins().size(), 1u);
}

TEST_F(ClientReduceTest, LateAnswerOfAnEndedAttemptIsIgnored) {
  server_.on_reduce = [&](FakeServer::ReduceIo& io) {
    v1::ReduceRequest first;
    v1::ReduceRequest second;
    io.Read(&first);
    server_.TellAborted(10, 0);
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
  const auto client = TrainingClient(server_);
  EXPECT_TRUE(
      absl::IsAborted(client->Reduce(kPass, {{.moments = kMoments}}).status()));
  ReducePass again = kPass;
  again.attempt = Attempt(1);
  const auto global = OkValue(client->Reduce(again, {{.moments = kMoments}}));
  EXPECT_EQ(global.front().count, 1);
}

TEST_F(ClientReduceTest, StopFromAnotherThreadReleasesTheRendezvous) {
  Client* waiting = nullptr;
  OnReduce(server_, [&](const auto&, auto&) { waiting->RequestStop(); });
  const auto client = TrainingClient(server_);
  waiting = client.get();
  EXPECT_TRUE(absl::IsCancelled(
      client->Reduce(kPass, {{.moments = kMoments}}).status()));
}

TEST_F(ClientReduceTest, LostSessionReleasesTheRendezvous) {
  OnReduce(server_, [&](const auto&, auto&) {
    server_.EndSession(absl::UnavailableError("restarting"));
  });
  const auto client = TrainingClient(server_);
  EXPECT_TRUE(absl::IsUnavailable(
      client->Reduce(kPass, {{.moments = kMoments}}).status()));
  EXPECT_TRUE(client->NextAssignment().ok());
  EXPECT_EQ(server_.joins().size(), 2u);
}

// Gives assignment 3 of this kind, and 4 after its report, which goes to
// `seen`.
void TellWork(FakeServer& server, AssignmentKind kind,
              v1::ReportRequest* seen) {
  server.on_open = [&server, kind](int) {
    Assignment work = TrainAssignment(3, 0, 10);
    work.kind = kind;
    server.Tell(work);
  };
  server.on_report = [seen](const v1::ReportRequest& request) {
    *seen = request;
    return TrainAssignment(4, 0, 10);
  };
}

TEST(ClientReportTest, EvaluationIsReportedAndTheNextWorkTaken) {
  FakeServer server;
  v1::ReportRequest seen;
  TellWork(server, AssignmentKind::kEvaluate, &seen);
  const auto client = JoinedClient(server.Options());
  EXPECT_TRUE(absl::IsFailedPrecondition(client->ReportEvaluation({})));
  ASSERT_EQ(client->NextAssignment()->kind, AssignmentKind::kEvaluate);
  ExpectOk(client->ReportEvaluation({.samples = 5,
                                     .loss_sum = 2.5,
                                     .loss_weight = 5,
                                     .correct = 3,
                                     .labels = 5}));
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
  v1::ReportRequest seen;
  TellWork(server, AssignmentKind::kCollectMoments, &seen);
  const auto client = JoinedClient(server.Options());
  EXPECT_TRUE(absl::IsFailedPrecondition(client->ReportMoments({})));
  ASSERT_EQ(client->NextAssignment()->kind, AssignmentKind::kCollectMoments);
  EXPECT_TRUE(absl::IsFailedPrecondition(client->ReportEvaluation({})));
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
  v1::ReportRequest seen;
  TellWork(server, AssignmentKind::kEvaluate, &seen);
  server.on_report = [](const auto&) { return absl::AbortedError("fenced"); };
  const auto client = JoinedClient(server.Options());
  ASSERT_TRUE(client->NextAssignment().ok());
  EXPECT_EQ(client->ReportEvaluation({}).code(), kAborted);
  EXPECT_TRUE(client->NextAssignment().ok());
  EXPECT_EQ(server.joins().size(), 2u);
}

TEST_F(ClientPushTest, SharedMemoryThatMustBeTakenAndCannotIsAnError) {
  ClientOptions options = server_.Options();
  options.local = LocalMode::kSharedMemory;
  const auto client = TrainingClient(server_, options);
  EXPECT_THAT(PushOnce(*client), IsError(kFailedPrecondition, "--local=shm"));
}

}  // namespace
}  // namespace cohort
