// The data shards in other processes.

#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
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
    remote_.Add(shard, std::move(gradient), clock_.Now());
  }
  OfferRemote(rank);
}

void Shard::OfferOverdue() {
  std::vector<Rank> overdue;
  {
    MutexLock lock(mu_);
    overdue = remote_.Overdue(clock_.Now());
  }
  for (Rank rank : overdue) OfferRemote(rank);
}

absl::Status Shard::CheckRemoteFold(int32_t shard,
                                    const FoldReport& report) const {
  const SharedModel model = this->model();
  const auto owns = [&](int32_t partition) {
    return model != nullptr && partition >= 0 &&
           static_cast<size_t>(partition) < model->partitions.size() &&
           ShardPlace::OwnerOf(partition, shards()) == shard;
  };
  if (!owns(report.partition)) {
    return absl::InvalidArgumentError(
        absl::StrCat("it has folded partition ", report.partition,
                     ", which is not one of its own"));
  }
  const size_t slices =
      model->partitions[static_cast<size_t>(report.partition)].slices.size();
  if (!report.norms.empty() && report.norms.size() != slices) {
    return absl::InvalidArgumentError(absl::StrCat(
        "it has sent ", report.norms.size(), " norms of partition ",
        report.partition, ", which has ", slices, " slices"));
  }
  const std::optional<NonfiniteGradient>& nonfinite = report.nonfinite;
  if (nonfinite.has_value() &&
      (nonfinite->partition != report.partition || nonfinite->slice < 0 ||
       static_cast<size_t>(nonfinite->slice) >= slices)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "it has found a value that is not finite in slice ", nonfinite->slice,
        " of partition ", nonfinite->partition, ", which it does not have"));
  }
  MutexLock lock(mu_);
  return core_.CheckFolded(report);
}

absl::Status Shard::RemoteFolded(int32_t shard, FoldReport report) {
  COHORT_RETURN_IF_ERROR(CheckRemoteFold(shard, report));
  NoteFold(shard, report);
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
  if (options_.shard_stats == nullptr) return;
  std::string waiting = options_.shard_stats->WaitingText();
  if (waiting.empty() || view.ended) return;
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
