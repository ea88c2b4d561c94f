#include "server/rpc/data_shard_client.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cohort/v1/data_shard.grpc.pb.h"
#include "common/wire/message_checksum.h"

namespace cohort {
namespace {

// A data shard that leaves as it is attached to, the first time.
class LeavingShard final : public v1::DataShards::Service {
 public:
  int attached() const { return attached_; }

  grpc::Status Attach(
      grpc::ServerContext* /*context*/,
      grpc::ServerReaderWriter<v1::ShardReport, v1::ShardCommand>* stream)
      override {
    v1::ShardCommand command;
    if (!stream->Read(&command)) return grpc::Status::OK;
    v1::ShardReport report;
    if (attached_++ == 0) {
      report.set_leaving(true);
    } else {
      report.set_attached(true);
    }
    AddMessageChecksum(&report);
    stream->Write(report);
    while (stream->Read(&command)) continue;
    return grpc::Status::OK;
  }

 private:
  std::atomic<int> attached_ = 0;
};

TEST(DataShardClientTest, OneThatLeavesAsItIsAttachedToIsWaitedFor) {
  LeavingShard shard;
  grpc::ServerBuilder builder;
  builder.RegisterService(&shard);
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  DataShardClient* client = nullptr;
  DataShardClient attaching({.address = absl::StrCat("127.0.0.1:", port)},
                            {.on_gradient = nullptr,
                             .on_fold = nullptr,
                             // As the server does before all are attached.
                             .on_leaving = [&client] { client->Release(); },
                             .on_end = [](const absl::Status& /*why*/) {}});
  client = &attaching;
  EXPECT_EQ(
      attaching.Attach([](const std::string& /*why*/) {}, [] { return false; }),
      absl::OkStatus());
  EXPECT_EQ(shard.attached(), 2);
}

}  // namespace
}  // namespace cohort
