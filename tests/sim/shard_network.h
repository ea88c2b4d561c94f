#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/permutation.h"
#include "server/core/model/model_snapshot.h"
#include "server/partitions/partitions_host.h"
#include "tests/sim/network.h"
#include "tests/sim/scheduler.h"

namespace cohort::sim {

class SimDataShard;

// The connection from one process of shard 0 to one process of a data shard.
// Each direction delivers in order.
struct ShardLink {
  int32_t shard = 0;
  // That of shard 0's process.
  int32_t generation = 0;
  // The data shard's process.
  int64_t process = 0;
  // Messages on their way do not arrive.
  bool cut = false;
  // Nothing more is sent.
  bool closed = false;
  Instant to_shard;
  Instant to_server;
  // The data shard's side; null before it is attached.
  std::shared_ptr<CoordinatorStream> end;
};

using SharedLink = std::shared_ptr<ShardLink>;

// Carries messages between shard 0 and the data shards, and between these and
// the workers, with delays. Data shards count from 1.
class ShardNetwork {
 public:
  using MaybeSnapshot = absl::StatusOr<SharedSnapshot>;
  using ShardEvent = absl::AnyInvocable<void(SimDataShard&)>;
  using ServerEvent = Network::ServerEvent;
  using WorkerEvent = Network::WorkerEvent;

  ShardNetwork(Scheduler& scheduler, SplitMix64& random, Network& network,
               int32_t shards)
      : scheduler_(scheduler),
        random_(random),
        network_(network),
        shards_(static_cast<size_t>(shards) - 1) {}

  int32_t shards() const { return static_cast<int32_t>(shards_.size()) + 1; }
  // The process of shard 0 that runs from now on, or null if it is gone. Its
  // links break; data shards get no notice of some of them for a long time.
  void SetServer(SimServer* server, int32_t generation);
  // The process of a data shard, or null if it is gone. What is connected to
  // it breaks.
  void SetShard(int32_t index, SimDataShard* shard);

  // ---- between shard 0 and a data shard
  // Null if the data shard is not there.
  SharedLink Connect(int32_t index);
  void ToShard(const SharedLink& link, ShardEvent event);
  void ToServer(const SharedLink& link, ServerEvent event);
  // The data shard has ended it.
  void EndFromShard(const SharedLink& link);
  // Shard 0 has ended it.
  void EndFromServer(const SharedLink& link);
  // The network loses the newest link to a data shard, which notices after
  // `unnoticed`.
  void Break(int32_t index, absl::Duration unnoticed);
  // A call over a separate connection.
  void Fetch(int32_t index, Version version,
             absl::AnyInvocable<void(SimServer&, MaybeSnapshot)> answer);
  // Runs an event in the present process of shard 0, if it still runs then.
  void OnServer(absl::Duration delay, ServerEvent event);
  // The same for a process of a data shard.
  void OnShard(int32_t index, int64_t process, absl::Duration delay,
               ShardEvent event);

  // ---- between workers and a data shard
  void ToShard(const SharedConnection& connection, int32_t index,
               ShardEvent event);
  void ToWorker(const SharedConnection& connection, int32_t index,
                WorkerEvent event);
  void EndFromShard(const SharedConnection& connection, int32_t index);
  void Break(const SharedConnection& connection, int32_t index);
  // The worker has closed it; what was sent still arrives.
  void CloseFromWorker(const SharedConnection& connection);
  void Read(const SharedConnection& connection, int32_t index, Version version,
            absl::AnyInvocable<void(SimWorker&, MaybeSnapshot)> answer);

  // The process of shard 0, if it has this generation.
  SimServer* Server(int32_t generation) const {
    return generation == generation_ ? server_ : nullptr;
  }

 private:
  SimDataShard* Shard(int32_t index) const {
    return shards_[static_cast<size_t>(index) - 1];
  }
  // Null if another process has taken its place.
  SimDataShard* Shard(int32_t index, int64_t process) const;
  void TellServer(const SharedLink& link, absl::Duration delay);
  void TellShard(const SharedLink& link, absl::Duration delay);
  // Mostly soon.
  absl::Duration Notice();

  Scheduler& scheduler_;
  SplitMix64& random_;
  Network& network_;
  SimServer* server_ = nullptr;
  int32_t generation_ = 0;
  std::vector<SimDataShard*> shards_;
  // Open ones.
  std::vector<SharedLink> links_;
};

}  // namespace cohort::sim
