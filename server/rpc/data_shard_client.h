#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/security/tls_files.h"
#include "common/wire/bidi_stream.h"
#include "common/wire/shared_security.h"
#include "server/core/model/commands.h"
#include "server/partitions/partitions_host.h"
#include "server/partitions/partitions_link.h"
#include "server/partitions/shard_connection.h"

namespace cohort {

// Shard 0's connection to one data shard.
// Thread safety: safe, except that Attach comes first and Close last.
class DataShardClient final : public PartitionsLink {
 public:
  struct Options {
    // host:port or a Unix socket.
    std::string address;
    // Plaintext if null.
    SharedSecurity security;
    // The files behind it, for finding out why there is no connection.
    TlsFiles tls;
    ShardAttachment attachment;
    // See ShardConnection.
    int silent_checks_max = 10;
  };
  // On gRPC's threads; must not block.
  struct Reactions {
    std::function<void(RemoteGradient)> on_gradient;
    // An error ends the connection.
    std::function<absl::Status(FoldReport)> on_fold;
    // The data shard was asked to stop. It does once the connection is
    // over.
    std::function<void()> on_leaving;
    // The connection is over: what the data shard held is lost.
    std::function<void(const absl::Status&)> on_end;
  };

  DataShardClient(Options options, Reactions reactions);
  ~DataShardClient() override;

  // Connects, and waits until the data shard is there and has taken the
  // attachment. `on_wait` gets the reason if that takes more than a
  // second, and again when it changes. `give_up` is called at least every few
  // seconds; both must not block.
  // Errors: those of DataShards.Attach but Unavailable, after which it tries
  //   again; Cancelled: give_up said true. on_end is not called.
  absl::Status Attach(const std::function<void(const std::string&)>& on_wait,
                      const std::function<bool()>& give_up)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Ends the connection if the data shard has been silent for too long, though
  // it is open: a process that hangs, or a network that swallows everything.
  // Call it every second, after Attach and before Close. Counting calls, a
  // pause of this process is not taken for one of the data shard.
  void CheckAlive() ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the connection, as if it was lost.
  void Release() { stream_->Cancel(); }

  void Install(Installation installation) override;
  void Send(ShardCommand command) override;
  // Weights and slots of the shard's partitions at a version that is held, into
  // `into`, whose lists have an entry a partition. Blocks.
  // Errors: those of DataShards.Fetch; Unavailable: the connection is over.
  absl::Status Fetch(Version version, const RegisteredModel& model,
                     ModelSnapshot& into) ABSL_LOCKS_EXCLUDED(mu_);
  // Tells the data shard that the run is over. AwaitEnd waits until it knows,
  // for two seconds at most.
  void EndRun() ABSL_LOCKS_EXCLUDED(mu_);
  void AwaitEnd() ABSL_LOCKS_EXCLUDED(mu_);
  // Disconnects. No reaction comes afterwards, and what is sent is dropped.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Stream = BidiStream<grpc::ByteBuffer, grpc::ByteBuffer>;

  // Connects once. Returns false if it was asked to give up.
  bool TryAttach(const std::function<void(const std::string&)>& on_wait,
                 const std::function<bool()>& give_up) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for a moment unless the attempt is settled, and returns whether it
  // is.
  bool AwaitSettled() ABSL_LOCKS_EXCLUDED(mu_);
  // Fetches from a data shard that hangs would not end by themselves.
  void CancelFetchesLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // "data shard 1 at HOST:PORT".
  std::string name() const;
  absl::Status OnMessage(grpc::ByteBuffer& bytes) ABSL_LOCKS_EXCLUDED(mu_);
  void OnEnd(const absl::Status& end) ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  const Reactions reactions_;
  const std::shared_ptr<grpc::Channel> channel_;
  grpc::GenericStub stub_;
  const SteadyClock clock_;

  // Used by Attach only: when to find out why there is no answer, and what
  // was reported of it last.
  Instant look_at_;
  std::string told_;

  Mutex mu_;
  CondVar changed_;
  ShardConnection connection_ ABSL_GUARDED_BY(mu_);
  // The contexts of calls in progress.
  std::set<grpc::ClientContext*> fetches_ ABSL_GUARDED_BY(mu_);

  // Last, so that it is destroyed before the members that its reactions use.
  // Made by Attach.
  std::unique_ptr<Stream> stream_;
};

}  // namespace cohort
