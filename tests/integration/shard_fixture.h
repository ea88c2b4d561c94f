// A shard with its services over a real connection, in a time that the test
// decides.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "server/service/services.h"
#include "server/service/shard.h"
#include "tests/integration/hand_worker.h"
#include "tests/integration/service_fixture.h"

namespace cohort {

class MovedClock final : public Clock {
 public:
  Instant Now() const override {
    MutexLock lock(mu_);
    return now_;
  }
  void Advance(absl::Duration time) {
    MutexLock lock(mu_);
    now_ += time;
  }

 private:
  mutable Mutex mu_;
  Instant now_ ABSL_GUARDED_BY(mu_) = absl::Seconds(1);
};

class SilentListener : public RunListener {
 public:
  void OnCommitted(const CommitRecord&, const CommitObservation&) override {}
  void OnPolicyChanged(const PolicyRecord&) override {}
  void OnEvaluated(const EvaluationRecord&) override {}
  void OnLogged(const effect::Log&) override {}
  void OnCheckpoint(RunState) override {}
  void OnEnded(const effect::RunEnded&) override {}
  void OnFolded(absl::Duration) override {}
  void OnDrift(const std::vector<LayerDrift>&) override {}
};

// One worker alone is kept waiting by nobody.
inline ShardOptions TinyShardOptions(int32_t workers = 1) {
  ShardOptions options;
  options.coordinator = TinyOptions().coordinator;
  options.coordinator.workers = workers;
  options.coordinator.run_id = "run";
  options.coordinator.first_incarnation = Incarnation(1);
  return options;
}

class ShardServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    services_.push_back(MakeMembershipService(shard_));
    services_.push_back(MakeParametersService(shard_));
    services_.push_back(MakeMomentsService(shard_));
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    for (const auto& service : services_) {
      builder.RegisterService(service.get());
    }
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    address_ = absl::StrCat("127.0.0.1:", port);
    shard_.Start(address_);
  }
  void TearDown() override {
    shard_.CloseStreams();
    server_->Shutdown();
    shard_.Stop();
  }

  SilentListener listener_;
  MovedClock clock_;
  Shard shard_{TinyShardOptions(), nullptr, clock_, listener_};
  std::vector<std::unique_ptr<grpc::Service>> services_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace cohort
