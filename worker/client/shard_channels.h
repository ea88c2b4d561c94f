#pragma once

#include <grpcpp/channel.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "common/wire/channel.h"
#include "common/wire/shared_security.h"

namespace cohort {

// Channels to the data shards of a run, by address. Each is made once, so that
// pulls and pushes share a connection.
// Thread safety: none.
class ShardChannels {
 public:
  explicit ShardChannels(SharedSecurity security)
      : security_(std::move(security)) {}

  // Connects on first use.
  std::shared_ptr<grpc::Channel> To(const std::string& address) {
    std::shared_ptr<grpc::Channel>& channel = channels_[address];
    if (channel == nullptr) {
      channel = MakeChannel(address, ChannelPurpose::kBulk, security_);
    }
    return channel;
  }
  // Connects anew from now on; streams that are open keep their connection.
  void Clear() { channels_.clear(); }

 private:
  const SharedSecurity security_;
  std::map<std::string, std::shared_ptr<grpc::Channel>> channels_;
};

}  // namespace cohort
