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
#include "server/core/call_names.h"
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

// The way between the core and the shard of this process.
class Shard::OwnLink final : public CoordinatorStream, public DataLink {
 public:
  explicit OwnLink(Shard& shard) : shard_(shard) {}

  void Install(Installation installation) override {
    Check(shard_.host_.Install(this, installation));
  }
  void Send(ShardCommand command) override {
    Check(shard_.host_.Handle(this, std::move(command)));
  }

  void SendGradient(const RemoteGradient& gradient) override {
    shard_.Arrived(0, gradient);
  }
  void SendFold(const FoldReport& report) override {
    Check(shard_.Folded(0, report));
  }
  void SendAlive() override {}
  void SendLeaving() override {}
  void End(const absl::Status&) override {}

 private:
  // Aborted: the host has stopped.
  static void Check(const absl::Status& status) {
    COHORT_CHECK(status.ok() || absl::IsAborted(status), status.ToString());
  }

  Shard& shard_;
};

Shard::Shard(const ShardOptions& options, const RunState* restored,
             const Clock& clock, RunListener& listener)
    : options_(options),
      clock_(clock),
      listener_(listener),
      registrations_(RegistrationBytesMax(options.memory_bytes)),
      own_link_(std::make_shared<OwnLink>(*this)),
      core_(options.coordinator, restored),
      arrived_(shards()),
      host_({.fold_threads = options.fold_threads,
             // The stream that brings them also opens and closes the push.
             .staged_max = 1,
             .weights_memory = options.weights_memory,
             .on_folded =
                 [&listener](absl::Duration took) { listener.OnFolded(took); },
             .timeline = options.timeline},
            clock) {
  const CoordinatorOptions& run = options.coordinator;
  COHORT_CHECK(run.shards == shards(),
               absl::StrCat("got ", shards(), " shards"));
  links_.push_back(own_link_.get());
  links_.insert(links_.end(), options.data_shards.begin(),
                options.data_shards.end());
  const absl::Status attached =
      host_.Attach({.run_id = run.run_id,
                    .run_name = run.run_name,
                    .generation = generation(),
                    .place = {.index = 0, .count = shards()},
                    .workers = run.workers,
                    .authenticated = true},
                   own_link_);
  COHORT_CHECK(attached.ok(), attached.ToString());
  if (restored == nullptr) return;
  restored_model_ = restored->model;
  restored_snapshot_ = restored->snapshot;
  Install(0, restored_model_, restored_snapshot_, Policy().settings);
}

Shard::~Shard() { Stop(); }

void Shard::Start(const std::string& address) {
  // A run that was drained before needs no data shards.
  if (restored_model_ != nullptr && !ended()) {
    const SettingValues settings = Policy().settings;
    for (int32_t i = 1; i < shards(); ++i) {
      Install(i, restored_model_, restored_snapshot_, settings);
    }
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
    // What the core has decided is carried out, so that the shards have every
    // version that it names.
    while (started_ && (dispatching_ || !outbox_.empty())) {
      dispatched_.Wait(mu_);
    }
    stopped_ = true;
  }
  ticker_.reset();
  host_.Stop();
}

std::string Shard::address() const {
  MutexLock lock(mu_);
  return address_;
}

void Shard::StartFold(MomentsFold job) {
  host_.Run([this, job = std::move(job)]() mutable {
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
  host_.Run([this, job = std::move(job)]() mutable {
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
  host_.Run([this, measure = std::move(measure)] {
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
  EndAll(streams().Unbind(session), absl::AbortedError("the worker has left"));
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
    displaced = streams().PutRegister(sender.rank, sender.incarnation, from);
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
  return Handle([&](Coordinator& core, Instant now,
                    Effects& out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const bool first = core.model() == nullptr;
    absl::StatusOr<RegisterAnswer> answer = core.FinishRegister(
        sender, layout, plan, std::move(statistics), now, out);
    if (first && core.model() != nullptr) {
      initial_values_ = std::move(values);
    }
    return answer;
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
        displaced =
            streams().PutExchange(sender.rank, sender.incarnation, from);
        return absl::OkStatus();
      },
      doing);
  EndDisplaced(displaced);
  return CountRefusal(std::move(status));
}

absl::Status Shard::CountRefusal(absl::Status status) {
  if (absl::IsAborted(status)) {
    ServiceCounters::Add(counters().pushes_fenced);
  } else if (!status.ok()) {
    ServiceCounters::Add(counters().pushes_invalid);
  }
  return status;
}

ServiceFigures Shard::figures() {
  const ServiceCounters& counters = host_.counters();
  return {
      .sessions = streams().sessions(),
      .folds_waiting = host_.running(),
      .inflight_bytes = inflight_bytes(),
      .inflight_bytes_max = options_.coordinator.inflight_bytes_max,
      .inflight_paused = ServiceCounters::Read(counters.inflight_paused),
      .push_bytes_float32 = ServiceCounters::Read(counters.push_bytes_float32),
      .push_bytes_bfloat16 =
          ServiceCounters::Read(counters.push_bytes_bfloat16),
      .pull_bytes_float32 = ServiceCounters::Read(counters.pull_bytes_float32),
      .pull_bytes_bfloat16 =
          ServiceCounters::Read(counters.pull_bytes_bfloat16),
      .pulls = ServiceCounters::Read(counters.pulls),
      .pulls_refused = ServiceCounters::Read(counters.pulls_refused),
      .pushes_fenced = ServiceCounters::Read(counters.pushes_fenced),
      .pushes_invalid = ServiceCounters::Read(counters.pushes_invalid)};
}

absl::Status Shard::Open(const Sender& sender, const PushKey& key,
                         const PushOpening& opening,
                         const std::shared_ptr<ExchangeStream>& from) {
  COHORT_RETURN_IF_ERROR(HandlePush(
      sender, from, [&](Coordinator& core, Instant now, Effects& out) {
        return core.Open(sender, key, opening, now, out);
      }));
  // Gradients that data shards have received may have come before it.
  if (shards() > 1) Offer(sender.rank);
  return absl::OkStatus();
}

void Shard::Offer(Rank rank) {
  std::vector<RemoteGradients::Refusal> refused;
  const int paused =
      Handle([&](Coordinator& core, Instant now, Effects& out)
                 ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
                   return arrived_.Offer(rank, core, now, out, refused);
                 });
  ServiceCounters::Add(counters().inflight_paused, paused);
  for (RemoteGradients::Refusal& refusal : refused) {
    links_[static_cast<size_t>(refusal.shard)]->Send(
        command::Refuse{.ticket = refusal.ticket,
                        .status = CountRefusal(std::move(refusal.status))});
  }
}

absl::Status Shard::Folded(int32_t shard, FoldReport report) {
  if (shard != 0) COHORT_RETURN_IF_ERROR(CheckFold(shard, report));
  if (options_.shard_stats != nullptr) {
    options_.shard_stats->Folded(shard, report.transaction);
  }
  Handle([&](Coordinator& core, Instant now, Effects& out)
             ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
               // No shard would learn of the commit.
               if (!stopped_) core.Folded(std::move(report), now, out);
             });
  return absl::OkStatus();
}

void Shard::CheckpointStored() {
  Handle([](Coordinator& core, Instant now, Effects& out) {
    core.CheckpointStored(now, out);
  });
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
        if (host_.trace() != nullptr) {
          for (const MomentsMessage& part : contributions) {
            traced.push_back(part.key);
          }
        }
        COHORT_RETURN_IF_ERROR(
            core.Reduce(sender, std::move(contributions), now, out));
        for (const ReduceKey& key : traced) {
          host_.trace()->Arrived(
              key, CallNameOf(key.place, core.model()->layout.batch_norms),
              sender.rank, now, absl::MakeConstSpan(out).subspan(before));
        }
        displaced = streams().PutReduce(sender.rank, sender.incarnation, from);
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

absl::StatusOr<SharedVersion> Shard::Find(
    std::optional<Version> version) const {
  MutexLock lock(mu_);
  return core_.Read(version);
}

absl::StatusOr<SharedSnapshot> Shard::Read(std::optional<Version> version) {
  COHORT_ASSIGN_OR_RETURN(const SharedVersion found, Find(version));
  return AwaitWeights(found);
}

SharedModel Shard::model() const {
  MutexLock lock(mu_);
  return core_.model();
}

absl::StatusOr<RunState> Shard::State() {
  RunState state;
  {
    MutexLock lock(mu_);
    COHORT_ASSIGN_OR_RETURN(state, core_.State());
  }
  COHORT_RETURN_IF_ERROR(AwaitWeights(state.snapshot->pin).status());
  return WithWeights(std::move(state));
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
