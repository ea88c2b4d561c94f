// The shards: that of this process and those in others.

#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "server/core/run_state.h"
#include "server/shard/shard.h"

namespace cohort {

void Shard::Install(int32_t shard, const SharedModel& model,
                    const SharedSnapshot& whole,
                    const SettingValues& settings) {
  links_[static_cast<size_t>(shard)]->Install(InstallationOf(
      {.index = shard, .count = shards()}, model, whole, settings));
}

SharedSnapshot Shard::WithWeights(const SharedVersion& version) const {
  const SharedSnapshot here = host_.Held(version->version);
  if (here == nullptr) return nullptr;
  std::shared_ptr<ModelSnapshot> snapshot = SnapshotOf(version);
  snapshot->weights = here->weights;
  snapshot->slots = here->slots;
  return snapshot;
}

RunState Shard::WithWeights(RunState state) const {
  state.snapshot = WithWeights(state.snapshot->pin);
  COHORT_CHECK(state.snapshot != nullptr, "the version is not here");
  return FittedToSettings(std::move(state));
}

absl::StatusOr<SharedSnapshot> Shard::AwaitWeights(
    const SharedVersion& version) {
  SharedSnapshot whole = WithWeights(version);
  if (whole != nullptr) return whole;
  absl::Status status;
  absl::Notification come;
  host_.Read({.run_id = run_id()}, version->version,
             [&](const absl::StatusOr<SharedSnapshot>& read) {
               status = read.status();
               come.Notify();
             });
  come.WaitForNotification();
  COHORT_RETURN_IF_ERROR(status);
  return WithWeights(version);
}

void Shard::Arrived(int32_t shard, RemoteGradient gradient) {
  // The run is over and this server alone, but for telling the data shards.
  if (shard >= shards()) return;
  const Rank rank = gradient.sender.rank;
  {
    MutexLock lock(mu_);
    arrived_.Add(shard, std::move(gradient), clock_.Now());
  }
  Offer(rank);
}

void Shard::OfferOverdue() {
  std::vector<Rank> overdue;
  {
    MutexLock lock(mu_);
    overdue = arrived_.Overdue(clock_.Now());
  }
  for (Rank rank : overdue) Offer(rank);
}

absl::Status Shard::CheckFold(int32_t shard, const FoldReport& report) const {
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

void Shard::NoteCommit(const command::Commit& commit) {
  if (options_.shard_stats == nullptr) return;
  const std::vector<ShardStats::Prepared> shards =
      options_.shard_stats->Committed(commit.transaction);
  if (host_.trace() == nullptr) return;
  for (const ShardStats::Prepared& one : shards) {
    host_.trace()->Prepared(one, commit.version);
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
