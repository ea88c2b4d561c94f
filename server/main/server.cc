#include "server/main/server.h"

#include <grpcpp/impl/service_type.h>

#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/formats/file_system.h"
#include "common/log/log.h"
#include "common/ops/process_collector.h"
#include "common/status_macros.h"
#include "server/core/ledger/gradient_budget.h"
#include "server/main/start_files.h"
#include "server/rpc/call_interceptor.h"
#include "server/rpc/services.h"

namespace cohort {
namespace {

// Neither the end of a session nor the answer to a watcher wakes the thread
// that waits for them, so it looks.
constexpr absl::Duration kLeavePoll = absl::Milliseconds(50);

std::string RandomRunId() {
  std::random_device device;
  std::string id;
  for (int i = 0; i < 3; ++i) {
    absl::StrAppendFormat(&id, "%04x", device() & 0xffff);
  }
  return id;
}

// Sets the options that the server chooses itself: the identity, and
// incarnations that increase over restarts whatever the clock does.
void CompleteOptions(const RunFiles& files, CoordinatorOptions& options) {
  const std::optional<Checkpoint>& restored = files.restored();
  if (restored.has_value()) {
    options.run_id = restored->identity.run_id;
  } else if (options.run_id.empty()) {
    options.run_id = RandomRunId();
  }
  if (options.run_name.empty()) {
    options.run_name = absl::StrCat("run-", options.run_id);
  }
  options.first_incarnation = files.first_incarnation();
}

void LogCommit(const CommitRecord& record) {
  const auto rank = [](std::string* out, Rank member) {
    absl::StrAppend(out, member.value());
  };
  Log(LogLevel::kDebug,
      absl::StrFormat(
          "commit%s: %d images of %s, loss %g, learning rate %g, staleness %d",
          record.skipped ? " skipped" : "", record.commit_samples,
          absl::StrCat(record.members.size() == 1 ? "worker " : "workers ",
                       absl::StrJoin(record.members, ", ", rank)),
          record.loss, record.learning_rate, record.staleness_versions));
}

// "1 worker", "2 to 4 workers".
std::string WaitedForText(const CoordinatorOptions& options) {
  const std::string most = absl::StrCat(
      options.workers, options.workers == 1 ? " worker" : " workers");
  return options.elastic() && options.workers_min < options.workers
             ? absl::StrCat(options.workers_min, " to ", most)
             : most;
}

// `admin_address` is empty if this port serves Admin too; then gRPC's own
// answer will do.
std::function<std::string(absl::string_view)> UnservedText(
    const std::string& admin_address) {
  if (admin_address.empty()) return nullptr;
  return [admin_address](absl::string_view method) -> std::string {
    if (!absl::StartsWith(method, "/cohort.v1.Admin/")) return "unknown method";
    return absl::StrCat(
        "this port serves workers only; cohortctl is served at ", admin_address,
        " (--admin_listen)");
  };
}

// A run that is over needs no data shards: its checkpoint has all partitions.
void ServeAloneIfOver(const RunState& restored, ServerOptions& options) {
  if (!IsOver(restored, options.coordinator)) return;
  options.ended_shard_addresses = std::exchange(options.shard_addresses, {});
  options.coordinator.shards = 1;
}

// Tells page and events how the run continues.
void NoteContinued(const ServerOptions& options, const RunFiles& files,
                   RunStats& stats) {
  stats.ContinueEvents(options.handover.events);
  const std::optional<Checkpoint>& restored = files.restored();
  const bool same_process = options.handover.shards != nullptr;
  if (!restored.has_value()) {
    // The first server of a run has nothing to tell.
    if (!same_process) return;
    stats.Happened({.text = "all shards start again from step 0, because "
                            "there is no checkpoint yet"});
    return;
  }
  stats.Happened(
      {.text = absl::StrCat(same_process ? "all shards continue from step "
                                         : "the server was restarted; the run "
                                           "continues from step ",
                            restored->state.snapshot->version.value())});
  const size_t kept = restored->state.policy_history.size();
  if (kept >= options.handover.policies) return;
  const std::string undone =
      absl::StrCat("live changes made after the last checkpoint are undone: ",
                   options.handover.policies - kept,
                   "; `cohortctl policy history` lists those that are kept");
  stats.Happened({.severity = LogLevel::kWarning, .text = undone});
  Log(LogLevel::kWarning, undone);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> StartServer(
    const ServerOptions& options, std::ostream& out) {
  // With --resume, settings may come from the checkpoint.
  if (!options.files.resume) COHORT_RETURN_IF_ERROR(Validate(options));
  COHORT_ASSIGN_OR_RETURN(std::unique_ptr<ServerSecurity> security,
                          ServerSecurity::Open(options.security));
  std::shared_ptr<TraceFile> trace = options.handover.trace;
  if (trace == nullptr) {
    COHORT_ASSIGN_OR_RETURN(trace, OpenTrace(options.trace, "server"));
  }
  RunFilesOptions file_options = options.files;
  file_options.timeline = trace.get();
  COHORT_ASSIGN_OR_RETURN(std::unique_ptr<RunFiles> files,
                          RunFiles::Open(RealFileSystem(), file_options));
  ServerOptions complete = options;
  if (files->restored().has_value()) {
    COHORT_ASSIGN_OR_RETURN(
        complete.coordinator,
        ContinuedOptions(*files->restored(), options.coordinator,
                         options.given));
    COHORT_RETURN_IF_ERROR(
        CheckContinuable(*files->restored(), complete.coordinator));
    ServeAloneIfOver(files->restored()->state, complete);
  }
  COHORT_RETURN_IF_ERROR(Validate(complete));
  if (files->restored().has_value()) {
    COHORT_RETURN_IF_ERROR(CheckShards(complete.coordinator,
                                       files->restored()->state.model->layout));
  }
  COHORT_RETURN_IF_ERROR(security->NameRun(complete.coordinator.run_name));
  complete.coordinator.inflight_bytes_max =
      WithinMemory(complete.inflight_bytes_max);
  if (files->restored().has_value()) {
    COHORT_RETURN_IF_ERROR(CheckInflight(
        complete.coordinator, files->restored()->state.model->layout));
  }
  std::unique_ptr<Server> server(new Server(
      complete, out, std::move(security), std::move(trace), std::move(files)));
  const absl::Status started = server->Start();
  if (started.ok()) return server;
  server->Stop();
  // A stop that could not write what was changed is no ordinary one.
  COHORT_RETURN_IF_ERROR(server->Summary().files);
  return started;
}

Server::Server(const ServerOptions& options, std::ostream& out,
               std::unique_ptr<ServerSecurity> security,
               std::shared_ptr<TraceFile> trace,
               std::unique_ptr<RunFiles> files)
    : options_(options),
      out_(out),
      stats_(clock_),
      calls_(CoordinatorMethods(), clock_),
      lifecycle_({.data_shards = !options.shard_addresses.empty(),
                  .exit_when_done = options.exit_when_done}),
      security_(std::move(security)),
      trace_(std::move(trace)),
      files_(std::move(files)),
      doors_(options_, *security_, calls_),
      operations_(options_, *security_) {}

Server::~Server() { Stop(); }

absl::Status Server::Start() {
  NameRun();
  MakeRun();
  COHORT_RETURN_IF_ERROR(OpenRecorder());
  COHORT_RETURN_IF_ERROR(Listen());
  operations_.StartReport(*figures_);
  COHORT_RETURN_IF_ERROR(operations_.Start(address_, {.calls = calls_.metrics,
                                                      .figures = figures_.get(),
                                                      .watchers = &watchers_}));
  COHORT_RETURN_IF_ERROR(
      WriteAddressFile(options_.ops_address_file, ops_address()));
  PrintStart();
  if (options_.handover.drain.has_value()) {
    // Asked for before the loss of a data shard, which does not undo it. It
    // fails only if the run is over.
    run_->Drain(*options_.handover.drain).IgnoreError();
    MutexLock lock(mu_);
    drain_asked_for_ = options_.handover.drain;
  }
  // Page and cohortctl name the data shards that are not there. Workers are
  // refused until then.
  COHORT_RETURN_IF_ERROR(AttachDataShards());
  // The file of the address appears only now: programs that wait for it start
  // workers, which are refused while a data shard is missing.
  files_->ForgetRestored();
  endings_->recorder().Begin();
  COHORT_RETURN_IF_ERROR(WriteAddressFile(options_.address_file, address_));
  run_->Start(address_);
  // Later versions are at the data shards.
  if (!OverBeforeStart()) shards_->KeepWhole(nullptr);
  operations_.SetReady(absl::OkStatus());
  return absl::OkStatus();
}

void Server::NameRun() {
  const std::optional<Checkpoint>& restored = files_->restored();
  CoordinatorOptions& coordinator = options_.coordinator;
  CompleteOptions(*files_, coordinator);
  // The server's incarnation is the first that this start hands out.
  SetLogContext({{"run", coordinator.run_id},
                 {"run_name", coordinator.run_name},
                 IncarnationField(coordinator.first_incarnation)});
  SetLogVersion(restored.has_value() ? restored->state.snapshot->version.value()
                                     : 0);
  if (trace_ != nullptr) trace_->SetIdentity(coordinator.run_id, -1);
  if (restored.has_value()) kept_states_.Restore(restored->state);
  CheckpointWriter::Complete complete = [this](RunState state) {
    return kept_states_.Complete(std::move(state));
  };
  if (coordinator.shards > 1) {
    // Their workers keep no state.
    complete = [this](RunState state) {
      return shards_->WithAllPartitions(std::move(state));
    };
  }
  files_->BeginRun({.run_id = coordinator.run_id,
                    .seed = coordinator.seed,
                    .run_name = coordinator.run_name},
                   std::move(complete));
  if (security_->audit() != nullptr) {
    security_->audit()->SetRun(coordinator.run_id);
  }
}

void Server::MakeRun() {
  const std::optional<Checkpoint>& restored = files_->restored();
  const bool shared = options_.coordinator.shards > 1;
  if (shared) options_.local = "tcp";
  if (options_.local == "auto" || options_.local == "shm") {
    local_weights_ = std::make_shared<SharedFloatFiles>();
  }
  shards_ = std::make_unique<DataShards>(
      options_, *security_, stats_,
      DataShards::Reactions{
          .on_leaving = [this](int32_t shard) { OnShardLeaving(shard); },
          .on_lost = [this](const absl::Status& why) { OnShardLost(why); }});
  run_ = std::make_unique<RunHost>(
      RunHostOptions{
          .coordinator = options_.coordinator,
          .fold_threads = options_.fold_threads,
          .memory_bytes = MemoryLimitBytes(),
          .weight_bytes_max = options_.model_bytes_max,
          .data_shards = shards_->links(),
          .data_addresses = options_.shard_addresses,
          .shard_stats = shards_->stats().get(),
          .weights_memory = local_weights_,
          .timeline = trace_.get(),
          .on_policy_moved =
              [this](const PolicyView& policy) {
                change_waits_.Check(policy, clock_.Now());
              },
          .on_denied_rank =
              [access = security_->access()](const std::string& who) {
                if (access != nullptr) access->NoteRank(who);
              }},
      restored.has_value() ? &restored->state : nullptr, clock_,
      // Converted here because the base class is private.
      static_cast<RunListener&>(*this));
  shards_->SendTo(*run_);
  if (restored.has_value() && shared) {
    shards_->KeepWhole(restored->state.snapshot);
  }
}

void Server::PrintStart() {
  const CoordinatorOptions& coordinator = options_.coordinator;
  const std::optional<Checkpoint>& restored = files_->restored();
  out_ << "run " << coordinator.run_id << ": listening on " << address_
       << ", waiting for " << WaitedForText(coordinator) << ", "
       << PolicyText(coordinator.policy) << '\n';
  if (restored.has_value()) {
    out_ << "continuing from " << restored->path << ", step "
         << restored->state.snapshot->version << '\n';
  }
  if (!admin_address().empty()) {
    out_ << "cohortctl is served at " << admin_address() << '\n';
  }
  if (const std::string page = operations_.url(); !page.empty()) {
    out_ << "page: " << page << '\n';
  }
  out_ << std::flush;
}

absl::Status Server::OpenRecorder() {
  const std::optional<Checkpoint>& restored = files_->restored();
  COHORT_ASSIGN_OR_RETURN(
      std::unique_ptr<RunRecorder> recorder,
      RunRecorder::Open(
          {.results_dir = options_.files.results_dir,
           .tensorboard_dir = options_.tensorboard_dir,
           .restored =
               restored.has_value()
                   ? std::make_optional(restored->state.snapshot->version)
                   : std::nullopt,
           .terminal = options_.terminal,
           .run = options_.coordinator,
           .policies = run_->Policy().history,
           .policies_before = restored.has_value()
                                  ? restored->state.policy_history.size()
                                  : 0},
          out_, clock_, [this] { return run_->Status(); }));
  stats_.Continue(recorder->earlier());
  NoteContinued(options_, *files_, stats_);
  endings_ = std::make_unique<Endings>(
      Endings::Sources{*run_, *files_, *shards_, kept_states_, operations_,
                       out_},
      std::move(recorder));
  return absl::OkStatus();
}

absl::Status Server::Listen() {
  figures_ = std::make_unique<FiguresSource>(*run_, stats_, *files_, clock_,
                                             [this] { return Links(); });
  COHORT_RETURN_IF_ERROR(doors_.OpenLocal(*run_, local_weights_));
  Transport::Services services;
  services.push_back(MakeMembershipService(*run_, calls_, doors_.local()));
  services.push_back(MakeParametersService(*run_, calls_, doors_.local()));
  services.push_back(MakeMomentsService(*run_, calls_));
  services.push_back(MakeKeptStateService(
      *run_, {.states = &kept_states_,
              .keeps_checkpoints = files_->keeps_checkpoints(),
              .continues = [this](Version version) {
                return OnKeptStateLost(version);
              }}));
  Transport::Services admin;
  (options_.admin_listen.empty() ? services : admin)
      .push_back(MakeAdminService(
          *run_, {.checkpoint =
                      [this](absl::Duration patience) {
                        return endings_->CheckpointNow(patience);
                      },
                  .export_model = [this] { return endings_->ExportNow(); },
                  .keeps_checkpoints = files_->keeps_checkpoints(),
                  .figures = [this] { return figures_->Refreshed(); },
                  .on_status = [this] { watchers_.Asked("status"); },
                  .on_drained =
                      [this](const std::string& reason) {
                        MutexLock lock(mu_);
                        drain_asked_for_ = reason;
                      },
                  .audit = security_->audit(),
                  .ops_address = [this] { return ops_address(); },
                  .certificate_end = [this] { return security_->not_after(); },
                  .change_waits = &change_waits_}));
  COHORT_RETURN_IF_ERROR(doors_.ListenForAdmin(std::move(admin)));
  COHORT_RETURN_IF_ERROR(doors_.Listen(std::move(services),
                                       options_.coordinator.inflight_bytes_max,
                                       UnservedText(admin_address())));
  {
    // Admin may be served already.
    MutexLock lock(mu_);
    address_ = doors_.address().ToString();
  }
  doors_.LogReach();
  return absl::OkStatus();
}

absl::Status Server::AttachDataShards() {
  const absl::Status attached = shards_->Attach(
      [this](const std::string& waiting) {
        operations_.SetReady(absl::UnavailableError(waiting));
      },
      [this] {
        NoteRequestedStop();
        MutexLock lock(mu_);
        return lifecycle_.GivesUpShards();
      });
  MutexLock lock(mu_);
  if (lifecycle_.over_before_start()) return absl::OkStatus();
  if (attached.ok()) lifecycle_.Attached();
  return attached;
}

void Server::NoteRequestedStop() {
  if (options_.stop_requested != nullptr && options_.stop_requested()) {
    RequestStop();
  }
}

bool Server::OverBeforeStart() const {
  MutexLock lock(mu_);
  return lifecycle_.over_before_start();
}

Handover Server::TakeHandover() {
  MutexLock lock(mu_);
  return {.shards = shards_->stats(),
          .trace = trace_,
          .events = stats_.sums().events,
          .policies = run_->Policy().history.size(),
          .drain = drain_asked_for_};
}

RunLinks Server::Links() const {
  MutexLock lock(mu_);
  return {.address = address_, .dashboards_url = options_.dashboards_url};
}

// ---- the main thread

RunSummary Server::Wait() {
  for (;;) {
    switch (AwaitTask()) {
      case ServerLifecycle::Task::kStoreMilestone:
        StoreMilestone();
        break;
      case ServerLifecycle::Task::kSaveForLeaving:
        SaveForLeaving();
        break;
      case ServerLifecycle::Task::kStay:
        Stay();
        break;
      case ServerLifecycle::Task::kWait:
      case ServerLifecycle::Task::kStop:
        Stop();
        return Summary();
    }
  }
}

ServerLifecycle::Task Server::AwaitTask() {
  MutexLock lock(mu_);
  for (;;) {
    const ServerLifecycle::Task task = lifecycle_.TakeTask();
    if (task != ServerLifecycle::Task::kWait) return task;
    changed_.Wait(mu_);
  }
}

void Server::StoreMilestone() {
  RunState state;
  {
    MutexLock lock(mu_);
    state = *std::exchange(milestone_, std::nullopt);
  }
  const absl::StatusOr<RunState> whole =
      shards_->WithAllPartitions(std::move(state));
  // A data shard is gone, or about to be.
  if (!whole.ok()) return OnShardLost(whole.status());
  // A server that continues from here adds nothing to the history.
  if (whole->ended.has_value()) endings_->recorder().Finish();
  if (whole->last) shards_->KeepWhole(whole->snapshot);
  // The log tells of an error; the next checkpoint may succeed.
  files_->SaveCheckpoint(*whole).IgnoreError();
  run_->CheckpointStored();
}

void Server::SaveForLeaving() {
  int32_t shard = 0;
  {
    MutexLock lock(mu_);
    shard = lifecycle_.leaving_shard();
  }
  // The others repeat nothing of what was done until now. The log tells of an
  // error.
  const absl::StatusOr<RunState> state = run_->State();
  if (state.ok()) files_->SaveCheckpoint(*state).IgnoreError();
  const absl::Status why = shards_->LeavingBecause(shard);
  {
    MutexLock lock(mu_);
    if (!lifecycle_.LeavingShardSaved(why.message())) return;
  }
  shards_->NoteLost(shard, why);
}

// Results are written before the wait.
void Server::Stay() {
  const bool for_watchers = options_.exit_when_done;
  const absl::Duration patience =
      for_watchers ? watchers_.UntilAllAsk() : absl::InfiniteDuration();
  if (patience <= absl::ZeroDuration()) return;
  RunSummary summary = Summary();
  endings_->WriteResults(summary);
  // The last checkpoint has the state that workers send before they leave.
  if (summary.snapshot != nullptr &&
      kept_states_.Lacks(summary.snapshot->version)) {
    WaitForLeavers();
  }
  if (for_watchers) {
    endings_->Conclude(summary);
  } else {
    endings_->WriteLastCheckpoint(summary);
  }
  Log(LogLevel::kInfo,
      for_watchers
          ? absl::StrCat("the server stays up for ", SecondsText(patience),
                         " so that clients watching the run see its end")
          : "the run is over; the server stays up until it is stopped "
            "(--exit_when_done=false)");
  const Instant begin = clock_.Now();
  MutexLock lock(mu_);
  if (for_watchers) {
    summary_ = summary;
    lifecycle_.Concluded();
  }
  while (!lifecycle_.LeavingRequested() &&
         !(for_watchers && watchers_.HaveSeen(begin, patience))) {
    changed_.WaitFor(mu_, kLeavePoll);
  }
}

// ---- the stop

void Server::RequestStop() {
  MutexLock lock(mu_);
  lifecycle_.RequestStop();
  changed_.NotifyAll();
}

void Server::Stop() {
  RunSummary summary;
  bool results_first = false;
  bool awaits_leavers = false;
  {
    MutexLock lock(mu_);
    if (!lifecycle_.BeginStop()) {
      while (!lifecycle_.stopped()) changed_.Wait(mu_);
      return;
    }
    changed_.NotifyAll();
    summary = summary_;
    results_first = lifecycle_.EndsWithResults();
    awaits_leavers = lifecycle_.AwaitsLeavers();
  }
  // The run stops before the ending is written, so that nothing changes it any
  // more. Data shards are ended after that: the last checkpoint has their
  // partitions. The operations port closes last and says until then that the
  // server is stopping.
  operations_.SetReady(absl::UnavailableError("the server is stopping"));
  if (results_first) endings_->WriteResults(summary);
  if (awaits_leavers) {
    WaitForLeavers();
  } else {
    SaveWithKeptState();
  }
  kept_states_.Close();
  if (run_ != nullptr) run_->CloseStreams();
  operations_.StopProbe();
  doors_.Shutdown();
  if (run_ != nullptr) run_->Stop();
  // Null if the start failed before the recorder was opened.
  if (endings_ != nullptr) WriteEnding(summary);
  EndDataShards(summary);
  operations_.Close();
  if (trace_ != nullptr && !trace_->status().ok()) {
    Log(LogLevel::kError, trace_->status().message());
  }
  MutexLock lock(mu_);
  summary_ = summary;
  lifecycle_.Stopped();
  changed_.NotifyAll();
}

void Server::WaitForLeavers() {
  const Instant deadline = clock_.Now() + options_.leave_grace;
  MutexLock lock(mu_);
  // Workers that were not notified of the end will reconnect.
  const bool come_back =
      !options_.ended_shard_addresses.empty() || lifecycle_.over_before_start();
  while ((come_back || run_->partitions().streams().sessions() > 0) &&
         !lifecycle_.stop_requested() && clock_.Now() < deadline) {
    changed_.WaitFor(mu_, kLeavePoll);
  }
}

void Server::SaveWithKeptState() {
  if (endings_ == nullptr || !files_->keeps_checkpoints()) return;
  {
    MutexLock lock(mu_);
    if (lifecycle_.ending() != ServerLifecycle::Ending::kConclude) return;
  }
  const absl::StatusOr<RunState> state = run_->State();
  if (!state.ok() || !kept_states_.Lacks(state->snapshot->version)) return;
  // Training continues: workers send it when they begin a step.
  kept_states_.CloseAfter(options_.leave_grace);
  const absl::StatusOr<Version> written = endings_->CheckpointNow();
  if (written.ok()) return;
  Log(LogLevel::kWarning,
      absl::StrCat("no checkpoint of this moment: ", written.status().message(),
                   "; the run continues from an earlier one"));
}

void Server::WriteEnding(RunSummary& summary) {
  NoteRequestedStop();
  ServerLifecycle::Ending ending;
  {
    MutexLock lock(mu_);
    ending = lifecycle_.ending();
  }
  switch (ending) {
    case ServerLifecycle::Ending::kNothing:
      return;
    case ServerLifecycle::Ending::kConclude:
      if (!summary.outcome.has_value()) endings_->WriteResults(summary);
      return endings_->Conclude(summary);
    case ServerLifecycle::Ending::kConcludeWithoutShards:
      return endings_->ConcludeWithoutShards(summary);
    case ServerLifecycle::Ending::kFinishRecorder:
      return endings_->recorder().Finish();
  }
}

void Server::EndDataShards(RunSummary& summary) {
  bool run_is_over = false;
  bool some_missing = false;
  {
    MutexLock lock(mu_);
    lifecycle_.FilesWritten(summary.files.ok());
    summary.lost_shard = lifecycle_.ContinuesBecause();
    run_is_over = lifecycle_.EndsShards();
    some_missing = lifecycle_.over_before_start();
  }
  if (shards_ != nullptr) shards_->End(run_is_over, some_missing);
  // A checkpoint may be asking them for their partitions.
  files_->AwaitWriter();
}

RunSummary Server::Summary() const {
  MutexLock lock(mu_);
  return summary_;
}

// ---- events

void Server::OnShardLost(const absl::Status& why) {
  MutexLock lock(mu_);
  lifecycle_.ShardLost(why.message());
  changed_.NotifyAll();
}

bool Server::OnKeptStateLost(Version version) {
  if (!files_->keeps_checkpoints()) return false;
  OnShardLost(absl::UnavailableError(absl::StrCat(
      "no worker is left that has the kept state of step ", version.value())));
  return true;
}

void Server::OnShardLeaving(int32_t shard) {
  {
    MutexLock lock(mu_);
    if (!lifecycle_.ShardLeaving(shard)) return changed_.NotifyAll();
  }
  shards_->Release(shard);
}

void Server::OnMilestone(RunState state) {
  MutexLock lock(mu_);
  milestone_ = std::move(state);
  lifecycle_.MilestoneReached();
  changed_.NotifyAll();
}

void Server::OnFolded(absl::Duration took) { stats_.Applied(took); }

void Server::OnDrift(const std::vector<LayerDrift>& drift) {
  stats_.Drifted(drift);
}

void Server::OnCommitted(const CommitRecord& record,
                         const CommitObservation& observation) {
  stats_.Committed(record, observation);
  progress_.Made();
  SetLogVersion(record.version.value());
  endings_->recorder().Committed(record);
  if (CurrentLogLevel() == LogLevel::kDebug) LogCommit(record);
}

void Server::OnPolicyChanged(const PolicyRecord& record,
                             std::optional<RunState> state) {
  endings_->recorder().PolicyChanged(record);
  // A restart does not undo the change.
  if (state.has_value()) files_->KeepChange(*std::move(state));
}

void Server::OnChangedBeforeStart() {
  if (run_->facts().ended) {
    MutexLock lock(mu_);
    return lifecycle_.OverBeforeStart();
  }
  absl::StatusOr<RunState> state = run_->State();
  if (state.ok()) files_->KeepChange(*std::move(state));
}

void Server::OnEvaluated(const EvaluationRecord& record) {
  stats_.Evaluated(record);
  endings_->recorder().Evaluated(record);
}

void Server::OnLogged(const effect::Log& log) {
  bool continues_elsewhere = false;
  {
    MutexLock lock(mu_);
    continues_elsewhere = lifecycle_.shard_lost();
  }
  // Workers whose streams end because the next server takes over are not news.
  if (!continues_elsewhere) stats_.Happened(log);
  if (!log.worker.has_value()) {
    Log(log.severity, log.text);
    return;
  }
  // Replaces the server's own incarnation in the line.
  Log(log.severity, log.text,
      {{"worker", absl::StrCat(log.worker->rank.value())},
       IncarnationField(log.worker->incarnation)});
}

void Server::OnCheckpoint(RunState state) {
  // Before workers learn of the version, so that they send its kept state.
  kept_states_.Want(state.snapshot->version);
  files_->OfferCheckpoint(std::move(state));
}

void Server::OnEnded(const effect::RunEnded& ended,
                     const SharedSnapshot& snapshot) {
  MutexLock lock(mu_);
  lifecycle_.RunEnded(ended.outcome);
  summary_.outcome = ended.outcome;
  summary_.reason = ended.reason;
  summary_.model = ended.model;
  summary_.snapshot = snapshot;
  changed_.NotifyAll();
}

}  // namespace cohort
