#pragma once

#include <grpcpp/channel.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/security/tls_files.h"
#include "common/wire/shared_security.h"
#include "worker/client/link.h"

namespace cohort {

// The way to one data shard.
struct ShardChannel {
  std::string address;
  std::shared_ptr<grpc::Channel> channel;
};

// Channels to the data shards of a run, by address. Each is made once, so that
// pulls and pushes share a connection.
// Thread safety: none.
class ShardChannels {
 public:
  explicit ShardChannels(SharedSecurity security)
      : security_(std::move(security)) {}

  // Connects on first use.
  std::shared_ptr<grpc::Channel> To(const std::string& address);
  // Opens new connections from now on; open streams keep theirs.
  void Clear() { channels_.clear(); }

  // Connects to the data shards from shard 1 on, and returns once all can be
  // reached and serve the run, each as the shard that it is taken for, or the
  // run is over.
  // `on_wait` receives at intervals which one does not, and why. `tls` are the
  // files behind the security, for finding out why.
  // Errors: Unavailable: one is not there until `deadline`; those of
  //   Link::Check.
  absl::Status AwaitAll(const std::string& run_id,
                        const std::vector<std::string>& addresses,
                        const TlsFiles& tls, Link& link, Instant deadline,
                        const std::function<void(const std::string&)>& on_wait);

 private:
  const SharedSecurity security_;
  std::map<std::string, std::shared_ptr<grpc::Channel>> channels_;
};

}  // namespace cohort
