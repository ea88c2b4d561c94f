// The data shards in other processes.

#include <utility>
#include <vector>

#include "server/core/data/shard_commands.h"
#include "server/shard/shard.h"

namespace cohort {

void Shard::SendToShards(std::vector<ShardCommands::Command> commands) {
  for (ShardCommands::Command& to : commands) {
    options_.data_shards[static_cast<size_t>(to.shard) - 1]->Send(
        std::move(to.command));
  }
}

void Shard::TellShards(const Effect& effect) {
  SendToShards(commands_.Of(effect, [this] {
    MutexLock lock(mu_);
    return core_.HeldVersions();
  }));
}

void Shard::RemoteArrived(int32_t shard, RemoteGradient gradient) {
  const Rank rank = gradient.sender.rank;
  {
    MutexLock lock(mu_);
    remote_.Add(shard, std::move(gradient));
  }
  OfferRemote(rank);
}

void Shard::RemoteFolded(int32_t shard, FoldReport report) {
  const SharedModel model = this->model();
  const bool known =
      model != nullptr && report.partition >= 0 &&
      static_cast<size_t>(report.partition) < model->partitions.size() &&
      ShardPlace::OwnerOf(report.partition, shards()) == shard;
  if (!known) return;
  FoldedRemotely(std::move(report));
}

}  // namespace cohort
