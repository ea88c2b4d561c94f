#include "server/shard/shard.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/log/log.h"
#include "common/run_id_check.h"
#include "common/status_macros.h"
#include "kernels/backend.h"
#include "server/core/call_names.h"
#include "server/core/optimizer/fold_job.h"
#include "server/core/settings.h"
#include "server/shard/fault.h"

namespace cohort {
namespace {

constexpr absl::Duration kTickInterval = absl::Milliseconds(50);

// Small enough that leases can be shortened during a run, and that gRPC's
// threads stay awake: a thread without events for a second sleeps for 100 ms,
// and while all of them sleep, messages wait. An event every 0.9 s keeps one
// awake; this value leaves a tenth of a second for a late heartbeat.
constexpr absl::Duration kHeartbeatMax = absl::Milliseconds(800);
constexpr int kHeartbeatsPerLease = 3;

// Never reached: one commit is folded at a time, and no model has this many
// partitions.
constexpr int64_t kFoldsMax = int64_t{1} << 24;

// The values of all ranks may be in transfer at once; half of the memory stays
// for the run itself.
int64_t RegistrationBytesMax(int64_t memory_bytes) {
  constexpr int64_t kUnknown = int64_t{16} << 30;
  return memory_bytes <= 0 ? kUnknown : memory_bytes / 2;
}

void EndDisplaced(const std::shared_ptr<Stream>& stream) {
  if (stream == nullptr) return;
  stream->End(
      absl::AbortedError("a newer stream of this worker replaced this one"));
}

}  // namespace

template <typename Call>
auto Shard::Handle(Call call, const char* doing) {
  const auto locked = [this, &call, doing] {
    MutexLock lock(mu_);
    // Like AllOrExit, but inside the lock, so that no other thread continues
    // with a partial change.
    try {
      return call(core_, clock_.Now(), outbox_);
    } catch (...) {
      ExitHalfDone(doing);
    }
  };
  if constexpr (std::is_void_v<decltype(locked())>) {
    locked();
    DispatchAll();
  } else {
    auto answer = locked();
    DispatchAll();
    return answer;
  }
}

Shard::Shard(const ShardOptions& options, const RunState* restored,
             const Clock& clock, RunListener& listener)
    : options_(options),
      clock_(clock),
      listener_(listener),
      streams_(StreamRegistry::LimitsOf(options.coordinator.workers)),
      pulls_(PullTable::LimitsOf(options.coordinator.workers)),
      registrations_(RegistrationBytesMax(options.memory_bytes)),
      buffers_(options.weights_memory),
      trace_(options.timeline == nullptr
                 ? nullptr
                 : std::make_unique<ShardTrace>(*options.timeline)),
      commands_(shards()),
      data_(ShardPlace{.index = 0, .count = shards()}),
      core_(options.coordinator, restored),
      remote_(shards()),
      pool_({.name = "fold",
             .threads = options.fold_threads,
             .queue_max = kFoldsMax}) {
  COHORT_CHECK(options.coordinator.shards == shards(),
               absl::StrCat("got ", shards(), " shards"));
  if (restored == nullptr || shards() == 1) return;
  restored_model_ = restored->model;
  restored_snapshot_ = restored->snapshot;
}

Shard::~Shard() { Stop(); }

void Shard::Start(const std::string& address) {
  // A run that was drained before needs no data shards.
  if (restored_model_ != nullptr && !ended()) {
    SendToShards(commands_.Install(restored_model_, restored_snapshot_,
                                   Policy().settings));
  }
  restored_model_ = nullptr;
  restored_snapshot_ = nullptr;
  {
    MutexLock lock(mu_);
    address_ = address;
    started_ = true;
  }
  DispatchAll();
  ticker_ = std::make_unique<PeriodicTask>(
      "tick", kTickInterval, [this, ticks = int64_t{0}]() mutable {
        Handle([](Coordinator& core, Instant now,
                  Effects& out) { core.Tick(now, out); },
               "Tick");
        CheckStreams(++ticks);
      });
}

void Shard::Stop() {
  {
    MutexLock lock(mu_);
    // What the core has decided is carried out, so that data shards have every
    // version that it names.
    while (started_ && (dispatching_ || !outbox_.empty())) {
      dispatched_.Wait(mu_);
    }
    stopped_ = true;
  }
  ticker_.reset();
  MutexLock lock(mu_);
  while (folds_running_ > 0) folds_done_.Wait(mu_);
}

std::string Shard::address() const {
  MutexLock lock(mu_);
  return address_;
}

void Shard::RunOnPool(absl::AnyInvocable<void()> work) {
  {
    MutexLock lock(mu_);
    if (stopped_) return;
    ++folds_running_;
  }
  const absl::Status accepted =
      pool_.Submit([this, work = std::move(work)]() mutable {
        work();
        MutexLock lock(mu_);
        --folds_running_;
        folds_done_.NotifyAll();
      });
  COHORT_CHECK(accepted.ok(), accepted.message());
}

void Shard::FoldWith(absl::FunctionRef<std::vector<FoldJob>(DataShard&)> call) {
  std::vector<FoldJob> folds;
  {
    MutexLock lock(data_mu_);
    folds = call(data_);
  }
  for (FoldJob& job : folds) StartFold(std::move(job));
}

void Shard::StartFold(FoldJob job) {
  RunOnPool([this, job = std::move(job)]() mutable {
    const Instant begin = clock_.Now();
    FoldResult result = AllOrExit(
        "fold", [&] { return RunFold(job, kernels::CpuBackend(), buffers_); });
    const Instant end = clock_.Now();
    listener_.OnFolded(end - begin);
    if (trace_ != nullptr) trace_->Folded(job, begin, end);
    // Frees the gradients' memory before workers are told to send more.
    job = FoldJob();
    FoldReport report;
    {
      MutexLock lock(data_mu_);
      report = data_.FoldDone(std::move(result));
    }
    NoteFold(0, report);
    Report(std::move(report));
  });
}

void Shard::StartFold(MomentsFold job) {
  RunOnPool([this, job = std::move(job)]() mutable {
    MomentsFold done = AllOrExit(
        "fold moments", [&] { return RunMomentsFold(std::move(job)); });
    Handle(
        [&done](Coordinator& core, Instant now, Effects& out) {
          core.MomentsFolded(std::move(done), now, out);
        },
        "MomentsFolded");
  });
}

void Shard::StartUpdate(StatisticsUpdate job) {
  RunOnPool([this, job = std::move(job)]() mutable {
    StatisticsUpdate done = AllOrExit("update statistics", [&] {
      return RunStatisticsUpdate(std::move(job));
    });
    Handle(
        [&done](Coordinator& core, Instant now, Effects& out) {
          core.StatisticsUpdated(std::move(done), now, out);
        },
        "StatisticsUpdated");
  });
}

void Shard::StartMeasuring(effect::MeasureDrift measure) {
  RunOnPool([this, measure = std::move(measure)] {
    listener_.OnDrift(AllOrExit("measure drift", [&] {
      return StepDrift(measure.model->layout.batch_norms, *measure.moments);
    }));
  });
}

absl::Status Shard::Join(SessionId session, const JoinRequest& request) {
  return Handle([&](Coordinator& core, Instant now, Effects& out) {
    return core.Join(session, request, now, out);
  });
}

void Shard::Heartbeat(SessionId session, const WorkerReport& report) {
  Handle([&](Coordinator& core, Instant now, Effects&) {
    core.Heartbeat(session, now, report);
  });
}

void Shard::DataEnded(SessionId session) {
  Handle([&](Coordinator& core, Instant now, Effects& out) {
    core.DataEnded(session, now, out);
  });
}

void Shard::Leave(SessionId session, const std::string& reason) {
  Handle([&](Coordinator& core, Instant now, Effects& out) {
    core.Leave(session, reason, now, out);
  });
  EndAll(streams_.Unbind(session), absl::AbortedError("the worker has left"));
}

void Shard::SessionBroken(SessionId session) {
  Handle([&](Coordinator& core, Instant now, Effects& out) {
    core.SessionBroken(session, now, out);
  });
}

absl::Status Shard::BeginRegister(const Sender& sender,
                                  const ModelLayout& layout,
                                  const RunPlan& plan,
                                  const std::shared_ptr<RegisterStream>& from) {
  std::shared_ptr<Stream> displaced;
  absl::Status status = Handle([&](Coordinator& core, Instant now,
                                   Effects& out) {
    COHORT_RETURN_IF_ERROR(core.BeginRegister(sender, layout, plan, now, out));
    displaced = streams_.PutRegister(sender.rank, sender.incarnation, from);
    return absl::OkStatus();
  });
  EndDisplaced(displaced);
  return status;
}

absl::Status Shard::RegisterProgress(const Sender& sender) {
  return Handle([&](Coordinator& core, Instant now, Effects&) {
    return core.RegisterProgress(sender, now);
  });
}

void Shard::RegisterClosed(const Sender& sender) {
  Handle([&](Coordinator& core, Instant now, Effects& out) {
    core.RegisterClosed(sender, now, out);
  });
}

absl::StatusOr<RegisterAnswer> Shard::FinishRegister(
    const Sender& sender, const ModelLayout& layout, const RunPlan& plan,
    std::vector<SharedFloats> values, std::vector<LayerStatistics> statistics) {
  return Handle([&](Coordinator& core, Instant now, Effects& out) {
    return core.FinishRegister(sender, layout, plan, std::move(values),
                               std::move(statistics), now, out);
  });
}

// A stream gets its place in the critical section in which the core accepts its
// message, so that no answer is dispatched before.
template <typename Call>
absl::Status Shard::HandlePush(const Sender& sender,
                               const std::shared_ptr<ExchangeStream>& from,
                               Call call, const char* doing) {
  std::shared_ptr<Stream> displaced;
  absl::Status status = Handle(
      [&](Coordinator& core, Instant now, Effects& out) {
        COHORT_RETURN_IF_ERROR(call(core, now, out));
        displaced = streams_.PutExchange(sender.rank, sender.incarnation, from);
        return absl::OkStatus();
      },
      doing);
  EndDisplaced(displaced);
  return CountRefusal(std::move(status));
}

absl::Status Shard::CountRefusal(absl::Status status) {
  if (absl::IsAborted(status)) {
    ServiceCounters::Add(counters_.pushes_fenced);
  } else if (!status.ok()) {
    ServiceCounters::Add(counters_.pushes_invalid);
  }
  return status;
}

ServiceFigures Shard::figures() const {
  ServiceFigures figures{
      .sessions = streams_.sessions(),
      .inflight_bytes = gradient_bytes_.held_bytes(),
      .inflight_bytes_max = options_.coordinator.inflight_bytes_max,
      .inflight_paused = ServiceCounters::Read(counters_.inflight_paused),
      .push_bytes_float32 = ServiceCounters::Read(counters_.push_bytes_float32),
      .push_bytes_bfloat16 =
          ServiceCounters::Read(counters_.push_bytes_bfloat16),
      .pull_bytes_float32 = ServiceCounters::Read(counters_.pull_bytes_float32),
      .pull_bytes_bfloat16 =
          ServiceCounters::Read(counters_.pull_bytes_bfloat16),
      .pulls = ServiceCounters::Read(counters_.pulls),
      .pulls_refused = ServiceCounters::Read(counters_.pulls_refused),
      .pushes_fenced = ServiceCounters::Read(counters_.pushes_fenced),
      .pushes_invalid = ServiceCounters::Read(counters_.pushes_invalid)};
  MutexLock lock(mu_);
  figures.folds_waiting = folds_running_;
  return figures;
}

absl::Status Shard::Open(const Sender& sender, const PushKey& key,
                         const PushOpening& opening,
                         const std::shared_ptr<ExchangeStream>& from) {
  COHORT_RETURN_IF_ERROR(HandlePush(
      sender, from, [&](Coordinator& core, Instant now, Effects& out) {
        return core.Open(sender, key, opening, now, out);
      }));
  // Gradients that data shards have received may have come before it.
  if (shards() > 1) OfferRemote(sender.rank);
  return absl::OkStatus();
}

void Shard::OfferRemote(Rank rank) {
  std::vector<RemoteGradients::Refusal> refused;
  const int paused =
      Handle([&](Coordinator& core, Instant now, Effects& out)
                 ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
                   return remote_.Offer(rank, core, now, out, refused);
                 });
  ServiceCounters::Add(counters_.inflight_paused, paused);
  for (RemoteGradients::Refusal& refusal : refused) {
    const auto link = static_cast<size_t>(refusal.shard) - 1;
    options_.data_shards[link]->Send(shard_command::Refuse{
        .ticket = refusal.ticket,
        .status = CountRefusal(std::move(refusal.status))});
  }
}

void Shard::Report(FoldReport report) {
  Handle(
      [&](Coordinator& core, Instant now, Effects& out)
          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
            // No data shard would learn of the commit.
            if (!stopped_) core.Folded(std::move(report), now, out);
          },
      "Folded");
}

void Shard::CheckpointStored() {
  Handle([](Coordinator& core, Instant now, Effects& out) {
    core.CheckpointStored(now, out);
  });
}

absl::StatusOr<Admission> Shard::Gradient(
    const Sender& sender, const PushKey& key, GradientMessage& message,
    const std::shared_ptr<ExchangeStream>& from) {
  Admission admission = Admission::kTaken;
  const int64_t bytes = message.gradient.size_bytes();
  const int32_t owner = ShardPlace::OwnerOf(message.partition, shards());
  if (owner != 0) {
    return CountRefusal(absl::InvalidArgumentError(absl::StrCat(
        "gradient: got partition ", message.partition,
        " at shard 0, want it at shard ", owner, " (JoinReply.shards)")));
  }
  ServiceCounters::Counter& counter = message.type == ElementType::kBFloat16
                                          ? counters_.push_bytes_bfloat16
                                          : counters_.push_bytes_float32;
  COHORT_RETURN_IF_ERROR(HandlePush(
      sender, from,
      [&](Coordinator& core, Instant now, Effects& out) -> absl::Status {
        COHORT_ASSIGN_OR_RETURN(admission,
                                core.Gradient(sender, key, message, now, out));
        return absl::OkStatus();
      }));
  if (admission == Admission::kPaused) {
    ServiceCounters::Add(counters_.inflight_paused);
  } else {
    ServiceCounters::Add(counter, bytes);
  }
  return admission;
}

absl::Status Shard::Close(const Sender& sender, const PushKey& key,
                          PushClosing closing,
                          const std::shared_ptr<ExchangeStream>& from) {
  return HandlePush(
      sender, from, [&](Coordinator& core, Instant now, Effects& out) {
        return core.Close(sender, key, std::move(closing), now, out);
      });
}

absl::Status Shard::Reduce(const Sender& sender,
                           std::vector<MomentsMessage> contributions,
                           const std::shared_ptr<ReduceStream>& from) {
  std::shared_ptr<Stream> displaced;
  absl::Status status =
      Handle([&](Coordinator& core, Instant now, Effects& out) {
        const size_t before = out.size();
        std::vector<ReduceKey> traced;
        if (trace_ != nullptr) {
          for (const MomentsMessage& part : contributions) {
            traced.push_back(part.key);
          }
        }
        COHORT_RETURN_IF_ERROR(
            core.Reduce(sender, std::move(contributions), now, out));
        for (const ReduceKey& key : traced) {
          trace_->Arrived(
              key, CallNameOf(key.place, core.model()->layout.batch_norms),
              sender.rank, now, absl::MakeConstSpan(out).subspan(before));
        }
        displaced = streams_.PutReduce(sender.rank, sender.incarnation, from);
        return absl::OkStatus();
      });
  EndDisplaced(displaced);
  return status;
}

absl::StatusOr<Assignment> Shard::ReportEvaluation(const Sender& sender,
                                                   Sequence sequence,
                                                   const EvaluationSums& sums) {
  return Handle([&](Coordinator& core, Instant now, Effects& out) {
    return core.ReportEvaluation(sender, sequence, sums, now, out);
  });
}

absl::StatusOr<Assignment> Shard::ReportMoments(
    const Sender& sender, Sequence sequence, std::vector<CallMoments> calls) {
  return Handle([&](Coordinator& core, Instant now, Effects& out) {
    return core.ReportMoments(sender, sequence, std::move(calls), now, out);
  });
}

absl::StatusOr<CollectionAnswer> Shard::CollectStatistics(
    const std::string& run_id) {
  return Handle([&](Coordinator& core, Instant now, Effects& out) {
    return core.CollectStatistics(run_id, now, out);
  });
}

absl::StatusOr<SharedSnapshot> Shard::Read(
    std::optional<Version> version) const {
  MutexLock lock(mu_);
  return core_.Read(version);
}

SharedModel Shard::model() const {
  MutexLock lock(mu_);
  return core_.model();
}

absl::StatusOr<RunState> Shard::State() const {
  MutexLock lock(mu_);
  return core_.State();
}

bool Shard::ended() const {
  MutexLock lock(mu_);
  return core_.ended();
}

StatusView Shard::Status() const {
  StatusView view;
  {
    MutexLock lock(mu_);
    view = core_.Status(clock_.Now());
  }
  DescribeWaiting(view);
  return view;
}

absl::StatusOr<Version> Shard::Drain(const std::string& reason) {
  const absl::StatusOr<Version> drained =
      Handle([&](Coordinator& core, Instant now,
                 Effects& out) -> absl::StatusOr<Version> {
        const StatusView view = core.Status(now);
        if (view.ended) {
          return absl::FailedPreconditionError(
              absl::StrCat("the run is already ", view.state));
        }
        core.Drain(reason, now, out);
        return view.version;
      });
  if (drained.ok()) {
    MutexLock lock(mu_);
    drain_asked_for_ = reason;
  }
  return drained;
}

std::optional<std::string> Shard::drain_asked_for() const {
  MutexLock lock(mu_);
  return drain_asked_for_;
}

CoordinatorOptions Shard::options() const {
  CoordinatorOptions options = options_.coordinator;
  const absl::Status set = SetSettings(Policy().settings, options);
  COHORT_CHECK(set.ok(), set.message());
  return options;
}

absl::Duration Shard::heartbeat_interval() const {
  return std::min(options_.coordinator.lease / kHeartbeatsPerLease,
                  kHeartbeatMax);
}

absl::StatusOr<ChangeAnswer> Shard::Change(const ChangeRequest& request) {
  const absl::Duration lease_min = kHeartbeatsPerLease * heartbeat_interval();
  const auto lease = request.values.find("lease");
  CoordinatorOptions wanted;
  if (lease != request.values.end() &&
      SetSetting(lease->first, lease->second, wanted).ok() &&
      wanted.lease < lease_min) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--lease: got ", lease->second, ", want at least ",
        absl::FormatDuration(lease_min), ": workers send a heartbeat every ",
        absl::FormatDuration(heartbeat_interval()),
        ", so all of them would count as lost"));
  }
  return Handle([&](Coordinator& core, Instant now, Effects& out) {
    return core.Change(request, now, out);
  });
}

PolicyView Shard::Policy() const {
  MutexLock lock(mu_);
  return core_.Policy(clock_.Now());
}

absl::StatusOr<Version> Shard::Evict(const std::string& run_id, Rank rank,
                                     const std::string& reason) {
  COHORT_RETURN_IF_ERROR(CheckRunId(run_id, this->run_id()));
  return Handle([&](Coordinator& core, Instant now,
                    Effects& out) -> absl::StatusOr<Version> {
    const Version version = core.Status(now).version;
    COHORT_RETURN_IF_ERROR(core.Evict(rank, reason, now, out));
    return version;
  });
}

absl::StatusOr<Version> Shard::DrainWorker(const std::string& run_id, Rank rank,
                                           const std::string& reason) {
  COHORT_RETURN_IF_ERROR(CheckRunId(run_id, this->run_id()));
  return Handle([&](Coordinator& core, Instant now,
                    Effects& out) -> absl::StatusOr<Version> {
    COHORT_RETURN_IF_ERROR(core.DrainWorker(rank, reason, now, out));
    return core.Status(now).version;
  });
}

}  // namespace cohort
