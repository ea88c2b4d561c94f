// Tests the server over a real connection, with plain protobuf messages.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/byte_rope.h"
#include "server/main/server.h"
#include "tests/fakes/statuses.h"
#include "tests/rpc/hand_worker.h"
#include "tests/rpc/service_fixture.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using std::string_literals::operator""s;

TEST_F(ServiceTest, JoinTellsTheWorkerWhatItNeeds) {
  ServerOptions options = TinyOptions();
  options.coordinator.seed = 42;
  options.coordinator.lease = absl::Seconds(9);
  Start(options);
  JoinedWorker worker(server_->address(), std::nullopt);

  const v1::JoinReply& joined = worker.joined();
  EXPECT_EQ(joined.rank(), 0);
  EXPECT_EQ(joined.run_id(), server_->run_id());
  EXPECT_GT(joined.incarnation(), 0);
  EXPECT_EQ(joined.seed(), 42u);
  EXPECT_EQ(joined.workers(), 2);
  EXPECT_EQ(joined.lease_ms(), 9000);
  // Less than the second after which gRPC's idle threads sleep.
  EXPECT_EQ(joined.heartbeat_interval_ms(), 800);
  EXPECT_THAT(joined.shards(), ElementsAre(server_->address()));
  EXPECT_THAT(joined.policy(), HasSubstr("sync"));
}

TEST_F(ServiceTest, OneSynchronousStepGivesTheHandComputedWeights) {
  StartWithTwoWorkers(TinyOptions());
  EXPECT_EQ(assignments_[0].range_begin(), 0);
  EXPECT_EQ(assignments_[0].range_end(), 2);
  EXPECT_EQ(assignments_[1].range_begin(), 2);
  EXPECT_EQ(assignments_[1].range_end(), 4);
  TrainOneStep();

  for (ExchangeCall& exchange : exchanges_) {
    std::vector<float> weights;
    const v1::PushVerdict verdict = AwaitVerdict(exchange, &weights);
    EXPECT_EQ(verdict.verdict(), v1::VERDICT_APPLIED);
    EXPECT_EQ(verdict.version(), 1);
    EXPECT_EQ(verdict.weights_partitions(), 1);
    EXPECT_FALSE(verdict.duplicate());
    // 10 - 0.5 * ([1, 2, 3, 4] + [1, 1, 1, 1]).
    EXPECT_THAT(weights, ElementsAre(9.0f, 8.5f, 8.0f, 7.5f));
  }
}

TEST_F(ServiceTest, RepeatedPushIsAnsweredAndNotAppliedAgain) {
  StartWithTwoWorkers(TinyOptions());
  TrainOneStep();
  AwaitVerdict(exchanges_[0]);
  AwaitVerdict(exchanges_[1]);

  workers_[0]->Push(exchanges_[0], assignments_[0], {1, 2, 3, 4});
  const v1::PushVerdict verdict = AwaitVerdict(exchanges_[0]);
  EXPECT_TRUE(verdict.duplicate());
  EXPECT_EQ(verdict.verdict(), v1::VERDICT_APPLIED);
  EXPECT_EQ(verdict.version(), 1);

  const std::vector<v1::PullReply> replies = PullWeights(*workers_[0]);
  EXPECT_EQ(replies[0].header().version(), 1);
  EXPECT_THAT(FloatsOf(replies[1].payload()),
              ElementsAre(9.0f, 8.5f, 8.0f, 7.5f));
}

TEST_F(ServiceTest, PushIsFinishedOnANewStream) {
  StartWithTwoWorkers(TinyOptions());
  HandWorker& worker = *workers_[0];
  ExchangeCall broken = worker.OpenExchange();
  broken.Write(worker.Opening(assignments_[0], 2));
  broken.context->TryCancel();
  broken.End();

  TrainOneStep();
  EXPECT_EQ(AwaitVerdict(exchanges_[0]).version(), 1);
}

TEST_F(ServiceTest, NewerStreamOfOneIncarnationTakesOver) {
  StartWithTwoWorkers(TinyOptions());
  HandWorker& worker = *workers_[0];
  ExchangeCall older = worker.OpenExchange();
  older.Write(worker.Opening(assignments_[0], 2));
  older.Write(worker.Gradient(assignments_[0], {1, 2, 3, 4}));
  ReduceCall unrelated = worker.OpenReduce();
  ExchangeCall newer = worker.OpenExchange();
  newer.Write(worker.Opening(assignments_[0], 2));

  EXPECT_EQ(older.End().error_code(), grpc::ABORTED);
  newer.context->TryCancel();
  newer.End();
  unrelated.context->TryCancel();
  unrelated.End();
}

TEST_F(ServiceTest, AnotherRunIsRefused) {
  StartWithTwoWorkers(TinyOptions());
  HandWorker stranger(server_->address());
  EXPECT_EQ(stranger.Join(std::nullopt, "elsewhere").error_code(),
            grpc::NOT_FOUND);

  HandWorker& worker = *workers_[0];
  worker.sender().set_run_id("elsewhere");
  ExchangeCall exchange = worker.OpenExchange();
  exchange.Write(worker.Opening(assignments_[0], 2));
  EXPECT_THAT(exchange.End(),
              EndedWith(grpc::FAILED_PRECONDITION, "elsewhere"));

  v1::PullRequest request;
  request.set_run_id("elsewhere");
  std::vector<v1::PullReply> replies;
  EXPECT_EQ(worker.Pull(request, replies).error_code(),
            grpc::FAILED_PRECONDITION);
}

TEST_F(ServiceTest, ReplacedIncarnationIsFenced) {
  ServerOptions options = TinyOptions();
  options.coordinator.reconnect_grace = absl::Milliseconds(1);
  StartWithTwoWorkers(options);
  HandWorker& old_worker = *workers_[0];
  ExchangeCall held = old_worker.OpenExchange();
  held.Write(old_worker.Opening(assignments_[0], 2));
  old_worker.BreakSession();

  HandWorker new_worker(server_->address());
  grpc::Status joined = new_worker.Join(0);
  while (joined.error_code() == grpc::ALREADY_EXISTS) {
    joined = new_worker.Join(0);
  }
  ASSERT_TRUE(joined.ok()) << joined.error_message();
  EXPECT_GT(new_worker.joined().incarnation(),
            old_worker.joined().incarnation());

  // The held stream has ended, and a new one is refused.
  EXPECT_EQ(held.End().error_code(), grpc::ABORTED);
  ExchangeCall late = old_worker.OpenExchange();
  late.Write(old_worker.Gradient(assignments_[0], {1, 2, 3, 4}));
  EXPECT_EQ(late.End().error_code(), grpc::ABORTED);
}

TEST_F(ServiceTest, LiveRankIsNotGivenAway) {
  StartWithTwoWorkers(TinyOptions());
  HandWorker third(server_->address());
  EXPECT_THAT(third.Join(0),
              EndedWith(grpc::ALREADY_EXISTS, "becomes free in"));
  EXPECT_EQ(third.Join().error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_EQ(third.Join(7).error_code(), grpc::OUT_OF_RANGE);
}

TEST_F(ServiceTest, SessionMustBeginWithAJoin) {
  Start(TinyOptions());
  const auto stub = v1::Membership::NewStub(PlainChannel(server_->address()));
  SessionCall session;
  SetDeadline(*session.context);
  session.stream = stub->Session(session.context.get());
  v1::SessionRequest heartbeat;
  heartbeat.mutable_heartbeat()->set_sequence(1);
  session.Write(heartbeat);
  EXPECT_EQ(session.End().error_code(), grpc::INVALID_ARGUMENT);
}

TEST_F(ServiceTest, ModelOfOtherShapesIsRefusedAndTheRunIsUnharmed) {
  Start(TinyOptions());
  JoinedWorker first(server_->address());
  RegisterCall right = first.BeginRegister(TinyLayout(), TinyPlan());
  JoinedWorker second(server_->address(), 1);

  v1::ModelLayout other = TinyLayout();
  other.mutable_parameters(0)->set_shape(0, 5);
  EXPECT_THAT(second.Register(other, TinyPlan(), {{1, 2, 3, 4, 5}}),
              EndedWith(grpc::FAILED_PRECONDITION, "the model differs"));

  RegisterCall again = second.BeginRegister(TinyLayout(), TinyPlan());
  EXPECT_TRUE(first.FinishRegister(right, kTinyValues).ok());
  EXPECT_TRUE(second.FinishRegister(again, kTinyValues).ok());
  EXPECT_TRUE(first.Await(v1::ASSIGNMENT_KIND_TRAIN).has_value());
  EXPECT_TRUE(second.Await(v1::ASSIGNMENT_KIND_TRAIN).has_value());
}

TEST_F(ServiceTest, OnlyTheLowestRankIsAskedForItsValues) {
  Start(TinyOptions());
  JoinedWorker first(server_->address());
  JoinedWorker second(server_->address(), 1);
  // The first worker gets no answer yet, even if it sends no more.
  RegisterCall early = second.BeginRegister(TinyLayout(), TinyPlan());
  early.stream->WritesDone();
  RegisterCall asked = first.BeginRegister(TinyLayout(), TinyPlan());
  const v1::RegisterReply reply = OkValue(asked.Read());
  EXPECT_TRUE(reply.send_values());

  const v1::Status status = StatusFor(first);
  EXPECT_THAT(status.state(), HasSubstr("worker 0 to register"));

  first.SendValues(asked, reply, {{1, 2, 3, 4}});
  EXPECT_TRUE(asked.End().ok());
  const v1::RegisterReply compared = OkValue(early.Read());
  EXPECT_FALSE(compared.send_values());
  EXPECT_TRUE(compared.done());
  EXPECT_TRUE(early.End().ok());
  EXPECT_THAT(FloatsOf(PullWeights(second)[1].payload()),
              ElementsAre(1, 2, 3, 4));
}

TEST_F(ServiceTest, TheNextIsAskedForItsValuesIfTheLowestIsLost) {
  Start(TinyOptions());
  JoinedWorker first(server_->address());
  JoinedWorker second(server_->address(), 1);
  RegisterCall lost = first.BeginRegister(TinyLayout(), TinyPlan());
  RegisterCall next = second.BeginRegister(TinyLayout(), TinyPlan());
  ASSERT_TRUE(lost.Read().has_value());
  EXPECT_TRUE(first.Leave().ok());
  EXPECT_EQ(lost.End().error_code(), grpc::ABORTED);
  const v1::RegisterReply reply = OkValue(next.Read());
  EXPECT_TRUE(reply.send_values());
}

TEST_F(ServiceTest, ValuesBeforeTheAnswerAreRefused) {
  Start(TinyOptions());
  JoinedWorker worker(server_->address());
  RegisterCall hasty = worker.BeginRegister(TinyLayout(), TinyPlan());
  v1::RegisterRequest values;
  *values.mutable_sender() = worker.sender();
  values.set_encoding(v1::ENCODING_FLOAT32);
  values.set_payload(BytesOf(std::vector<float>{1, 2, 3, 4}));
  hasty.Write(values);
  EXPECT_THAT(hasty.End(),
              EndedWith(grpc::INVALID_ARGUMENT, "was not requested"));
}

TEST_F(ServiceTest, WrongChecksumIsDataLoss) {
  StartWithTwoWorkers(TinyOptions());
  HandWorker& worker = *workers_[0];
  ExchangeCall exchange = worker.OpenExchange();
  exchange.Write(worker.Opening(assignments_[0], 2));
  v1::ExchangeRequest gradient = worker.Gradient(assignments_[0], {1, 2, 3, 4});
  gradient.mutable_gradient()->set_xxh3(1);
  exchange.Write(gradient);
  EXPECT_EQ(exchange.End().error_code(), grpc::DATA_LOSS);

  // The damaged push left no trace: the same push, undamaged, succeeds.
  TrainOneStep();
  EXPECT_EQ(AwaitVerdict(exchanges_[0]).verdict(), v1::VERDICT_APPLIED);
}

// One worker sends bfloat16, as assigned, and another client float32.
TEST_F(ServiceTest, GradientsInTwoEncodingsMakeOneStep) {
  ServerOptions options = TinyOptions();
  options.coordinator.policy.wire = ElementType::kBFloat16;
  StartWithTwoWorkers(options);
  for (const v1::Assignment& assignment : assignments_) {
    EXPECT_EQ(assignment.gradient_encoding(), v1::ENCODING_BFLOAT16);
  }
  for (size_t i : {0, 1}) {
    HandWorker& worker = *workers_[i];
    exchanges_.push_back(worker.OpenExchange());
    exchanges_[i].Write(worker.Opening(assignments_[i], 2));
    exchanges_[i].Write(i == 0
                            ? worker.HalfGradient(assignments_[i], {1, 2, 3, 4})
                            : worker.Gradient(assignments_[i], {1, 1, 1, 1}));
    exchanges_[i].Write(worker.Closing(assignments_[i], 1));
  }
  for (ExchangeCall& exchange : exchanges_) {
    std::vector<float> weights;
    EXPECT_EQ(AwaitVerdict(exchange, &weights).verdict(), v1::VERDICT_APPLIED);
    EXPECT_THAT(weights, ElementsAre(9.0f, 8.5f, 8.0f, 7.5f));
  }
}

// One worker keeps the weights that it has read, the other does not.
TEST_F(ServiceTest, ChangesOfWeightsGoToThoseThatTakeThem) {
  ServerOptions options = TinyOptions();
  options.coordinator.policy.wire = ElementType::kBFloat16;
  StartWithTwoWorkers(options);
  PushInBFloat16();
  for (size_t i : {0, 1}) {
    std::optional<v1::ExchangeReply> reply = exchanges_[i].Read();
    while (reply.has_value() && !reply->has_weights()) {
      reply = exchanges_[i].Read();
    }
    ASSERT_TRUE(reply.has_value());
    const v1::WeightsPartition& weights = reply->weights();
    EXPECT_EQ(weights.version(), 1);
    EXPECT_EQ(weights.xxh3(), ByteRope::CopyText(reply->payload()).Checksum());
    if (i == 0) {
      EXPECT_EQ(weights.encoding(), v1::ENCODING_BFLOAT16);
      EXPECT_EQ(weights.base_version(), 0);
      // -1, -2, -3 and -4.
      EXPECT_EQ(reply->payload(), "\x80\xbf\x00\xc0\x40\xc0\x80\xc0"s);
    } else {
      EXPECT_EQ(weights.encoding(), v1::ENCODING_FLOAT32);
      EXPECT_FALSE(weights.has_base_version());
      EXPECT_THAT(FloatsOf(reply->payload()), ElementsAre(9, 8, 7, 6));
    }
  }
}

TEST_F(ServiceTest, AServerOfFloat32AsksForNothingElse) {
  StartWithTwoWorkers(TinyOptions());
  EXPECT_EQ(assignments_[0].gradient_encoding(), v1::ENCODING_UNSPECIFIED);
}

TEST_F(ServiceTest, MalformedGradientsAreRefused) {
  StartWithTwoWorkers(TinyOptions());
  HandWorker& worker = *workers_[0];
  v1::ExchangeRequest too_short = worker.Gradient(assignments_[0], {1, 2, 3});
  v1::ExchangeRequest unknown = worker.Gradient(assignments_[0], {1, 2, 3, 4});
  unknown.mutable_gradient()->set_partition(1);
  v1::ExchangeRequest no_encoding =
      worker.Gradient(assignments_[0], {1, 2, 3, 4});
  no_encoding.mutable_gradient()->clear_encoding();
  v1::ExchangeRequest wide = worker.Gradient(assignments_[0], {1, 2, 3, 4});
  wide.mutable_gradient()->set_encoding(v1::ENCODING_FLOAT64);
  // Float32 under the name of bfloat16, and the other way round.
  v1::ExchangeRequest too_long = worker.Gradient(assignments_[0], {1, 2, 3, 4});
  too_long.mutable_gradient()->set_encoding(v1::ENCODING_BFLOAT16);
  v1::ExchangeRequest half = worker.HalfGradient(assignments_[0], {1, 2, 3, 4});
  half.mutable_gradient()->set_encoding(v1::ENCODING_FLOAT32);
  v1::ExchangeRequest half_an_element = half;
  half_an_element.mutable_gradient()->set_encoding(v1::ENCODING_BFLOAT16);
  half_an_element.mutable_payload()->pop_back();
  v1::ExchangeRequest empty;
  *empty.mutable_sender() = worker.sender();

  for (const v1::ExchangeRequest& bad :
       {too_short, unknown, no_encoding, wide, too_long, half, half_an_element,
        empty}) {
    ExchangeCall exchange = worker.OpenExchange();
    exchange.Write(worker.Opening(assignments_[0], 2));
    exchange.Write(bad);
    EXPECT_EQ(exchange.End().error_code(), grpc::INVALID_ARGUMENT)
        << bad.ShortDebugString();
  }
}

// Room for one byte, and a partition for each of the four floats.
ServerOptions HardlyAnyRoom() {
  ServerOptions options = TinyOptions();
  options.inflight_bytes_max = 1;
  options.coordinator.partition_bytes = 4;
  return options;
}

class HardlyAnyRoomTest : public ServiceTest {
 protected:
  static void PushByPartition(HandWorker& worker, ExchangeCall& exchange,
                              const v1::Assignment& assignment) {
    exchange.Write(worker.Opening(assignment, 2));
    for (int32_t partition : {3, 2, 1, 0}) {
      v1::ExchangeRequest gradient = worker.Gradient(assignment, {1});
      gradient.mutable_gradient()->set_partition(partition);
      exchange.Write(gradient);
    }
    exchange.Write(worker.Closing(assignment, 1));
  }

  // Both are applied.
  void PushBothByPartition() {
    for (size_t i = 0; i < 2; ++i) {
      exchanges_.push_back(workers_[i]->OpenExchange());
      PushByPartition(*workers_[i], exchanges_[i], assignments_[i]);
    }
    for (ExchangeCall& exchange : exchanges_) {
      EXPECT_EQ(AwaitVerdict(exchange).verdict(), v1::VERDICT_APPLIED);
    }
  }
};

// The first rank to push is paused, not refused, and later continues by itself.
TEST_F(HardlyAnyRoomTest, GradientsThatThereIsNoRoomForWait) {
  StartWithTwoWorkers(HardlyAnyRoom());
  PushBothByPartition();
}

// The client leaves while the server reads nothing from it. The data received
// is kept, and the rank pushes on a new stream.
TEST_F(HardlyAnyRoomTest, PausedStreamEndsWithItsClient) {
  StartWithTwoWorkers(HardlyAnyRoom());
  {
    ExchangeCall exchange = workers_[0]->OpenExchange();
    PushByPartition(*workers_[0], exchange, assignments_[0]);
    exchange.context->TryCancel();
    EXPECT_EQ(exchange.End().error_code(), grpc::CANCELLED);
  }
  PushBothByPartition();
}

TEST_F(ServiceTest, RendezvousOfTwoGivesBothTheMomentsOfAll) {
  StartWithTwoWorkers(TinyOptions(), NormalisedLayout());
  std::vector<ReduceCall> reduces;
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(assignments_[i].global_normalization());
    reduces.push_back(workers_[i]->OpenReduce());
    // {0, 2} and {2, 4}: means 1 and 3, M2 2 each.
    reduces[i].Write(
        workers_[i]->Contribution(assignments_[i], 2, i == 0 ? 1.0 : 3.0, 2.0));
    workers_[i]->contributions = 1;
  }
  for (ReduceCall& reduce : reduces) {
    const v1::ReduceReply reply = OkValue(reduce.Read());
    EXPECT_EQ(reply.aborted(), "");
    EXPECT_EQ(reply.count(), 4);
    // {0, 2, 2, 4}: mean 2, M2 4 + 0 + 0 + 4.
    EXPECT_THAT(DoublesOf(reply.values()), ElementsAre(2.0, 8.0));
  }

  // The step commits them: r <- 0.9 r + 0.1 s with r = (0, 1) and the
  // unbiased variance 8/3.
  TrainOneStep();
  EXPECT_EQ(AwaitVerdict(exchanges_[0]).verdict(), v1::VERDICT_APPLIED);
  v1::PullRequest request;
  request.set_run_id(server_->run_id());
  request.set_statistics(true);
  std::vector<v1::PullReply> replies;
  ASSERT_TRUE(workers_[0]->Pull(request, replies).ok());
  ASSERT_EQ(replies.size(), 1u);
  ASSERT_EQ(replies[0].header().statistics_size(), 1);
  EXPECT_FLOAT_EQ(replies[0].header().statistics(0).mean(0), 0.2);
  EXPECT_FLOAT_EQ(replies[0].header().statistics(0).variance(0), 0.9 + 0.8 / 3);
}

TEST_F(ServiceTest, ContributionsOfOneRequestAreAnsweredTogether) {
  StartWithTwoWorkers(TinyOptions(), NormalisedLayout());
  std::vector<ReduceCall> reduces;
  for (size_t i = 0; i < 2; ++i) {
    reduces.push_back(workers_[i]->OpenReduce());
    reduces[i].Write(
        TwoContributions(*workers_[i], assignments_[i], i == 0 ? 1 : 3));
  }
  for (ReduceCall& reduce : reduces) {
    const v1::ReduceReply reply = OkValue(reduce.Read());
    EXPECT_EQ(reply.key().call(), 0);
    EXPECT_THAT(DoublesOf(reply.values()), ElementsAre(2.0, 8.0));
    ASSERT_EQ(reply.further_size(), 1);
    EXPECT_EQ(reply.further(0).key().call(), 1);
    EXPECT_EQ(reply.further(0).count(), 4);
    EXPECT_THAT(DoublesOf(reply.further(0).values()), ElementsAre(3.0, 8.0));
  }
}

// A client from a release before grouped results would never read the second.
TEST_F(ServiceTest, ResultsAreGroupedOnlyForClientsThatReadThem) {
  StartWithTwoWorkers(TinyOptions(), NormalisedLayout());
  ReduceCall old = workers_[0]->OpenReduce();
  ReduceCall present = workers_[1]->OpenReduce();
  v1::ReduceRequest unsaid = TwoContributions(*workers_[0], assignments_[0], 1);
  unsaid.clear_takes_further_results();
  old.Write(unsaid);
  // Whichever contribution comes second completes both calls at once.
  present.Write(TwoContributions(*workers_[1], assignments_[1], 3));
  for (int call = 0; call < 2; ++call) {
    const v1::ReduceReply reply = OkValue(old.Read());
    EXPECT_EQ(reply.key().call(), call);
    EXPECT_EQ(reply.further_size(), 0);
    EXPECT_THAT(DoublesOf(reply.values()), ElementsAre(2.0 + call, 8.0));
  }
}

// One worker may send together the contributions that another sends one by one.
TEST_F(ServiceTest, ContributionsOfOneRequestAreAnsweredAsTheyComplete) {
  StartWithTwoWorkers(TinyOptions(), NormalisedLayout());
  ReduceCall together = workers_[0]->OpenReduce();
  ReduceCall alone = workers_[1]->OpenReduce();
  together.Write(TwoContributions(*workers_[0], assignments_[0], 1));
  for (int call = 0; call < 2; ++call) {
    v1::ReduceRequest request =
        workers_[1]->Contribution(assignments_[1], 2, 3 + call, 2);
    request.mutable_key()->set_call(call);
    alone.Write(request);
    for (ReduceCall* reduce : {&together, &alone}) {
      const v1::ReduceReply reply = OkValue(reduce->Read());
      EXPECT_EQ(reply.key().call(), call);
      EXPECT_EQ(reply.further_size(), 0);
      EXPECT_THAT(DoublesOf(reply.values()), ElementsAre(2.0 + call, 8.0));
    }
  }
}

TEST_F(ServiceTest, RequestWithTooManyContributionsIsRefused) {
  StartWithTwoWorkers(TinyOptions(), NormalisedLayout());
  ReduceCall reduce = workers_[0]->OpenReduce();
  v1::ReduceRequest request =
      TwoContributions(*workers_[0], assignments_[0], 1);
  while (request.further_size() < 64) {
    *request.add_further() = request.further(0);
  }
  reduce.Write(request);
  EXPECT_THAT(reduce.End(),
              EndedWith(grpc::INVALID_ARGUMENT, "got 65 contributions"));
}

TEST_F(ServiceTest, PullGivesOneConsistentVersion) {
  ServerOptions options = TinyOptions();
  options.coordinator.workers = 1;
  Start(options);
  JoinedWorker worker(server_->address(), std::nullopt);
  v1::PullRequest request;
  request.set_run_id(server_->run_id());
  request.set_weights(true);
  std::vector<v1::PullReply> replies;
  EXPECT_EQ(worker.Pull(request, replies).error_code(),
            grpc::FAILED_PRECONDITION);

  ASSERT_TRUE(worker.Register(TinyLayout(), TinyPlan(), kTinyValues).ok());
  ASSERT_TRUE(worker.Pull(request, replies).ok());
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[0].header().version(), 0);
  EXPECT_EQ(replies[0].header().layout().parameters(0).name(), "w");
  EXPECT_EQ(replies[0].header().partitions_size(), 1);
  EXPECT_EQ(replies[1].encoding(), v1::ENCODING_FLOAT32);
  EXPECT_THAT(FloatsOf(replies[1].payload()),
              ElementsAre(10.0f, 10.0f, 10.0f, 10.0f));

  request.set_version(7);
  EXPECT_EQ(worker.Pull(request, replies).error_code(), grpc::OUT_OF_RANGE);
}

TEST_F(ServiceTest, StopEndsHeldStreamsAsUnavailable) {
  StartWithTwoWorkers(TinyOptions());
  TrainOneStep();
  AwaitVerdict(exchanges_[0]);
  AwaitVerdict(exchanges_[1]);
  server_->Stop();
  EXPECT_EQ(exchanges_[0].End().error_code(), grpc::UNAVAILABLE);
  EXPECT_EQ(workers_[0]->session().End().error_code(), grpc::UNAVAILABLE);
  const RunSummary summary = server_->Wait();
  EXPECT_FALSE(summary.outcome.has_value());
  EXPECT_THAT(out_.str(), HasSubstr("stopped at step 1"));
}

TEST_F(ServiceTest, StatusAndDrainForOperators) {
  // Two steps an epoch, so that the run is drained in the middle of an epoch.
  plan_.set_train_samples(8);
  StartWithTwoWorkers(TinyOptions());
  v1::Admin::Stub& admin = workers_[0]->admin();
  v1::Status status;
  status = StatusFor(*workers_[0]);
  EXPECT_EQ(status.run_id(), server_->run_id());
  ASSERT_EQ(status.workers_size(), 2);
  EXPECT_EQ(status.workers(1).state(), "live");
  {
    TimedContext context;
    v1::WatchStatusRequest request;
    request.set_interval_ms(100);
    const auto watch = admin.WatchStatus(&context, request);
    EXPECT_TRUE(watch->Read(&status));
    EXPECT_TRUE(watch->Read(&status));
    context.TryCancel();
    EXPECT_EQ(watch->Finish().error_code(), grpc::CANCELLED);
  }
  {
    TimedContext context;
    v1::CheckpointReply reply;
    EXPECT_EQ(admin.Checkpoint(&context, {}, &reply).error_code(),
              grpc::FAILED_PRECONDITION);
  }
  {
    TimedContext context;
    v1::DrainReply reply;
    ASSERT_TRUE(admin.Drain(&context, {}, &reply).ok());
  }
  TrainOneStep();
  const RunSummary summary = server_->Wait();
  EXPECT_EQ(summary.outcome, RunOutcome::kDrained);
  EXPECT_EQ(summary.snapshot->version, Version(1));
}

}  // namespace
}  // namespace cohort
