#include "common/wire/channel.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cohort/v1/membership.grpc.pb.h"

namespace cohort {
namespace {

std::unique_ptr<grpc::Server> Listen(grpc::Service& service, int wanted_port,
                                     int* port) {
  grpc::ServerBuilder builder;
  ApplyServerSettings(builder);
  builder.AddListeningPort(absl::StrCat("127.0.0.1:", wanted_port),
                           grpc::InsecureServerCredentials(), port);
  builder.RegisterService(&service);
  return builder.BuildAndStart();
}

// Answers a report with its length.
class ReportLength final : public v1::Membership::Service {
  grpc::Status Report(grpc::ServerContext*, const v1::ReportRequest* request,
                      v1::ReportReply* reply) override {
    reply->mutable_next()->set_sequence(
        static_cast<int64_t>(request->sender().run_id().size()));
    return grpc::Status::OK;
  }
};

// Where Abseil checks the order of locks, it ends the process at the second
// order.
TEST(ProcessSettingsTest, LocksMayBeTakenInAnyOrder) {
  ApplyProcessSettings();
  absl::Mutex a;
  absl::Mutex b;
  int orders = 0;
  {
    absl::MutexLock first(&a);
    absl::MutexLock second(&b);
    ++orders;
  }
  {
    absl::MutexLock first(&b);
    absl::MutexLock second(&a);
    ++orders;
  }
  EXPECT_EQ(orders, 2);
}

TEST(ProcessSettingsTest, KeepWhatTheEnvironmentSays) {
  setenv("GRPC_EXPERIMENTS", "", 1);
  ApplyProcessSettings();
  EXPECT_STREQ(getenv("GRPC_EXPERIMENTS"), "");
  unsetenv("GRPC_EXPERIMENTS");
  ApplyProcessSettings();
  EXPECT_THAT(getenv("GRPC_EXPERIMENTS"), testing::HasSubstr("tcp_rcv_lowat"));
}

TEST(LookaheadTest, IsAShareOfTheLimitWithinBounds) {
  constexpr int64_t kMib = 1 << 20;
  EXPECT_EQ(LookaheadBytes(32 * kMib, 2), 8 * kMib);
  EXPECT_EQ(LookaheadBytes(4096 * kMib, 4), 64 * kMib);
  EXPECT_EQ(LookaheadBytes(1, 1000), 64 << 10);
}

TEST(ReadChunkTest, ShrinksWithTheNumberOfConnections) {
  EXPECT_EQ(ReadChunkFor(2).first_bytes, 1 << 20);
  EXPECT_EQ(ReadChunkFor(64).first_bytes, 1 << 20);
  EXPECT_EQ(ReadChunkFor(64).bytes_max, 4 << 20);
  EXPECT_EQ(ReadChunkFor(1024).first_bytes, 64 << 10);
  EXPECT_EQ(ReadChunkFor(1024).bytes_max, 256 << 10);
  // An elastic cohort of the largest size.
  EXPECT_EQ(ReadChunkFor(4096).first_bytes, 16 << 10);
}

TEST(ChannelTest, SecondServerCannotTakeThePort) {
  ReportLength first_service;
  int port = 0;
  const auto first = Listen(first_service, 0, &port);
  ASSERT_NE(first, nullptr);
  ReportLength second_service;
  int second_port = 0;
  EXPECT_EQ(Listen(second_service, port, &second_port), nullptr);
}

// gRPC's own limit, 4 MiB, would refuse a big model's layout.
TEST(ChannelTest, EveryPurposeCarriesMessagesAboveTheDefaultLimit) {
  ReportLength service;
  int port = 0;
  const auto server = Listen(service, 0, &port);
  ASSERT_NE(server, nullptr);
  const std::string address = absl::StrCat("127.0.0.1:", port);
  constexpr size_t kBytes = 9 << 20;
  for (ChannelPurpose purpose :
       {ChannelPurpose::kControl, ChannelPurpose::kMoments,
        ChannelPurpose::kBulk}) {
    const auto stub = v1::Membership::NewStub(MakeChannel(address, purpose));
    grpc::ClientContext context;
    v1::ReportRequest request;
    request.mutable_sender()->set_run_id(std::string(kBytes, 'x'));
    v1::ReportReply reply;
    const grpc::Status status = stub->Report(&context, request, &reply);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(reply.next().sequence(), static_cast<int64_t>(kBytes));
  }
}

TEST(ChannelTest, CompressedMessagesAreRefused) {
  ReportLength service;
  int port = 0;
  const auto server = Listen(service, 0, &port);
  ASSERT_NE(server, nullptr);
  const auto stub = v1::Membership::NewStub(grpc::CreateChannel(
      absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  v1::ReportRequest request;
  request.mutable_sender()->set_run_id(std::string(1 << 20, 'x'));
  v1::ReportReply reply;
  EXPECT_EQ(stub->Report(&context, request, &reply).error_code(),
            grpc::UNIMPLEMENTED);
}

}  // namespace
}  // namespace cohort
