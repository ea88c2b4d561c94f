#include "server/run/run_host.h"

#include <algorithm>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <variant>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/log/log.h"
#include "common/run_id_check.h"
#include "common/status_macros.h"
#include "server/core/optimizer/slots.h"
#include "server/core/run_state.h"
#include "server/core/settings/settings.h"
#include "server/core/statistics/call_names.h"
#include "server/core/statistics/statistics_sets.h"
#include "server/streams/fault.h"

namespace cohort {
namespace {

// The coordinator needs a tick at least every 100 ms.
constexpr absl::Duration kTickInterval = absl::Milliseconds(50);

// Small enough that leases can be shortened during a run, and that gRPC's
// threads stay awake: a thread without events for a second sleeps for 100 ms,
// and while all of them sleep, messages wait. An event every 0.9 s keeps one
// awake; this value leaves a tenth of a second for a late heartbeat.
constexpr absl::Duration kHeartbeatMax = absl::Milliseconds(800);
// Two heartbeats may be lost before the lease ends.
constexpr int kHeartbeatsPerLease = 3;

constexpr int kTicksPerReaderCheck = 20;

// For the log line before the end of the process.
const char* EffectName(const Effect& effect) {
  return std::visit([](const auto& one) { return typeid(one).name(); }, effect);
}

}  // namespace

template <typename Call>
auto RunHost::Handle(Call call, const char* doing) {
  Duty duty;
  const auto locked = [this, &call, &duty, doing] {
    MutexLock lock(mu_);
    const absl::Cleanup take = [this, &duty]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                                   mu_) { duty = TakeDuty(); };
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
    Dispatch(std::move(duty));
  } else {
    auto answer = locked();
    Dispatch(std::move(duty));
    return answer;
  }
}

// The way between the core and the shard of this process.
class RunHost::OwnLink final : public CoordinatorStream, public PartitionsLink {
 public:
  explicit OwnLink(RunHost& run) : run_(run) {}

  void Install(Installation installation) override {
    Check(run_.host_.Install(this, installation));
  }
  void Send(ShardCommand command) override {
    Check(run_.host_.Handle(this, std::move(command)));
  }

  void SendGradient(const RemoteGradient& gradient) override {
    run_.Arrived(0, gradient);
  }
  void SendFold(const FoldReport& report) override {
    Check(run_.Folded(0, report));
  }
  void SendAlive() override {}
  void SendLeaving() override {}
  void End(const absl::Status&) override {}

 private:
  // Aborted: the host has stopped.
  static void Check(const absl::Status& status) {
    COHORT_CHECK(status.ok() || absl::IsAborted(status), status.ToString());
  }

  RunHost& run_;
};

RunHost::RunHost(const RunHostOptions& options, const RunState* restored,
                 const Clock& clock, RunListener& listener)
    : options_(options),
      clock_(clock),
      listener_(listener),
      own_link_(std::make_shared<OwnLink>(*this)),
      core_(options.coordinator, restored),
      arrived_(shards()),
      host_({.fold_threads = options.fold_threads,
             // The stream that brings them also opens and closes the push.
             .staged_max = 1,
             .memory_bytes = options.memory_bytes,
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
  // Here at once: while the run waits for its data shards, operators can read
  // and save the restored version. The data shards get their parts in Start.
  restored_model_ = restored->model;
  restored_snapshot_ = restored->snapshot;
  Install(0, restored_model_, restored_snapshot_, this->options());
}

RunHost::~RunHost() { Stop(); }

void RunHost::Start(const std::string& address) {
  // A run that was drained before needs no data shards.
  if (restored_model_ != nullptr && !ended()) {
    const CoordinatorOptions settings = options();
    for (int32_t i = 1; i < shards(); ++i) {
      Install(i, restored_model_, restored_snapshot_, settings);
    }
  }
  restored_model_ = nullptr;
  restored_snapshot_ = nullptr;
  Duty duty;
  {
    MutexLock lock(mu_);
    address_ = address;
    started_ = true;
    duty = TakeDuty();
  }
  Dispatch(std::move(duty));
  ticker_ = std::make_unique<PeriodicTask>(
      "tick", kTickInterval, [this, ticks = int64_t{0}]() mutable {
        Handle([](Coordinator& core, Instant now,
                  Effects& out) { core.Tick(now, out); },
               "Tick");
        const bool readers = ++ticks % kTicksPerReaderCheck == 0;
        host_.CheckStreams(readers);
        if (readers) OfferOverdue();
      });
}

void RunHost::Stop() {
  {
    MutexLock lock(mu_);
    // First carries out all decisions of the core, so that the shards have
    // every version that these name.
    while (started_ && (dispatching_ || !outbox_.empty())) {
      dispatched_.Wait(mu_);
    }
    stopped_ = true;
  }
  ticker_.reset();
  host_.Stop();
}

RunFacts RunHost::facts() const {
  MutexLock lock(mu_);
  return {.run_id = run_id(),
          .generation = generation(),
          .address = address_,
          .data_addresses = options_.data_addresses,
          .shards = shards(),
          .heartbeat_interval = heartbeat_interval(),
          .ended = core_.ended()};
}

void RunHost::StartFold(MomentsFold job) {
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

void RunHost::StartUpdate(StatisticsUpdate job) {
  host_.Run([this, job = std::move(job)]() mutable {
    StatisticsUpdate done = AllOrExit("update statistics", [&] {
      return RunStatisticsUpdate(std::move(job));
    });
    Handle(
        [&](Coordinator& core, Instant now, Effects& out)
            ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
              // A commit that follows would reach no shard; see Folded.
              if (!stopped_) core.StatisticsUpdated(std::move(done), now, out);
            },
        "StatisticsUpdated");
  });
}

void RunHost::StartMeasuring(effect::MeasureDrift measure) {
  host_.Run([this, measure = std::move(measure)] {
    listener_.OnDrift(AllOrExit("measure drift", [&] {
      return StepDrift(measure.model->layout.batch_norms, *measure.moments);
    }));
  });
}

template <typename Method, typename... Args>
auto RunHost::Forward(const char* doing, Method method, Args&&... args) {
  return Handle(
      [&](Coordinator& core, Instant now, Effects& out) {
        return (core.*method)(std::forward<Args>(args)..., now, out);
      },
      doing);
}

absl::Status RunHost::Join(SessionId session, const JoinRequest& request) {
  return Forward(__func__, &Coordinator::Join, session, request);
}

void RunHost::Heartbeat(SessionId session, const WorkerReport& report) {
  Handle([&](Coordinator& core, Instant now, Effects&) {
    core.Heartbeat(session, now, report);
  });
}

void RunHost::Leave(SessionId session, const Departure& departure) {
  Forward(__func__, &Coordinator::Leave, session, departure);
  EndAll(streams().Unbind(session), absl::AbortedError("the worker has left"));
}

void RunHost::SessionBroken(SessionId session) {
  // CloseStreams ended it: the worker has not failed.
  if (closing()) return;
  Forward(__func__, &Coordinator::SessionBroken, session);
}

// A stream gets its place in the critical section in which the core accepts its
// message, so that no answer is dispatched before.
template <typename T, typename Call>
absl::Status RunHost::HandleFrom(const Sender& sender,
                                 const std::shared_ptr<T>& from, Call call,
                                 const char* doing) {
  std::shared_ptr<Stream> displaced;
  absl::Status status = Handle(
      [&](Coordinator& core, Instant now, Effects& out) {
        COHORT_RETURN_IF_ERROR(call(core, now, out));
        displaced = streams().Put(sender.rank, sender.incarnation, from);
        return absl::OkStatus();
      },
      doing);
  EndDisplaced(displaced);
  return status;
}

absl::Status RunHost::BeginRegister(
    const Sender& sender, const ModelLayout& layout, const RunPlan& plan,
    const std::shared_ptr<RegisterStream>& from) {
  return HandleFrom(sender, from,
                    [&](Coordinator& core, Instant now, Effects& out) {
                      return core.BeginRegister(sender, layout, plan, now, out);
                    });
}

absl::Status RunHost::RegisterProgress(const Sender& sender) {
  return Handle([&](Coordinator& core, Instant now, Effects&) {
    return core.RegisterProgress(sender, now);
  });
}

void RunHost::RegisterClosed(const Sender& sender) {
  Forward(__func__, &Coordinator::RegisterClosed, sender);
}

absl::StatusOr<RegisterAnswer> RunHost::FinishRegister(
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

absl::Status RunHost::CountRefusal(absl::Status status) {
  if (absl::IsAborted(status)) {
    ServiceCounters::Add(counters().pushes_fenced);
  } else if (!status.ok()) {
    ServiceCounters::Add(counters().pushes_invalid);
  }
  return status;
}

RunHostFigures RunHost::figures() {
  const ServiceCounters& counters = host_.counters();
  RunHostFigures figures{.service = host_.figures().service};
  ServiceFigures& service = figures.service;
  service.sessions = streams().sessions();
  service.inflight_bytes_max = options_.coordinator.inflight_bytes_max;
  service.inflight_paused = ServiceCounters::Read(counters.inflight_paused);
  service.pulls = ServiceCounters::Read(counters.pulls);
  service.pulls_refused = ServiceCounters::Read(counters.pulls_refused);
  service.pushes_fenced = ServiceCounters::Read(counters.pushes_fenced);
  service.pushes_invalid = ServiceCounters::Read(counters.pushes_invalid);
  if (options_.shard_stats != nullptr) {
    figures.shards = options_.shard_stats->figures(model().get());
  }
  return figures;
}

absl::Status RunHost::Open(const Sender& sender, const PushKey& key,
                           const PushOpening& opening,
                           const std::shared_ptr<ExchangeStream>& from) {
  COHORT_RETURN_IF_ERROR(CountRefusal(HandleFrom(
      sender, from, [&](Coordinator& core, Instant now, Effects& out) {
        return core.Open(sender, key, opening, now, out);
      })));
  // Gradients that data shards have received may have come before it.
  if (shards() > 1) Offer(sender.rank);
  return absl::OkStatus();
}

void RunHost::Offer(Rank rank) {
  OfferAfter(rank, [](Instant) {});
}

template <typename Call>
void RunHost::OfferAfter(Rank rank, Call call) {
  std::vector<ArrivedGradients::Refusal> refused;
  const int paused =
      Handle([&](Coordinator& core, Instant now, Effects& out)
                 ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
                   call(now);
                   return arrived_.Offer(rank, core, now, out, refused);
                 });
  ServiceCounters::Add(counters().inflight_paused, paused);
  // Without the lock: it is never held together with that of the partitions.
  for (ArrivedGradients::Refusal& refusal : refused) {
    links_[static_cast<size_t>(refusal.shard)]->Send(
        command::Refuse{.ticket = refusal.ticket,
                        .status = CountRefusal(std::move(refusal.status))});
  }
}

absl::Status RunHost::Folded(int32_t shard, FoldReport report) {
  if (shard != 0) COHORT_RETURN_IF_ERROR(CheckFold(shard, report));
  if (options_.shard_stats != nullptr) {
    options_.shard_stats->Folded(shard, report.transaction);
  }
  Handle([&](Coordinator& core, Instant now, Effects& out)
             ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
               // After Stop no shard would learn of the commit.
               if (!stopped_) core.Folded(std::move(report), now, out);
             });
  return absl::OkStatus();
}

absl::Status RunHost::MissesState(const Sender& sender, const PushKey& key,
                                  bool lost) {
  return Forward(__func__, &Coordinator::MissesState, sender, key, lost);
}

void RunHost::CheckpointStored() {
  Forward(__func__, &Coordinator::CheckpointStored);
}

absl::Status RunHost::Close(const Sender& sender, const PushKey& key,
                            PushClosing closing,
                            const std::shared_ptr<ExchangeStream>& from) {
  return CountRefusal(HandleFrom(
      sender, from, [&](Coordinator& core, Instant now, Effects& out) {
        return core.Close(sender, key, std::move(closing), now, out);
      }));
}

absl::Status RunHost::Reduce(const Sender& sender,
                             std::vector<MomentsMessage> contributions,
                             const std::shared_ptr<ReduceStream>& from) {
  return HandleFrom(
      sender, from,
      [&](Coordinator& core, Instant now, Effects& out) -> absl::Status {
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
        return absl::OkStatus();
      });
}

absl::StatusOr<Assignment> RunHost::ReportEvaluation(
    const Sender& sender, Sequence sequence, const EvaluationSums& sums) {
  return Forward(__func__, &Coordinator::ReportEvaluation, sender, sequence,
                 sums);
}

absl::StatusOr<Assignment> RunHost::ReportMoments(
    const Sender& sender, Sequence sequence, std::vector<CallMoments> calls) {
  return Forward(__func__, &Coordinator::ReportMoments, sender, sequence,
                 std::move(calls));
}

absl::StatusOr<CollectionAnswer> RunHost::CollectStatistics(
    const std::string& run_id) {
  return Forward(__func__, &Coordinator::CollectStatistics, run_id);
}

absl::StatusOr<SharedVersion> RunHost::Find(
    std::optional<Version> version) const {
  MutexLock lock(mu_);
  return core_.Read(version);
}

SharedModel RunHost::model() const {
  MutexLock lock(mu_);
  return core_.model();
}

absl::StatusOr<RunState> RunHost::State() {
  RunState state;
  {
    MutexLock lock(mu_);
    COHORT_ASSIGN_OR_RETURN(state, core_.State());
  }
  COHORT_ASSIGN_OR_RETURN(state.snapshot, AwaitWeights(state.snapshot->pin));
  return FittedToSettings(std::move(state));
}

bool RunHost::ended() const {
  MutexLock lock(mu_);
  return core_.ended();
}

StatusView RunHost::Status() const {
  StatusView view;
  {
    MutexLock lock(mu_);
    view = core_.Status(clock_.Now());
  }
  DescribeWaiting(view);
  return view;
}

absl::StatusOr<Version> RunHost::Drain(const std::string& reason) {
  return Handle([&](Coordinator& core, Instant now,
                    Effects& out) -> absl::StatusOr<Version> {
    const StatusView view = core.Status(now);
    if (view.ended) {
      return absl::FailedPreconditionError(
          absl::StrCat("the run is already ", view.state));
    }
    core.Drain(reason, now, out);
    return view.version;
  });
}

CoordinatorOptions RunHost::options() const {
  MutexLock lock(mu_);
  return core_.options();
}

absl::Duration RunHost::heartbeat_interval() const {
  return std::min(options_.coordinator.lease / kHeartbeatsPerLease,
                  kHeartbeatMax);
}

absl::StatusOr<ChangeAnswer> RunHost::Change(const ChangeRequest& request) {
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
  absl::StatusOr<ChangeAnswer> answer =
      Handle([&](Coordinator& core, Instant now, Effects& out) {
        return core.Change(request, now, out);
      });
  // It may have replaced another one.
  NotePolicyMoved();
  return answer;
}

void RunHost::NotePolicyMoved() const {
  if (options_.on_policy_moved != nullptr) options_.on_policy_moved(Policy());
}

PolicyView RunHost::Policy() const {
  MutexLock lock(mu_);
  return core_.Policy(clock_.Now());
}

absl::StatusOr<Version> RunHost::Dismiss(const std::string& run_id, Rank rank,
                                         Dismissal how,
                                         const std::string& reason) {
  COHORT_RETURN_IF_ERROR(CheckRunId(run_id, this->run_id()));
  return Handle([&](Coordinator& core, Instant now,
                    Effects& out) -> absl::StatusOr<Version> {
    const Version version = core.Status(now).version;
    COHORT_RETURN_IF_ERROR(how == Dismissal::kEvict
                               ? core.Evict(rank, reason, now, out)
                               : core.DrainWorker(rank, reason, now, out));
    return version;
  });
}

// ---- shards

void RunHost::Install(int32_t shard, const SharedModel& model,
                      const SharedSnapshot& whole,
                      const CoordinatorOptions& settings) {
  links_[static_cast<size_t>(shard)]->Install(InstallationOf(
      {.index = shard, .count = shards()}, model, whole, settings));
}

SharedSnapshot RunHost::WithWeights(const SharedVersion& version) const {
  const SharedSnapshot here = host_.Held(version->version);
  if (here == nullptr) return nullptr;
  std::shared_ptr<ModelSnapshot> snapshot = SnapshotOf(version);
  snapshot->weights = here->weights;
  snapshot->slots = here->slots;
  return snapshot;
}

RunState RunHost::WithWeights(RunState state) const {
  state.snapshot = WithWeights(state.snapshot->pin);
  COHORT_CHECK(state.snapshot != nullptr, "the version is not here");
  return FittedToSettings(std::move(state));
}

absl::StatusOr<SharedSnapshot> RunHost::AwaitWeights(
    const SharedVersion& version) {
  SharedSnapshot whole = WithWeights(version);
  if (whole != nullptr) return whole;
  std::promise<absl::Status> answer;
  std::future<absl::Status> come = answer.get_future();
  host_.Read({.run_id = run_id()}, version->version,
             [answer = std::move(answer)](
                 const absl::StatusOr<SharedSnapshot>& read) mutable {
               answer.set_value(read.status());
             });
  COHORT_RETURN_IF_ERROR(come.get());
  return WithWeights(version);
}

void RunHost::Arrived(int32_t shard, RemoteGradient gradient) {
  // The run is over, and this server only notifies the data shards.
  if (shard >= shards()) return;
  const Rank rank = gradient.sender.rank;
  OfferAfter(rank, [&](Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    arrived_.Add(shard, std::move(gradient), now);
  });
}

void RunHost::OfferOverdue() {
  std::vector<Rank> overdue;
  {
    MutexLock lock(mu_);
    overdue = arrived_.Overdue(clock_.Now());
  }
  for (Rank rank : overdue) Offer(rank);
}

absl::Status RunHost::CheckFold(int32_t shard, const FoldReport& report) const {
  const SharedModel model = this->model();
  const auto owns = [&](int32_t partition) {
    return model != nullptr && partition >= 0 &&
           static_cast<size_t>(partition) < model->partitions.size() &&
           ShardPlace::OwnerOf(partition, shards()) == shard;
  };
  if (!owns(report.partition)) {
    return absl::InvalidArgumentError(absl::StrCat("it has folded partition ",
                                                   report.partition,
                                                   ", which it does not have"));
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

void RunHost::NoteCommit(const command::Commit& commit) {
  if (options_.shard_stats == nullptr) return;
  const std::vector<ShardStats::Prepared> shards =
      options_.shard_stats->Committed(commit.transaction);
  if (host_.trace() == nullptr) return;
  for (const ShardStats::Prepared& one : shards) {
    host_.trace()->Prepared(one, commit.version);
  }
}

void RunHost::DescribeWaiting(StatusView& view) const {
  if (options_.shard_stats == nullptr) return;
  std::string waiting = options_.shard_stats->WaitingText();
  if (waiting.empty() || view.ended) return;
  view.state = std::move(waiting);
  view.phase = StatusView::Phase::kWaiting;
  // Whatever workers do, it is not they who are waited for.
  view.waited_for.clear();
  view.waiting = absl::ZeroDuration();
}

// ---- streams

absl::StatusOr<SessionId> RunHost::AdmitSession(
    const std::shared_ptr<SessionStream>& stream) {
  if (options_.shard_stats != nullptr) {
    MutexLock lock(mu_);
    if (!started_) {
      const std::string waiting = options_.shard_stats->WaitingText();
      return absl::UnavailableError(waiting.empty() ? "the server is starting"
                                                    : waiting);
    }
  }
  StreamRegistry::Streams evicted;
  absl::StatusOr<SessionId> id =
      streams().AdmitSession(stream, clock_.Now() + kJoinDeadline, &evicted);
  EndEvicted(evicted);
  return id;
}

ModelNeeds RunHost::model_needs() const {
  const CoordinatorOptions options = this->options();
  return {.slots = static_cast<int32_t>(
              SlotsOf(options.optimizer, options.policy).size()),
          .statistics_kinds = std::max<int32_t>(
              1, static_cast<int32_t>(
                     KindsKept(options.policy, options.optimizer).size())),
          .memory_bytes = options_.memory_bytes,
          .weight_bytes_max = options_.weight_bytes_max};
}

void RunHost::CloseStreams() {
  if (options_.on_policy_moved != nullptr) {
    PolicyView last = Policy();
    if (last.over.empty()) last.over = "the server is stopping";
    options_.on_policy_moved(last);
  }
  {
    MutexLock lock(mu_);
    closing_ = true;
  }
  host_.CloseStreams(absl::UnavailableError("the server is stopping"));
}

bool RunHost::closing() const {
  MutexLock lock(mu_);
  return closing_;
}

// ---- effects

template <typename Command>
void RunHost::Send(Command command) {
  const std::vector<int32_t> to = ShardsOf(command, shards());
  for (size_t i = 0; i + 1 < to.size(); ++i) {
    links_[static_cast<size_t>(to[i])]->Send(command);
  }
  links_[static_cast<size_t>(to.back())]->Send(std::move(command));
}

// Carries out effects in their order, outside the lock.
struct RunHost::Dispatcher {
  RunHost& run;
  // Consecutive results that are not sent yet: those for one stream go in one
  // message.
  std::map<std::pair<Rank, Incarnation>,
           std::vector<const effect::ReduceResult*>>
      results;

  void SendResults() {
    if (results.empty()) return;
    const Instant now = run.clock_.Now();
    EncodedResults encoded;
    for (const auto& [to, answers] : results) {
      for (const effect::ReduceResult* result : answers) {
        if (run.host_.trace() != nullptr) {
          run.host_.trace()->Answered(result->key, result->rank, now);
        }
      }
      const auto stream = run.streams().Find<ReduceStream>(to.first, to.second);
      if (stream == nullptr) continue;
      const absl::Status sent =
          ServePeer([&stream, &answers = answers, &encoded] {
            stream->SendResults(answers, encoded);
            return absl::OkStatus();
          });
      if (!sent.ok()) stream->End(sent);
    }
    results.clear();
  }

  void operator()(effect::Joined& joined) const {
    EndAll(run.streams().Bind(joined.session, joined.rank, joined.incarnation),
           absl::AbortedError(
               absl::StrCat("rank ", joined.rank.value(),
                            " is now held by a newer process; join again")));
    Tell(run.streams().Session(joined.session), &SessionStream::SendJoined,
         std::as_const(joined));
  }
  void operator()(effect::EndSession& end) const {
    if (auto session = run.streams().Session(end.session)) {
      session->End(end.status);
    }
    EndAll(run.streams().Unbind(end.session),
           absl::AbortedError(
               absl::StrCat("the session is over: ", end.status.message())));
  }
  void operator()(effect::Notify& notify) const {
    Tell(run.streams().Session(notify.session), &SessionStream::SendAssignment,
         std::as_const(notify.assignment));
  }
  void operator()(effect::StepAborted& aborted) const {
    Tell(run.streams().Session(aborted.session),
         &SessionStream::SendStepAborted, std::as_const(aborted));
  }
  void operator()(effect::RegisterAnswered& answered) const {
    Tell(
        run.streams().Find<RegisterStream>(answered.rank, answered.incarnation),
        &RegisterStream::SendAnswer, std::as_const(answered.answer));
  }
  void operator()(effect::ReduceResult& result) {
    results[{result.rank, result.incarnation}].push_back(&result);
  }
  void operator()(effect::ReduceAborted& aborted) const {
    Tell(run.streams().Find<ReduceStream>(aborted.rank, aborted.incarnation),
         &ReduceStream::SendAborted, std::as_const(aborted));
  }
  void operator()(effect::SendVerdict& verdict) const {
    Tell(run.streams().Find<ExchangeStream>(verdict.rank, verdict.incarnation),
         &ExchangeStream::SendVerdict, std::as_const(verdict));
  }
  void operator()(effect::ResumeGradients& resume) const {
    run.Offer(resume.rank);
  }
  void operator()(effect::InstallModel& install) const {
    auto whole = std::make_shared<ModelSnapshot>();
    {
      MutexLock lock(run.mu_);
      whole->weights = std::exchange(run.initial_values_, {});
    }
    for (int32_t i = 0; i < run.shards(); ++i) {
      run.Install(i, install.model, whole, install.settings);
    }
  }
  void operator()(command::Prepare& prepare) const {
    // Before they can answer.
    if (run.options_.shard_stats != nullptr) {
      run.options_.shard_stats->Planned(prepare.plan.transaction);
    }
    run.Send(std::move(prepare));
  }
  void operator()(command::Commit& commit) const {
    run.NoteCommit(commit);
    run.Send(std::move(commit));
  }
  void operator()(effect::FoldMoments& fold) const {
    run.StartFold(std::move(fold.job));
  }
  void operator()(effect::UpdateStatistics& update) const {
    run.StartUpdate(std::move(update.job));
  }
  void operator()(effect::MeasureDrift& measure) const {
    run.StartMeasuring(std::move(measure));
  }
  void operator()(effect::Discard& discard) const { discard.what.reset(); }
  void operator()(effect::Committed& committed) const {
    if (run.host_.trace() != nullptr) {
      run.host_.trace()->Committed(committed.record, run.clock_.Now());
    }
    run.listener_.OnCommitted(committed.record, committed.observation);
  }
  void operator()(effect::PolicyChanged& changed) const {
    if (changed.record.changed.contains("workers")) {
      const int32_t workers = run.options().workers;
      run.streams().SetLimits(StreamRegistry::LimitsOf(workers));
      run.host_.pulls().SetLimits(PullTable::LimitsOf(workers));
    }
    if (changed.state.has_value()) {
      changed.state = run.WithWeights(*std::move(changed.state));
    }
    run.listener_.OnPolicyChanged(changed.record, std::move(changed.state));
    run.NotePolicyMoved();
  }
  void operator()(effect::Evaluated& evaluated) const {
    run.listener_.OnEvaluated(evaluated.record);
  }
  void operator()(effect::WriteCheckpoint& write) const {
    RunState state = run.WithWeights(std::move(write.state));
    if (write.awaited) {
      run.listener_.OnMilestone(std::move(state));
    } else {
      run.listener_.OnCheckpoint(std::move(state));
    }
  }
  void operator()(effect::Log& log) const { run.listener_.OnLogged(log); }
  void operator()(effect::RunEnded& ended) const {
    run.listener_.OnEnded(ended, ended.version == nullptr
                                     ? nullptr
                                     : run.WithWeights(ended.version));
    run.NotePolicyMoved();
  }
  template <typename Command>
  void operator()(Command& command) const {
    run.Send(std::move(command));
  }
};

RunHost::Duty RunHost::TakeDuty() {
  if (stopped_) outbox_.clear();
  if (dispatching_ || outbox_.empty()) return {};
  if (!started_) return {.early = true};
  dispatching_ = true;
  return {.batch = std::exchange(outbox_, {})};
}

void RunHost::Dispatch(Duty duty) {
  if (duty.early) return listener_.OnChangedBeforeStart();
  while (!duty.batch.empty()) {
    // A lost effect would leave the run and its workers inconsistent for good,
    // and dispatching_ set; so an exception ends the process.
    Dispatcher dispatcher{.run = *this};
    for (Effect& effect : duty.batch) {
      AllOrExit(EffectName(effect), [&dispatcher, &effect] {
        if (!std::holds_alternative<effect::ReduceResult>(effect)) {
          dispatcher.SendResults();
        }
        std::visit(dispatcher, effect);
      });
    }
    AllOrExit("reduce result", [&dispatcher] { dispatcher.SendResults(); });
    // What the effects hold must not be freed inside the lock.
    duty.batch.clear();
    MutexLock lock(mu_);
    dispatching_ = false;
    duty = TakeDuty();
    if (!dispatching_) dispatched_.NotifyAll();
  }
}

}  // namespace cohort
