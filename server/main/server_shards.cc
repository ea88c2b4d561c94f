// Shard 0's connections to the data shards.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/check.h"
#include "common/float_buffer.h"
#include "common/log/log.h"
#include "common/status_macros.h"
#include "common/thread_pool.h"
#include "server/core/run_state.h"
#include "server/main/server.h"

namespace cohort {
namespace {

// For data shards to answer once the run is over; one that was killed may be on
// its way back.
constexpr absl::Duration kOverPatience = absl::Seconds(10);
constexpr absl::Duration kOverPatienceMin = absl::Seconds(2);
// Data shards say every second that they are alive.
constexpr absl::Duration kAliveCheck = absl::Seconds(1);

// A message may fall just outside of one interval.
int SilentChecks(absl::Duration lease) {
  constexpr int kChecksMax = 1 << 20;
  const double checks = absl::FDivDuration(lease, kAliveCheck);
  return static_cast<int>(
      std::clamp(std::ceil(checks), 2.0, double{kChecksMax}));
}

void LogUnreached(int32_t shard, const std::string& address) {
  Log(LogLevel::kWarning,
      absl::StrCat("data shard ", shard, " at ", address,
                   " does not answer; if it is started again, stop it: the "
                   "run is over"));
}

}  // namespace

void Server::MakeDataShards(const std::vector<std::string>& addresses) {
  const CoordinatorOptions& run = options_.coordinator;
  if (run.shards > 1) {
    shard_stats_ = options_.handover.shards;
    if (shard_stats_ == nullptr) {
      shard_stats_ = std::make_shared<ShardStats>(
          options_.shard_addresses, std::make_shared<SteadyClock>());
    }
  }
  const auto shards = static_cast<int32_t>(addresses.size()) + 1;
  for (int32_t i = 1; i < shards; ++i) {
    data_shards_.push_back(std::make_unique<DataShardClient>(
        DataShardClient::Options{
            .address = addresses[static_cast<size_t>(i) - 1],
            .security = security_->security(),
            .tls = options_.security.tls,
            .attachment = {.run_id = run.run_id,
                           .run_name = run.run_name,
                           // On disk before anything is told of it.
                           .generation = run.first_incarnation.value(),
                           .place = {.index = i, .count = shards},
                           .workers = run.workers},
            .silent_checks_max = SilentChecks(options_.shard_lease)},
        DataShardClient::Reactions{
            .on_gradient =
                [this, i](RemoteGradient gradient) {
                  run_->Arrived(i, std::move(gradient));
                },
            .on_fold =
                [this, i](FoldReport report) {
                  return run_->Folded(i, std::move(report));
                },
            .on_leaving = [this, i] { OnShardLeaving(i); },
            .on_end =
                [this, i](const absl::Status& why) {
                  NoteShardLost(i, why);
                  OnShardLost(why);
                }}));
  }
}

absl::Status Server::AttachDataShards() {
  if (data_shards_.empty()) return absl::OkStatus();
  const auto count = static_cast<int32_t>(data_shards_.size());
  std::vector<absl::Status> attached(data_shards_.size());
  {
    std::atomic<bool> failed = false;
    const auto give_up = [this, &failed] {
      return failed.load() || OverBeforeStart() ||
             (options_.stop_requested != nullptr && options_.stop_requested());
    };
    // All at once, so that each one that is not there is named. The pool's
    // destructor waits for them.
    ThreadPool pool({.name = "attach", .threads = count, .queue_max = count});
    for (size_t i = 0; i < data_shards_.size(); ++i) {
      const absl::Status accepted = pool.Submit([&, i] {
        attached[i] = AttachDataShard(i, give_up);
        if (!attached[i].ok()) failed = true;
      });
      COHORT_CHECK(accepted.ok(), accepted.message());
    }
  }
  if (OverBeforeStart()) return absl::OkStatus();
  absl::Status status;
  for (const absl::Status& one : attached) {
    // The others were given up because of it.
    if (!one.ok() && !absl::IsCancelled(one)) return one;
    status.Update(one);
  }
  COHORT_RETURN_IF_ERROR(status);
  attached_ = true;
  shard_watch_ = std::make_unique<PeriodicTask>("shards", kAliveCheck, [this] {
    for (const auto& shard : data_shards_) shard->CheckAlive();
  });
  Log(LogLevel::kInfo,
      absl::StrCat("the model is shared among ", data_shards_.size() + 1,
                   " shards: this one, ",
                   absl::StrJoin(options_.shard_addresses, ", ")));
  if (options_.coordinator.checkpoint_every == 0) {
    Log(LogLevel::kWarning,
        "--checkpoint_every: got 0, want more with several shards: after the "
        "loss of one, all go on from the newest checkpoint, which is that of "
        "the start, of the last change or of `cohortctl checkpoint save`");
  }
  return absl::OkStatus();
}

absl::Status Server::AttachDataShard(size_t i,
                                     const std::function<bool()>& give_up) {
  const auto shard = static_cast<int32_t>(i) + 1;
  const std::string name =
      absl::StrCat("data shard ", shard, " at ", options_.shard_addresses[i]);
  COHORT_RETURN_IF_ERROR(data_shards_[i]->Attach(
      [&](const std::string& why) {
        // It may have ended while no one was connected to it.
        shard_stats_->Missing(shard, why);
        const std::string text = absl::StrCat("waiting for ", name);
        if (ops_ != nullptr) ops_->SetReady(absl::UnavailableError(text));
        Log(LogLevel::kWarning,
            absl::StrCat(text, ": ", why,
                         "; want cohort-server --data_shard there"));
      },
      give_up));
  const std::optional<absl::Duration> gone = shard_stats_->Attached(
      shard, options_.coordinator.first_incarnation.value());
  if (gone.has_value()) {
    const std::string text =
        absl::StrCat(name, " is back after ", SecondsText(*gone));
    stats_.Happened({.text = text});
    Log(LogLevel::kInfo, text);
  }
  return absl::OkStatus();
}

bool Server::OverBeforeStart() const {
  MutexLock lock(mu_);
  return over_before_start_;
}

void Server::NoteShardLost(int32_t shard, const absl::Status& why) {
  if (shard_stats_ == nullptr) return;
  shard_stats_->Lost(shard, std::string(why.message()));
  stats_.Happened({.severity = Severity::kError,
                   .text = absl::StrCat("lost ", why.message())});
}

void Server::OnShardLost(const absl::Status& why) {
  MutexLock lock(mu_);
  if (!lost_shard_.empty()) return;
  lost_shard_ = std::string(why.message());
  changed_.NotifyAll();
}

void Server::OnShardLeaving(int32_t shard) {
  const auto i = static_cast<size_t>(shard) - 1;
  // Nothing was done since the checkpoint that is continued from.
  if (!attached_) return data_shards_[i]->Release();
  MutexLock lock(mu_);
  leaving_shard_ = shard;
  changed_.NotifyAll();
}

void Server::LetShardLeave() {
  int32_t shard = 0;
  {
    MutexLock lock(mu_);
    // A stop of all writes the last checkpoint, and the end of the run needs no
    // other.
    if (stop_requested_ || stopping_ || summary_.outcome.has_value() ||
        !lost_shard_.empty()) {
      return;
    }
    shard = leaving_shard_;
  }
  if (shard == 0) return;
  // The others repeat nothing of what was done until now. The log tells of an
  // error.
  const absl::StatusOr<RunState> state = run_->State();
  if (state.ok()) files_->SaveCheckpoint(*state).IgnoreError();
  {
    MutexLock lock(mu_);
    if (stop_requested_) return;
  }
  const auto i = static_cast<size_t>(shard);
  const absl::Status why = absl::UnavailableError(
      absl::StrCat("data shard ", shard, " at ",
                   options_.shard_addresses[i - 1], ": it is being stopped"));
  NoteShardLost(shard, why);
  OnShardLost(why);
}

Handover Server::TakeHandover() {
  MutexLock lock(mu_);
  return {.shards = shard_stats_,
          .trace = trace_,
          .events = stats_.events(),
          .policies = run_->Policy().history.size(),
          .drain = drain_asked_for_};
}

void Server::NoteContinued() {
  stats_.ContinueEvents(options_.handover.events);
  const std::optional<Checkpoint>& restored = files_->restored();
  const bool same_process = options_.handover.shards != nullptr;
  if (!restored.has_value()) {
    // The first server of a run has nothing to tell.
    if (!same_process) return;
    stats_.Happened({.text = "all shards start again from step 0, because "
                             "there is no checkpoint yet"});
    return;
  }
  stats_.Happened(
      {.text = absl::StrCat(same_process ? "all shards continue from step "
                                         : "the server was restarted; the run "
                                           "continues from step ",
                            restored->state.snapshot->version.value())});
  const size_t kept = restored->state.policy_history.size();
  if (kept >= options_.handover.policies) return;
  const std::string undone =
      absl::StrCat("live changes made after the last checkpoint are undone: ",
                   options_.handover.policies - kept,
                   "; `cohortctl policy history` lists those that are kept");
  stats_.Happened({.severity = Severity::kWarning, .text = undone});
  Log(LogLevel::kWarning, undone);
}

// The run was over, but its results were lost with a data shard: the last steps
// are to be made once more.
void Server::NoteLostAtTheEnd(RunSummary& summary) {
  MutexLock lock(mu_);
  if (!summary.files.ok()) summary.lost_shard = lost_shard_;
}

void Server::OnMilestone(RunState state) {
  MutexLock lock(mu_);
  milestone_ = std::move(state);
  changed_.NotifyAll();
}

std::optional<RunState> Server::AwaitMilestone() {
  MutexLock lock(mu_);
  while (!summary_.outcome.has_value() && !stop_requested_ && !stopping_ &&
         lost_shard_.empty()) {
    if (milestone_.has_value()) return std::exchange(milestone_, std::nullopt);
    if (leaving_shard_ > 0) return std::nullopt;
    changed_.Wait(mu_);
  }
  return std::nullopt;
}

void Server::StoreMilestone(RunState state) {
  absl::StatusOr<RunState> whole = WithAllPartitions(std::move(state));
  // A data shard is gone, or about to be.
  if (!whole.ok()) return OnShardLost(whole.status());
  // A server that continues from here adds nothing to the history.
  if (whole->ended.has_value()) recorder_->Finish();
  if (whole->last) {
    MutexLock lock(mu_);
    whole_ = whole->snapshot;
  }
  // The log tells of an error; the next checkpoint may succeed.
  files_->SaveCheckpoint(*whole).IgnoreError();
  run_->CheckpointStored();
}

absl::StatusOr<RunState> Server::WithAllPartitions(RunState state) {
  const std::vector<SharedFloats>& weights = state.snapshot->weights;
  if (data_shards_.empty() ||
      std::find(weights.begin(), weights.end(), nullptr) == weights.end()) {
    return state;
  }
  auto whole = std::make_shared<ModelSnapshot>(*state.snapshot);
  if (const SharedSnapshot here = WholeHere(whole->version)) {
    for (size_t p = 0; p < whole->weights.size(); ++p) {
      if (whole->weights[p] != nullptr) continue;
      whole->weights[p] = here->weights[p];
      whole->slots[p] = here->slots[p];
    }
  } else if (!attached_) {
    return absl::UnavailableError("the data shards have no model yet");
  } else {
    // The state keeps the version alive at the data shards until it is here.
    for (const auto& data_shard : data_shards_) {
      COHORT_RETURN_IF_ERROR(
          data_shard->Fetch(whole->version, *state.model, *whole));
    }
  }
  for (size_t p = 0; p < whole->weights.size(); ++p) {
    if (whole->weights[p] != nullptr) continue;
    return absl::UnavailableError(
        absl::StrCat("the data shards have sent no partition ", p));
  }
  state.snapshot = std::move(whole);
  return FittedToSettings(std::move(state));
}

SharedSnapshot Server::WholeHere(Version version) const {
  MutexLock lock(mu_);
  return whole_ != nullptr && whole_->version == version ? whole_ : nullptr;
}

absl::StatusOr<RunState> Server::WholeState() {
  COHORT_ASSIGN_OR_RETURN(RunState state, run_->State());
  return WithAllPartitions(std::move(state));
}

void Server::ServeAloneIfOver(const RunState& restored,
                              ServerOptions& options) {
  if (!IsOver(restored, options.coordinator)) return;
  options.ended_shard_addresses = std::exchange(options.shard_addresses, {});
  options.coordinator.shards = 1;
}

void Server::EndShardsOfOverRun() {
  const Instant deadline = clock_.Now() + kOverPatience;
  MakeDataShards(options_.ended_shard_addresses);
  for (size_t i = 0; i < data_shards_.size(); ++i) {
    // However long the others took: one that is there answers at once.
    const Instant own_deadline =
        std::max(deadline, clock_.Now() + kOverPatienceMin);
    const absl::Status attached =
        data_shards_[i]->Attach([](const std::string&) {},
                                [&] { return clock_.Now() >= own_deadline; });
    if (attached.ok()) continue;
    LogUnreached(static_cast<int32_t>(i) + 1,
                 options_.ended_shard_addresses[i]);
  }
}

void Server::EndDataShards(bool run_is_over) {
  if (run_is_over && !options_.ended_shard_addresses.empty()) {
    EndShardsOfOverRun();
  }
  shard_watch_.reset();
  if (run_is_over && OverBeforeStart()) {
    for (const ShardFigures& shard : shard_stats_->figures(nullptr)) {
      if (!shard.connected) LogUnreached(shard.shard, shard.address);
    }
  }
  for (const auto& data_shard : data_shards_) {
    if (run_is_over) data_shard->EndRun();
  }
  for (const auto& data_shard : data_shards_) {
    if (run_is_over) data_shard->AwaitEnd();
  }
  // The reactions of one may send to another.
  for (const auto& data_shard : data_shards_) data_shard->Close();
  // A checkpoint may be asking them for their partitions.
  if (files_ != nullptr) files_->AwaitWriter();
  data_shards_.clear();
}

}  // namespace cohort
