// Peers that request too much, send nothing or read nothing.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/ops/listen_socket.h"
#include "server/rpc/self_probe.h"
#include "tests/fakes/statuses.h"
#include "tests/rpc/service_fixture.h"
#include "tests/rpc/shard_fixture.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

class LargeLayoutTest : public ServiceTest,
                        public ::testing::WithParamInterface<int64_t> {};

// A layer with this many channels takes 100 bytes on the wire, and once used up
// the machine's memory when training started.
TEST_P(LargeLayoutTest, IsRefusedAndOthersTrain) {
  ServerOptions options = TinyOptions();
  options.coordinator.workers = 2;
  Start(options);
  v1::ModelLayout layout = NormalisedLayout();
  layout.mutable_batch_norms(0)->set_channels(GetParam());
  {
    JoinedWorker greedy(server_->address());
    EXPECT_THAT(greedy.Register(layout, plan_, kTinyValues),
                EndedWith(grpc::INVALID_ARGUMENT, "channels of bn"));
    greedy.Leave();
  }
  AddTwoWorkers(NormalisedLayout());
}

INSTANTIATE_TEST_SUITE_P(All, LargeLayoutTest,
                         ::testing::Values(50'000'000, int64_t{1} << 40,
                                           int64_t{1} << 62));

TEST_F(ShardServiceTest, SilentSessionsKeepNobodyOut) {
  const auto stub = v1::Membership::NewStub(PlainChannel(address_));
  std::vector<SessionCall> silent;
  // As many as there are places, and a few more.
  for (int i = 0; i < 80; ++i) {
    SessionCall& call = silent.emplace_back();
    SetDeadline(*call.context);
    call.stream = stub->Session(call.context.get());
  }
  const int32_t places = StreamRegistry::LimitsOf(/*workers=*/1).sessions;
  while (shard_.partitions().streams().sessions() < places)
    std::this_thread::yield();
  HandWorker worker(address_);
  EXPECT_TRUE(worker.Join(0).ok());
  for (SessionCall& call : silent) call.context->TryCancel();
  for (SessionCall& call : silent) call.End();
}

template <typename CallType>
void ExpectEndedAsSilent(CallType& call) {
  EXPECT_THAT(call.End(), EndedWith(grpc::DEADLINE_EXCEEDED, "got no message"));
}

TEST_F(ShardServiceTest, SilentStreamsAreEnded) {
  JoinedWorker worker(address_);
  ExchangeCall exchange = worker.OpenExchange();
  ReduceCall reduce = worker.OpenReduce();
  while (shard_.partitions().streams().All().size() < 3)
    std::this_thread::yield();
  clock_.Advance(absl::Seconds(16));
  ExpectEndedAsSilent(exchange);
  ExpectEndedAsSilent(reduce);
}

// 4 MiB, more than a connection buffers for a client that does not read.
constexpr int64_t kLargeElements = 1 << 20;
constexpr int kWindowBytes = 1 << 16;

class UnreadPullTest : public ShardServiceTest {
 protected:
  void SetUp() override {
    ShardServiceTest::SetUp();
    worker_ = std::make_unique<HandWorker>(address_);
    ASSERT_TRUE(worker_->Join(0).ok());
    v1::ModelLayout layout = TinyLayout();
    layout.mutable_parameters(0)->set_shape(0, kLargeElements);
    ExpectOk(worker_->Register(layout, TinyPlan(),
                               {std::vector<float>(kLargeElements, 1.0F)}));
    grpc::ChannelArguments small_window;
    small_window.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    small_window.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindowBytes);
    stub_ = v1::Parameters::NewStub(grpc::CreateCustomChannel(
        address_, grpc::InsecureChannelCredentials(), small_window));
    request_.set_weights(true);
  }

  struct PullCall {
    std::unique_ptr<grpc::ClientContext> context =
        std::make_unique<grpc::ClientContext>();
    std::unique_ptr<grpc::ClientReader<v1::PullReply>> reader;

    grpc::Status End() {
      v1::PullReply reply;
      while (reader->Read(&reply)) {
      }
      return reader->Finish();
    }
  };
  // Returns once the server has answered or refused.
  PullCall Pull() {
    const ServiceCounters& counters = shard_.partitions().counters();
    const auto answered = [&counters] {
      return ServiceCounters::Read(counters.pulls) +
             ServiceCounters::Read(counters.pulls_refused);
    };
    const int64_t before = answered();
    PullCall call;
    SetDeadline(*call.context);
    call.reader = stub_->Pull(call.context.get(), Sealed(request_));
    while (answered() == before) std::this_thread::yield();
    return call;
  }

  std::unique_ptr<HandWorker> worker_;
  std::unique_ptr<v1::Parameters::Stub> stub_;
  v1::PullRequest request_;
};

TEST_F(UnreadPullTest, OneConnectionHasEightAtATime) {
  std::vector<PullCall> calls;
  for (int i = 0; i < 8; ++i) calls.push_back(Pull());
  EXPECT_EQ(Pull().End().error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(calls.front().End().ok());
  for (size_t i = 1; i < calls.size(); ++i) {
    calls[i].context->TryCancel();
    calls[i].End();
  }
}

TEST_F(UnreadPullTest, IsCutOnceItsTimeIsUp) {
  PullCall call = Pull();
  // The session, and the pull until it is cut off.
  Instant now = clock_.Now();
  while (shard_.partitions().streams().All().size() > 1) {
    // One message may take 15 s and a second for its 1 MiB.
    now += absl::Seconds(17);
    for (const auto& stream : shard_.partitions().streams().All())
      stream->CheckReader(now);
    std::this_thread::yield();
  }
  EXPECT_THAT(call.End(), EndedWith(grpc::DEADLINE_EXCEEDED, "was not read"));
}

TEST_F(ShardServiceTest, RankHasOneRegistrationAtATime) {
  JoinedWorker worker(address_);
  const auto stub = v1::Parameters::NewStub(PlainChannel(address_));
  v1::RegisterRequest first;
  *first.mutable_sender() = worker.sender();
  *first.mutable_layout() = TinyLayout();
  *first.mutable_plan() = TinyPlan();
  const auto begin = [&](RegisterCall& call) {
    SetDeadline(*call.context);
    call.stream = stub->Register(call.context.get());
    call.Write(first);
    return call.Read().has_value();
  };
  RegisterCall unfinished;
  RegisterCall newer;
  ASSERT_TRUE(begin(unfinished));
  ASSERT_TRUE(begin(newer));
  EXPECT_EQ(unfinished.End().error_code(), grpc::ABORTED);
  EXPECT_TRUE(worker.Register(TinyLayout(), TinyPlan(), kTinyValues).ok());
  newer.context->TryCancel();
  newer.End();
}

TEST(SelfProbeTest, PortThatNobodyServesIsNoticed) {
  ListenAddress address{.host = "127.0.0.1", .port = 0};
  // The kernel completes connections to it, but they are never accepted.
  const ListenSocket socket = OkValue(ListenSocket::Open("--listen", address));
  const SelfProbe probe(address.ToString(), nullptr);
  EXPECT_TRUE(probe.status().ok());
  while (probe.status().ok()) std::this_thread::yield();
  EXPECT_THAT(std::string(probe.status().message()),
              HasSubstr(address.ToString()));
}

}  // namespace
}  // namespace cohort
