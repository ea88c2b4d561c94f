// A server over a real connection and workers driven by hand.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/wire/channel.h"
#include "server/main/server.h"
#include "tests/fakes/statuses.h"
#include "tests/rpc/hand_worker.h"

namespace cohort {

// One parameter w = [10, 10, 10, 10].
inline v1::ModelLayout TinyLayout() {
  v1::ModelLayout layout;
  v1::ParameterSpec* w = layout.add_parameters();
  w->set_name("w");
  w->add_shape(4);
  w->set_trainable(true);
  return layout;
}

inline const std::vector<std::vector<float>> kTinyValues = {{10, 10, 10, 10}};

// The tiny model with one batch-norm layer of one channel.
inline v1::ModelLayout NormalisedLayout() {
  v1::ModelLayout layout = TinyLayout();
  v1::BatchNormSpec* bn = layout.add_batch_norms();
  bn->set_name("bn");
  bn->set_channels(1);
  bn->set_epsilon(1e-5);
  bn->set_momentum(0.1);
  bn->set_track_statistics(true);
  bn->set_convention(v1::STATISTICS_CONVENTION_PYTORCH);
  return layout;
}

// Two calls of the layer in one request, the second with the mean one higher.
inline v1::ReduceRequest TwoContributions(HandWorker& worker,
                                          const v1::Assignment& assignment,
                                          double mean) {
  v1::ReduceRequest request = worker.Contribution(assignment, 2, mean, 2);
  const v1::ReduceRequest second =
      worker.Contribution(assignment, 2, mean + 1, 2);
  v1::ReducePart& part = *request.add_further();
  *part.mutable_key() = second.key();
  part.mutable_key()->set_call(1);
  part.set_count(second.count());
  part.set_values(second.values());
  request.set_takes_further_results(true);
  return request;
}

// Two workers with batches of two: one step an epoch. The loss weights of a
// step add up to 4, which is the reference, so gradients are summed without
// scaling.
inline v1::RunPlan TinyPlan() {
  v1::RunPlan plan;
  plan.set_dataset("tiny");
  plan.set_dataset_digest("00");
  plan.set_train_samples(4);
  plan.set_test_samples(2);
  plan.set_loss_reference(4);
  return plan;
}

inline ServerOptions TinyOptions() {
  ServerOptions options;
  options.listen = "127.0.0.1:0";
  options.coordinator.workers = 2;
  options.coordinator.epochs = 1;
  options.coordinator.optimizer = {.kind = OptimizerKind::kSgd,
                                   .learning_rate = 0.5,
                                   .weight_decay = 0,
                                   .schedule = ScheduleKind::kConstant};
  options.leave_grace = absl::ZeroDuration();
  return options;
}

// A call with bytes that no generated stub would send.
class RawCall final
    : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // Sends `message`, if there is one, and closes its side. Returns how the call
  // ended; one that is answered is cancelled, as a watch never ends by itself.
  grpc::Status Run(const std::shared_ptr<grpc::Channel>& channel,
                   const std::string& method,
                   const std::optional<std::string>& message,
                   const std::string& authorization = "") {
    grpc::GenericStub stub(channel);
    SetDeadline(context_);
    if (!authorization.empty()) {
      context_.AddMetadata("authorization", authorization);
    }
    stub.PrepareBidiStreamingCall(&context_, method, {}, this);
    StartRead(&reply_);
    if (message.has_value()) {
      const grpc::Slice slice(*message);
      message_ = grpc::ByteBuffer(&slice, 1);
      StartWriteLast(&message_, grpc::WriteOptions());
    } else {
      StartWritesDone();
    }
    StartCall();
    return ended_->get_future().get();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    context_.TryCancel();
    StartRead(&reply_);
  }
  void OnDone(const grpc::Status& status) override {
    // The caller may destroy *this as soon as it has the value.
    const std::shared_ptr<std::promise<grpc::Status>> ended = ended_;
    ended->set_value(status);
  }

 private:
  grpc::ClientContext context_;
  grpc::ByteBuffer message_;
  grpc::ByteBuffer reply_;
  const std::shared_ptr<std::promise<grpc::Status>> ended_ =
      std::make_shared<std::promise<grpc::Status>>();
};

// Whether the server at `address` answers cohortctl.
inline grpc::Status StatusAt(const std::string& address) {
  const auto stub =
      v1::Admin::NewStub(MakeChannel(address, ChannelPurpose::kControl));
  TimedContext context;
  v1::Status status;
  return stub->GetStatus(&context, {}, &status);
}

class ServiceTest : public ::testing::Test {
 protected:
  void Start(const ServerOptions& options) {
    absl::StatusOr<std::unique_ptr<Server>> server = StartServer(options, out_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  // Two workers that have joined as ranks 0 and 1 and registered.
  void StartWithTwoWorkers(const ServerOptions& options,
                           const v1::ModelLayout& layout = TinyLayout()) {
    Start(options);
    AddTwoWorkers(layout);
  }

  void AddTwoWorkers(
      const v1::ModelLayout& layout,
      const std::vector<std::shared_ptr<grpc::ChannelCredentials>>& by_rank = {
          grpc::InsecureChannelCredentials(),
          grpc::InsecureChannelCredentials()}) {
    std::vector<RegisterCall> calls;
    for (int32_t rank : {0, 1}) {
      auto worker = std::make_unique<HandWorker>(
          server_->address(), by_rank[static_cast<size_t>(rank)]);
      ASSERT_TRUE(worker->Join(rank).ok());
      calls.push_back(worker->BeginRegister(layout, plan_));
      worker->batch_norm_calls.assign(
          static_cast<size_t>(layout.batch_norms_size()), 1);
      workers_.push_back(std::move(worker));
    }
    for (size_t i = 0; i < calls.size(); ++i) {
      ASSERT_TRUE(workers_[i]->FinishRegister(calls[i], kTinyValues).ok());
    }
    for (auto& worker : workers_) {
      const auto train = OkValue(worker->Await(v1::ASSIGNMENT_KIND_TRAIN));
      assignments_.push_back(train);
    }
  }

  // Reads the newest version: its header, and its weights.
  std::vector<v1::PullReply> PullWeights(HandWorker& worker) {
    v1::PullRequest request;
    request.set_run_id(server_->run_id());
    request.set_weights(true);
    std::vector<v1::PullReply> replies;
    EXPECT_TRUE(worker.Pull(request, replies).ok());
    EXPECT_GT(replies.size(), 1u);
    replies.resize(std::max<size_t>(replies.size(), 2));
    return replies;
  }
  // Both push to step 0, which commits version 1.
  void TrainOneStep() {
    for (size_t i = 0; i < 2; ++i) {
      exchanges_.push_back(workers_[i]->OpenExchange());
      workers_[i]->Push(exchanges_[i], assignments_[i],
                        i == 0 ? std::vector<float>{1, 2, 3, 4}
                               : std::vector<float>{1, 1, 1, 1});
    }
  }

  // The same in bfloat16. Only the first keeps the weights that it has read.
  void PushInBFloat16() {
    for (size_t i : {0, 1}) {
      HandWorker& worker = *workers_[i];
      exchanges_.push_back(worker.OpenExchange());
      v1::ExchangeRequest opening = worker.Opening(assignments_[i], 2);
      opening.mutable_opening()->set_takes_changes(i == 0);
      exchanges_[i].Write(opening);
      exchanges_[i].Write(worker.HalfGradient(assignments_[i], {1, 2, 3, 4}));
      exchanges_[i].Write(worker.Closing(assignments_[i], 1));
    }
  }

  // Reads until the verdict; weights go to `weights`.
  static v1::PushVerdict AwaitVerdict(ExchangeCall& exchange,
                                      std::vector<float>* weights = nullptr) {
    while (std::optional<v1::ExchangeReply> reply = exchange.Read()) {
      if (reply->has_verdict()) return reply->verdict();
      if (weights != nullptr) *weights = FloatsOf(reply->payload());
    }
    ADD_FAILURE() << "no verdict: " << exchange.End().error_message();
    return {};
  }

  std::string TemporaryFolder(const std::string& name) {
    const std::filesystem::path path =
        std::filesystem::path(::testing::TempDir()) /
        absl::StrCat(
            name, "-",
            ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(path);
    return path.string();
  }

  v1::RunPlan plan_ = TinyPlan();
  // Outlives the server, which writes to it.
  std::ostringstream out_;
  std::unique_ptr<Server> server_;
  std::vector<std::unique_ptr<HandWorker>> workers_;
  std::vector<v1::Assignment> assignments_;
  std::vector<ExchangeCall> exchanges_;
};

}  // namespace cohort
