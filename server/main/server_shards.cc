// Shard 0's connections to the data shards.

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/log/log.h"
#include "common/status_macros.h"
#include "server/main/server.h"

namespace cohort {

void Server::MakeDataShards() {
  const CoordinatorOptions& run = options_.coordinator;
  for (int32_t i = 1; i < run.shards; ++i) {
    data_shards_.push_back(std::make_unique<DataShardClient>(
        DataShardClient::Options{
            .address = options_.shard_addresses[static_cast<size_t>(i) - 1],
            .security = security_->security(),
            .attachment = {.run_id = run.run_id,
                           .run_name = run.run_name,
                           // On disk before anything is told of it.
                           .generation = run.first_incarnation.value(),
                           .place = {.index = i, .count = run.shards},
                           .workers = run.workers}},
        DataShardClient::Reactions{
            .on_gradient =
                [this, i](RemoteGradient gradient) {
                  shard_->RemoteArrived(i, std::move(gradient));
                },
            .on_fold =
                [this, i](FoldReport report) {
                  shard_->RemoteFolded(i, std::move(report));
                },
            .on_end = [this](const absl::Status& why) { OnShardLost(why); }}));
  }
}

absl::Status Server::AttachDataShards() {
  for (size_t i = 0; i < data_shards_.size(); ++i) {
    COHORT_RETURN_IF_ERROR(data_shards_[i]->Attach([this, i] {
      Log(LogLevel::kWarning,
          absl::StrCat("waiting for data shard ", i + 1, " at ",
                       options_.shard_addresses[i],
                       "; start cohort-server --data_shard there"));
    }));
  }
  if (!data_shards_.empty()) {
    Log(LogLevel::kInfo,
        absl::StrCat("the model is shared among ", data_shards_.size() + 1,
                     " shards: this one, ",
                     absl::StrJoin(options_.shard_addresses, ", ")));
  }
  return absl::OkStatus();
}

void Server::OnShardLost(const absl::Status& why) {
  MutexLock lock(mu_);
  if (!lost_shard_.empty()) return;
  lost_shard_ = std::string(why.message());
  changed_.NotifyAll();
}

// The run was over, but its results were lost with a data shard: the last steps
// are to be made once more.
void Server::NoteLostAtTheEnd(RunSummary& summary) {
  MutexLock lock(mu_);
  if (!summary.files.ok()) summary.lost_shard = lost_shard_;
}

absl::StatusOr<RunState> Server::WithAllPartitions(RunState state) {
  if (data_shards_.empty()) return state;
  if (!started_) {
    return absl::UnavailableError("the data shards have no model yet");
  }
  // The state keeps the version alive at the data shards until it is here.
  auto whole = std::make_shared<ModelSnapshot>(*state.snapshot);
  for (const auto& data_shard : data_shards_) {
    COHORT_RETURN_IF_ERROR(
        data_shard->Fetch(whole->version, *state.model, *whole));
  }
  for (size_t p = 0; p < whole->weights.size(); ++p) {
    if (whole->weights[p] != nullptr) continue;
    return absl::UnavailableError(
        absl::StrCat("the data shards have sent no partition ", p));
  }
  state.snapshot = std::move(whole);
  return state;
}

absl::StatusOr<RunState> Server::WholeState() {
  COHORT_ASSIGN_OR_RETURN(RunState state, shard_->State());
  return WithAllPartitions(std::move(state));
}

void Server::EndDataShards(bool run_is_over) {
  for (const auto& data_shard : data_shards_) {
    if (run_is_over) data_shard->EndRun();
  }
  // The reactions of one may send to another.
  for (const auto& data_shard : data_shards_) data_shard->Close();
  data_shards_.clear();
}

}  // namespace cohort
