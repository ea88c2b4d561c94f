#include "server/main/data_shards.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/check.h"
#include "common/log/log.h"
#include "common/status_macros.h"
#include "common/thread_pool.h"

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

DataShards::DataShards(const ServerOptions& options,
                       const ServerSecurity& security, RunStats& stats,
                       Reactions reactions)
    : options_(options),
      security_(security),
      reactions_(std::move(reactions)),
      stats_(stats) {
  if (options.coordinator.shards > 1) {
    shard_stats_ = options.handover.shards;
    if (shard_stats_ == nullptr) {
      shard_stats_ = std::make_shared<ShardStats>(
          options.shard_addresses, std::make_shared<SteadyClock>());
    }
  }
  Connect(options.shard_addresses);
}

DataShards::~DataShards() = default;

void DataShards::Connect(const std::vector<std::string>& addresses) {
  const CoordinatorOptions& run = options_.coordinator;
  const auto shards = static_cast<int32_t>(addresses.size()) + 1;
  for (int32_t i = 1; i < shards; ++i) {
    clients_.push_back(std::make_unique<DataShardClient>(
        DataShardClient::Options{
            .address = addresses[Index(i)],
            .security = security_.security(),
            .tls = options_.security.tls,
            .attachment = {.run_id = run.run_id,
                           .run_name = run.run_name,
                           // On disk before anything else sees it.
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
            .on_leaving = [this, i] { reactions_.on_leaving(i); },
            .on_end =
                [this, i](const absl::Status& why) {
                  NoteLost(i, why);
                  reactions_.on_lost(why);
                }}));
  }
}

std::vector<PartitionsLink*> DataShards::links() const {
  std::vector<PartitionsLink*> links;
  for (const auto& client : clients_) links.push_back(client.get());
  return links;
}

absl::Status DataShards::Attach(
    const std::function<void(const std::string&)>& on_wait,
    const std::function<bool()>& give_up) {
  const auto count = static_cast<int32_t>(clients_.size());
  if (count == 0) return absl::OkStatus();
  std::vector<absl::Status> attached(clients_.size());
  {
    std::atomic<bool> failed = false;
    const auto stop = [&give_up, &failed] {
      return failed.load() || give_up();
    };
    // All at once, so that each one that is not there is named. The pool's
    // destructor waits for them.
    ThreadPool pool({.name = "attach", .threads = count, .queue_max = count});
    for (int32_t shard = 1; shard <= count; ++shard) {
      const absl::Status accepted = pool.Submit([&, shard] {
        absl::Status& status = attached[Index(shard)];
        status = AttachOne(shard, on_wait, stop);
        if (!status.ok()) failed = true;
      });
      COHORT_CHECK(accepted.ok(), accepted.message());
    }
  }
  absl::Status status;
  for (const absl::Status& one : attached) {
    // The others were given up because of it.
    if (!one.ok() && !absl::IsCancelled(one)) return one;
    status.Update(one);
  }
  COHORT_RETURN_IF_ERROR(status);
  attached_ = true;
  watch_ = std::make_unique<PeriodicTask>("shards", kAliveCheck, [this] {
    for (const auto& client : clients_) client->CheckAlive();
  });
  Log(LogLevel::kInfo,
      absl::StrCat("the model is shared among ", count + 1,
                   " shards: this one, ",
                   absl::StrJoin(options_.shard_addresses, ", ")));
  if (options_.coordinator.checkpoint_every == 0) {
    Log(LogLevel::kWarning,
        "--checkpoint_every: got 0, want more with several shards: after the "
        "loss of one, all continue from the newest checkpoint, which is that "
        "of the start, of the last change or of `cohortctl checkpoint save`");
  }
  return absl::OkStatus();
}

std::string DataShards::NameOf(int32_t shard) const {
  return absl::StrCat("data shard ", shard, " at ",
                      options_.shard_addresses[Index(shard)]);
}

absl::Status DataShards::AttachOne(
    int32_t shard, const std::function<void(const std::string&)>& on_wait,
    const std::function<bool()>& give_up) {
  COHORT_RETURN_IF_ERROR(clients_[Index(shard)]->Attach(
      [&](const std::string& why) {
        // It may have ended while no one was connected to it.
        shard_stats_->Missing(shard, why);
        const std::string text = absl::StrCat("waiting for ", NameOf(shard));
        on_wait(text);
        Log(LogLevel::kWarning,
            absl::StrCat(text, ": ", why,
                         "; want cohort-server --data_shard there"));
      },
      give_up));
  const std::optional<absl::Duration> gone = shard_stats_->Attached(
      shard, options_.coordinator.first_incarnation.value());
  if (gone.has_value()) {
    const std::string text =
        absl::StrCat(NameOf(shard), " is back after ", SecondsText(*gone));
    stats_.Happened({.text = text});
    Log(LogLevel::kInfo, text);
  }
  return absl::OkStatus();
}

absl::Status DataShards::LeavingBecause(int32_t shard) const {
  return absl::UnavailableError(
      absl::StrCat(NameOf(shard), ": it is being stopped"));
}

void DataShards::NoteLost(int32_t shard, const absl::Status& why) {
  if (shard_stats_ == nullptr) return;
  shard_stats_->Lost(shard, std::string(why.message()));
  stats_.Happened({.severity = LogLevel::kError,
                   .text = absl::StrCat("lost ", why.message())});
}

void DataShards::KeepWhole(SharedSnapshot whole) {
  MutexLock lock(mu_);
  whole_ = std::move(whole);
}

absl::StatusOr<RunState> DataShards::WithAllPartitions(RunState state) {
  const std::vector<SharedFloats>& weights = state.snapshot->weights;
  if (clients_.empty() ||
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
    for (const auto& client : clients_) {
      COHORT_RETURN_IF_ERROR(
          client->Fetch(whole->version, *state.model, *whole));
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

SharedSnapshot DataShards::WholeHere(Version version) const {
  MutexLock lock(mu_);
  return whole_ != nullptr && whole_->version == version ? whole_ : nullptr;
}

absl::Status DataShards::ForOperator(const absl::Status& status) const {
  if (status.ok() || absl::IsFailedPrecondition(status)) return status;
  // Other errors are not those of a data shard.
  if (shard_stats_ == nullptr || !absl::IsUnavailable(status)) {
    return absl::InternalError(status.message());
  }
  const std::string waiting = shard_stats_->WaitingText();
  if (!waiting.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("a part of the model is missing: ", waiting));
  }
  // A data shard is about to be lost. To the client, Unavailable would
  // mean that this server cannot be reached.
  return absl::FailedPreconditionError(status.message());
}

void DataShards::ConnectToEnded() {
  const Instant deadline = clock_.Now() + kOverPatience;
  Connect(options_.ended_shard_addresses);
  for (size_t i = 0; i < clients_.size(); ++i) {
    // However long the others took: one that is there answers at once.
    const Instant own_deadline =
        std::max(deadline, clock_.Now() + kOverPatienceMin);
    const absl::Status attached =
        clients_[i]->Attach([](const std::string&) {},
                            [&] { return clock_.Now() >= own_deadline; });
    if (attached.ok()) continue;
    LogUnreached(static_cast<int32_t>(i) + 1,
                 options_.ended_shard_addresses[i]);
  }
}

void DataShards::End(bool run_is_over, bool some_missing) {
  if (run_is_over && !options_.ended_shard_addresses.empty()) {
    ConnectToEnded();
  }
  watch_.reset();
  if (run_is_over) {
    if (some_missing && shard_stats_ != nullptr) {
      for (const ShardFigures& shard : shard_stats_->figures(nullptr)) {
        if (!shard.connected) LogUnreached(shard.shard, shard.address);
      }
    }
    for (const auto& client : clients_) client->EndRun();
    for (const auto& client : clients_) client->AwaitEnd();
  }
  // The reactions of one may send to another.
  for (const auto& client : clients_) client->Close();
}

}  // namespace cohort
