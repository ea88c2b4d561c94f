// The data shards in other processes.

#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/core/data/shard_commands.h"
#include "server/shard/shard.h"

namespace cohort {

void Shard::SendToShards(std::vector<ShardCommands::Command> commands) {
  for (ShardCommands::Command& to : commands) {
    options_.data_shards[static_cast<size_t>(to.shard) - 1]->Send(
        std::move(to.command));
  }
}

std::vector<ShardCommands::Command> Shard::CommandsOf(const Effect& effect) {
  // Before they can answer.
  const auto* const prepare = std::get_if<effect::Prepare>(&effect);
  if (prepare != nullptr && options_.shard_stats != nullptr) {
    options_.shard_stats->Planned(prepare->plan.transaction);
  }
  return commands_.Of(effect, [this] {
    MutexLock lock(mu_);
    return core_.HeldVersions();
  });
}

void Shard::RemoteArrived(int32_t shard, RemoteGradient gradient) {
  // The run is over and this server alone, but for telling the data shards.
  if (shard >= shards()) return;
  const Rank rank = gradient.sender.rank;
  {
    MutexLock lock(mu_);
    remote_.Add(shard, std::move(gradient));
  }
  OfferRemote(rank);
}

absl::Status Shard::RemoteFolded(int32_t shard, FoldReport report) {
  const SharedModel model = this->model();
  const bool own =
      model != nullptr && report.partition >= 0 &&
      static_cast<size_t>(report.partition) < model->partitions.size() &&
      ShardPlace::OwnerOf(report.partition, shards()) == shard;
  if (!own) {
    return absl::InvalidArgumentError(
        absl::StrCat("it has folded partition ", report.partition,
                     ", which is not one of its own"));
  }
  const auto partition = static_cast<size_t>(report.partition);
  const size_t slices = model->partitions[partition].slices.size();
  if (!report.norms.empty() && report.norms.size() != slices) {
    return absl::InvalidArgumentError(absl::StrCat(
        "it has sent ", report.norms.size(), " norms of partition ",
        report.partition, ", which has ", slices, " slices"));
  }
  NoteFold(shard, report);
  FoldWith([&report](DataShard& data) {
    std::vector<FoldJob> next;
    data.FoldedElsewhere(report, next);
    return next;
  });
  Report(std::move(report));
  return absl::OkStatus();
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
