// Attaches to a data shard by hand, as its first server does.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "cohort/v1/data_shard.grpc.pb.h"
#include "common/wire/message_checksum.h"

namespace cohort {

class AttachCall {
 public:
  AttachCall(const std::string& address,
             const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    grpc::ChannelArguments arguments;
    // With encryption, the name in the certificate.
    arguments.SetSslTargetNameOverride("localhost");
    stub_ = v1::DataShards::NewStub(
        grpc::CreateCustomChannel(address, credentials, arguments));
    context_.set_deadline(std::chrono::system_clock::now() +
                          std::chrono::seconds(60));
    stream_ = stub_->Attach(&context_);
  }

  // As shard 0 of run "run", for shard 1 of 2. False if it is refused.
  bool Attach(int64_t generation) {
    v1::ShardCommand command;
    v1::AttachShard* attach = command.mutable_attach();
    attach->set_run_id("run");
    attach->set_run_name("demo");
    attach->set_generation(generation);
    attach->set_shard(1);
    attach->set_shards(2);
    attach->set_workers(1);
    AddMessageChecksum(&command);
    stream_->Write(command);
    v1::ShardReport report;
    return stream_->Read(&report) && report.attached();
  }

  grpc::Status End() { return stream_->Finish(); }
  void Close() {
    context_.TryCancel();
    stream_->Finish();
  }

 private:
  std::unique_ptr<v1::DataShards::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ShardCommand, v1::ShardReport>>
      stream_;
};

}  // namespace cohort
