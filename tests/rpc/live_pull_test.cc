// Reading from a running run: each pull is one version, and training does not
// wait.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "tests/fakes/statuses.h"
#include "tests/rpc/hand_worker.h"
#include "tests/rpc/service_fixture.h"

namespace cohort {
namespace {

// 8 MiB: more than a connection buffers for a client that does not read.
constexpr int64_t kElements = int64_t{2} << 20;
constexpr int64_t kPartitionElements = kElements / 8;

// One worker whose every push subtracts 1 from all elements: SGD with rate 1,
// without anything else that changes weights. So each weight is minus the
// version.
class LivePullTest : public ServiceTest {
 protected:
  void SetUp() override {
    ServerOptions options = TinyOptions();
    options.coordinator.workers = 1;
    options.coordinator.epochs = 1'000'000;
    options.coordinator.optimizer.learning_rate = 1;
    options.coordinator.policy.aggregation = AggregationKind::kAsync;
    options.coordinator.partition_bytes = 4 * kPartitionElements;
    plan_.set_train_samples(2);
    plan_.set_test_samples(0);
    plan_.set_loss_reference(2);
    v1::ModelLayout layout;
    v1::ParameterSpec* w = layout.add_parameters();
    w->set_name("w");
    w->add_shape(kElements);
    w->set_trainable(true);
    w->set_decay_exempt(true);
    Start(options);
    worker_ = std::make_unique<HandWorker>(server_->address());
    ASSERT_TRUE(worker_->Join(0).ok());
    ExpectOk(worker_->Register(layout, plan_,
                               {std::vector<float>(kElements, 0.0f)}));
    const auto first = OkValue(worker_->Await(v1::ASSIGNMENT_KIND_TRAIN));
    next_ = first;
    exchange_ = worker_->OpenExchange();
  }

  // Makes one version and returns its number.
  int64_t TrainOnce() {
    exchange_.Write(worker_->Opening(next_, 2));
    v1::ExchangeRequest gradient =
        worker_->Gradient(next_, std::vector<float>(kPartitionElements, 1.0f));
    for (int32_t p = 0; p < kElements / kPartitionElements; ++p) {
      gradient.mutable_gradient()->set_partition(p);
      exchange_.Write(gradient);
    }
    exchange_.Write(worker_->Closing(next_, 1.0));
    const v1::PushVerdict verdict = AwaitVerdict(exchange_);
    EXPECT_EQ(verdict.verdict(), v1::VERDICT_APPLIED) << verdict.reason();
    if (verdict.next().kind() == v1::ASSIGNMENT_KIND_TRAIN) {
      next_ = verdict.next();
    } else {
      const auto train = worker_->Await(v1::ASSIGNMENT_KIND_TRAIN);
      EXPECT_TRUE(train.has_value());
      if (train.has_value()) next_ = *train;
    }
    return verdict.version();
  }

  // Checks that all elements belong to one version, and returns it.
  static int64_t ExpectOneVersion(const std::vector<v1::PullReply>& replies) {
    EXPECT_EQ(replies.size(),
              static_cast<size_t>(1 + kElements / kPartitionElements));
    if (replies.empty()) return -1;
    const int64_t version = replies[0].header().version();
    for (size_t i = 1; i < replies.size(); ++i) {
      const std::vector<float> values = FloatsOf(replies[i].payload());
      EXPECT_EQ(values, std::vector<float>(kPartitionElements,
                                           -static_cast<float>(version)))
          << "partition " << replies[i].partition() << " of version " << version
          << " begins with " << values[0];
    }
    return version;
  }

  std::unique_ptr<HandWorker> worker_;
  v1::Assignment next_;
  ExchangeCall exchange_;
};

TEST_F(LivePullTest, EachPullIsOneVersionWhileCommitsGoOn) {
  std::atomic<bool> stop = false;
  std::vector<int64_t> versions;
  // There is no session and no run id, so the run does not know of the reader.
  std::jthread reader([&] {
    HandWorker stranger(server_->address());
    v1::PullRequest request;
    request.set_weights(true);
    while (!stop) {
      std::vector<v1::PullReply> replies;
      const grpc::Status status = stranger.Pull(request, replies);
      ASSERT_TRUE(status.ok()) << status.error_message();
      versions.push_back(ExpectOneVersion(replies));
    }
  });
  int64_t version = 0;
  for (int i = 0; i < 60; ++i) version = TrainOnce();
  stop = true;
  reader.join();
  EXPECT_EQ(version, 60);
  // Versions were read while others were made, and never decreased.
  ASSERT_GE(versions.size(), 2u);
  EXPECT_LT(versions.front(), 60);
  EXPECT_GT(versions.back(), versions.front());
  EXPECT_TRUE(std::is_sorted(versions.begin(), versions.end()));
}

TEST_F(LivePullTest, ReaderThatStopsReadingHoldsUpNobody) {
  TrainOnce();
  const auto stub = v1::Parameters::NewStub(PlainChannel(server_->address()));
  TimedContext context;
  v1::PullRequest request;
  request.set_weights(true);
  const auto stalled = stub->Pull(&context, Sealed(request));
  std::vector<v1::PullReply> replies(1);
  ASSERT_TRUE(stalled->Read(&replies[0]));

  // Training and other readers continue while it holds version 1.
  for (int i = 0; i < 20; ++i) TrainOnce();
  HandWorker stranger(server_->address());
  std::vector<v1::PullReply> newest;
  ASSERT_TRUE(stranger.Pull(request, newest).ok());
  EXPECT_EQ(ExpectOneVersion(newest), 21);

  // The rest of its messages still belong to the version it began with.
  for (v1::PullReply reply; stalled->Read(&reply);) replies.push_back(reply);
  EXPECT_TRUE(stalled->Finish().ok());
  EXPECT_EQ(ExpectOneVersion(replies), 1);
}

}  // namespace
}  // namespace cohort
