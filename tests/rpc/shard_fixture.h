// A shard with its services over a real connection, with time controlled by the
// test.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/rpc/call_counts.h"
#include "server/rpc/call_interceptor.h"
#include "server/rpc/services.h"
#include "server/run/run_host.h"
#include "tests/rpc/hand_worker.h"
#include "tests/run_host/run_host_fakes.h"

namespace cohort {

class ShardServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    services_.push_back(MakeMembershipService(shard_, counts_, {}));
    services_.push_back(MakeParametersService(shard_, counts_, nullptr));
    services_.push_back(MakeMomentsService(shard_, counts_));
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
  CallCounts counts_{CoordinatorMethods(), clock_};
  RunHost shard_{TinyRunHostOptions(), nullptr, clock_, listener_};
  std::vector<std::unique_ptr<grpc::Service>> services_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace cohort
