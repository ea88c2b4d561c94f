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
  NoteFold(shard, report);
  FoldedRemotely(std::move(report));
}

void Shard::NoteFold(int32_t shard, const FoldReport& report) {
  if (options_.shard_stats == nullptr) return;
  options_.shard_stats->Folded(shard, report.transaction);
}

void Shard::NoteCommit(const effect::Commit& commit) {
  if (options_.shard_stats == nullptr) return;
  const std::vector<ShardStats::Prepared> shards =
      options_.shard_stats->Committed(commit.transaction);
  if (trace_ == nullptr) return;
  for (const ShardStats::Prepared& one : shards) {
    trace_->Prepared(one, commit.version);
  }
}

void Shard::DescribeWaiting(StatusView& view) const {
  if (options_.shard_stats == nullptr || view.ended) return;
  std::string waiting = options_.shard_stats->WaitingText();
  if (waiting.empty()) return;
  view.state = std::move(waiting);
  view.phase = StatusView::Phase::kWaiting;
  // Whatever workers do, it is not they who are waited for.
  view.waited_for.clear();
  view.waiting = absl::ZeroDuration();
}

std::vector<ShardFigures> Shard::shard_figures() const {
  if (options_.shard_stats == nullptr) return {};
  return options_.shard_stats->figures(model().get());
}

}  // namespace cohort
