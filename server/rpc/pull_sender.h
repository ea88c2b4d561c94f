#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/float_buffer.h"
#include "common/ids.h"
#include "server/partitions/pull_table.h"
#include "server/partitions/service_counters.h"
#include "server/rpc/queued_writes.h"
#include "server/streams/stream_registry.h"

namespace cohort {

// Sends the weights of one version, a partition at a time and in its turn,
// directly from the model's memory. Holds only the weights, because optimizer
// slots can be several times as large.
class PullSender
    : public QueuedWrites<grpc::ServerWriteReactor<grpc::ByteBuffer>,
                          grpc::ByteBuffer, PullStream> {
 public:
  // The arguments must outlive the stream.
  PullSender(StreamRegistry& registry, PullTable& pulls,
             ServiceCounters& counters, const Clock& clock)
      : QueuedWrites(registry),
        pulls_(pulls),
        counters_(counters),
        clock_(clock) {}

  // Its turns come one after the other, each after the write before.
  void SendPartition() override;

 protected:
  void OnGone() override;
  absl::Duration ReaderPatience() const override { return absl::Seconds(15); }
  void OnQueueEmpty() override;

  // Call it before the first write. Errors: those of PullTable::Admit.
  absl::Status TakePlace(const std::string& connection, Version version);

  // By partition; null: another shard sends it. Fixed before the first write.
  std::vector<SharedFloats> weights_;

 private:
  static void GiveTurns(const PullTable::Turns& turns);

  PullTable& pulls_;
  ServiceCounters& counters_;
  const Clock& clock_;
  // Used by the first reaction and in its turns, which the table orders.
  size_t next_ = 0;
};

// The name of a call's connection. Empty for a process of this machine that
// came through a Unix socket: gRPC has the same name for all of them.
std::string ConnectionOf(const grpc::CallbackServerContext& context);

}  // namespace cohort
