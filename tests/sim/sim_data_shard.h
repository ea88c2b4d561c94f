#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "common/clock.h"
#include "common/float_buffer.h"
#include "common/ids.h"
#include "common/push.h"
#include "server/core/model/commands.h"
#include "server/partitions/partitions_host.h"
#include "tests/sim/shard_network.h"
#include "tests/sim/sim_server.h"

namespace cohort::sim {

// One process of a data shard: the product's PartitionsHost between simulated
// streams, with folds that take a while.
class SimDataShard {
 public:
  SimDataShard(World world, int32_t index, int64_t process);
  // The process is killed.
  ~SimDataShard();
  SimDataShard(const SimDataShard&) = delete;
  SimDataShard& operator=(const SimDataShard&) = delete;

  int32_t index() const { return index_; }
  int64_t process() const { return process_; }

  // ---- shard 0
  void Attach(const SharedLink& link);
  void Install(const SharedLink& link, const Installation& installation);
  void Command(const SharedLink& link, ShardCommand command);
  void OnLinkEnd(const SharedLink& link);
  // It is asked to stop. It stays while shard 0 is connected.
  void Leave() { host_.Leave(); }
  bool connected() { return host_.figures().connected; }
  void Fetch(int32_t generation, Version version, PartitionsHost::OnRead done);

  // ---- workers
  void Gradient(const SharedConnection& connection, const Sender& sender,
                const PushKey& key, const ReceivedGradient& message);
  void OnWorkerClosed(const SharedConnection& connection);
  void Read(int32_t generation, Version version, PartitionsHost::OnRead done);

 private:
  class SimClock;
  class LinkEnd;
  class WorkerStream;

  // Calls the host, and then ends the streams that it has ended, in the order
  // of their opening: the host's depends on addresses.
  template <typename Call>
  auto Handle(Call call);
  void EndStreams();
  // The answer to what came over `link`.
  void Check(const SharedLink& link, const absl::Status& status);
  void Resume(WorkerStream& stream);
  void StartFold(const FoldJob& job, PartitionsHost::OnFolded done);
  void EndFold(int64_t number);
  // A version is gone that shard 0 still reads.
  void CheckRead(Version version, const absl::Status& status);

  World world_;
  const int32_t index_;
  const int64_t process_;
  bool dead_ = false;
  // Of the link that was attached last.
  int32_t generation_ = 0;
  SharedLink link_;
  int64_t next_stream_ = 1;
  // Those to be ended, by number.
  std::map<int64_t, std::shared_ptr<WorkerStream>> ending_;

  struct Fold {
    FoldResult result;
    PartitionsHost::OnFolded done;
  };
  int64_t next_fold_ = 1;
  std::map<int64_t, Fold> folds_;
  FloatBufferPool pool_;
  const std::unique_ptr<SimClock> clock_;
  PartitionsHost host_;
};

}  // namespace cohort::sim
