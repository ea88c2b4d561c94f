// The data shards in other processes.

#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/shard/fault.h"
#include "server/shard/shard.h"

namespace cohort {

void Shard::SendToShards(const ShardCommand& command) {
  for (DataLink* link : options_.data_shards) link->Send(command);
}

bool Shard::SendToOwner(int32_t partition, ShardCommand command) {
  const int32_t owner = ShardPlace::OwnerOf(partition, shards());
  if (owner == 0) return false;
  options_.data_shards[static_cast<size_t>(owner) - 1]->Send(
      std::move(command));
  return true;
}

void Shard::InstallShards(const SharedModel& model,
                          const SharedSnapshot& snapshot,
                          const SettingValues& settings) {
  for (int32_t i = 1; i < shards(); ++i) {
    const ShardPlace place{.index = i, .count = shards()};
    SharedSnapshot part = PartOf(snapshot, place);
    if (part->slots.empty()) {
      auto fitted = std::make_shared<ModelSnapshot>(*part);
      fitted->slots.resize(part->weights.size());
      part = std::move(fitted);
    }
    options_.data_shards[static_cast<size_t>(i) - 1]->Send(
        shard_command::Install{.place = place,
                               .model = model,
                               .snapshot = std::move(part),
                               .settings = settings});
  }
  installed_ = true;
}

std::vector<Version> Shard::HeldVersions() {
  MutexLock lock(mu_);
  return core_.HeldVersions();
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
  const auto partition = static_cast<size_t>(report.partition);
  const size_t slices = model->partitions[partition].slices.size();
  if (!report.norms.empty() && report.norms.size() != slices) return;
  FoldWith([&report](DataShard& data) {
    std::vector<FoldJob> next;
    data.FoldedElsewhere(report, next);
    return next;
  });
  Report(std::move(report));
}

void Shard::ScaleAtShards(const FoldReport& report) {
  if (!report.scales.has_value()) return;
  SendToShards(shard_command::Scale{.transaction = report.transaction,
                                    .scales = *report.scales});
}

}  // namespace cohort
