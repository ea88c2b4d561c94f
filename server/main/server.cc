#include "server/main/server.h"

#include <grpcpp/impl/service_type.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/formats/file_system.h"
#include "common/listen_address.h"
#include "common/log/log.h"
#include "common/measures/staleness_histogram.h"
#include "common/ops/process_collector.h"
#include "common/status_macros.h"
#include "common/wire/security.h"
#include "server/core/ledger/gradient_budget.h"
#include "server/main/start_files.h"
#include "server/records/progress_text.h"
#include "server/rpc/call_interceptor.h"

namespace cohort {
namespace {

// For calls that are still under way when the server stops.
constexpr absl::Duration kCallGrace = absl::Seconds(2);
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

LogLevel LevelOf(Severity severity) {
  switch (severity) {
    case Severity::kInfo:
      return LogLevel::kInfo;
    case Severity::kWarning:
      return LogLevel::kWarning;
    case Severity::kError:
      return LogLevel::kError;
  }
  return LogLevel::kError;
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

void KeepFirst(absl::Status& kept, const absl::Status& status) {
  if (kept.ok()) kept = status;
}

// "1 worker", "2 to 4 workers".
std::string WaitedForText(const CoordinatorOptions& options) {
  const std::string most = absl::StrCat(
      options.workers, options.workers == 1 ? " worker" : " workers");
  return options.elastic() && options.workers_min < options.workers
             ? absl::StrCat(options.workers_min, " to ", most)
             : most;
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
    Server::ServeAloneIfOver(files->restored()->state, complete);
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
  COHORT_RETURN_IF_ERROR(server->FilesStatus());
  return started;
}

Server::Server(const ServerOptions& options, std::ostream& out,
               std::unique_ptr<ServerSecurity> security,
               std::shared_ptr<TraceFile> trace,
               std::unique_ptr<RunFiles> files)
    : options_(options),
      out_(out),
      stats_(clock_),
      grpc_metrics_(CoordinatorMethods()),
      security_(std::move(security)),
      trace_(std::move(trace)),
      files_(std::move(files)) {}

Server::~Server() { Stop(); }

absl::Status Server::Start() {
  const std::optional<Checkpoint>& restored = files_->restored();
  CoordinatorOptions& coordinator = options_.coordinator;
  CompleteOptions(*files_, coordinator);
  // The server's incarnation is the first that this start hands out.
  SetLogContext(
      {{"run", coordinator.run_id},
       {"run_name", coordinator.run_name},
       {"incarnation", absl::StrCat(coordinator.first_incarnation.value())}});
  SetLogVersion(restored.has_value() ? restored->state.snapshot->version.value()
                                     : 0);
  if (trace_ != nullptr) trace_->SetIdentity(coordinator.run_id, -1);
  CheckpointWriter::Complete complete;
  if (coordinator.shards > 1) {
    complete = [this](RunState state) {
      return WithAllPartitions(std::move(state));
    };
  }
  files_->BeginRun({.run_id = coordinator.run_id,
                    .seed = coordinator.seed,
                    .policy = PolicyText(coordinator.policy),
                    .run_name = coordinator.run_name},
                   std::move(complete));
  if (security_->audit() != nullptr) {
    security_->audit()->SetRun(coordinator.run_id);
  }
  if (coordinator.shards > 1) options_.local = "tcp";
  if (options_.local == "auto" || options_.local == "shm") {
    local_weights_ = std::make_shared<SharedFloatFiles>();
  }
  MakeDataShards(options_.shard_addresses);
  std::vector<PartitionsLink*> links;
  for (const auto& data_shard : data_shards_) links.push_back(data_shard.get());
  run_ = std::make_unique<RunHost>(
      RunHostOptions{
          .coordinator = coordinator,
          .fold_threads = options_.fold_threads,
          .memory_bytes = MemoryLimitBytes(),
          .weight_bytes_max = options_.model_bytes_max,
          .data_shards = std::move(links),
          .data_addresses = options_.shard_addresses,
          .shard_stats = shard_stats_.get(),
          .weights_memory = local_weights_,
          .timeline = trace_.get(),
          .on_denied_rank =
              [access = security_->access()](const std::string& who) {
                if (access != nullptr) access->NoteRank(who);
              }},
      restored.has_value() ? &restored->state : nullptr, clock_,
      // Converted here because the base class is private.
      static_cast<RunListener&>(*this));
  if (restored.has_value() && coordinator.shards > 1) {
    MutexLock lock(mu_);
    whole_ = restored->state.snapshot;
  }
  COHORT_RETURN_IF_ERROR(OpenRecorder());
  COHORT_RETURN_IF_ERROR(Listen());
  StartReport();
  COHORT_RETURN_IF_ERROR(StartOps());
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
  files_->ForgetRestored();
  recorder_->Begin();
  COHORT_RETURN_IF_ERROR(WriteAddressFile(options_.address_file, address_));
  run_->Start(address_);
  if (!OverBeforeStart()) {
    // Later versions are at the data shards.
    MutexLock lock(mu_);
    whole_ = nullptr;
  }
  if (ops_ != nullptr) ops_->SetReady(absl::OkStatus());
  return absl::OkStatus();
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
  if (admin_ != nullptr) {
    out_ << "cohortctl is served at " << admin_->address().ToString() << '\n';
  }
  if (ops_ != nullptr) {
    out_ << "page: " << UrlHere(ops_->address(), security_->encrypted())
         << '\n';
  }
  out_ << std::flush;
}

absl::Status Server::OpenRecorder() {
  const std::optional<Checkpoint>& restored = files_->restored();
  COHORT_ASSIGN_OR_RETURN(
      recorder_,
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
  stats_.Continue(recorder_->earlier());
  NoteContinued();
  return absl::OkStatus();
}

RunSummary Server::Wait() {
  while (std::optional<RunState> milestone = AwaitMilestone()) {
    StoreMilestone(*std::move(milestone));
  }
  LetShardLeave();
  {
    MutexLock lock(mu_);
    if (!summary_.outcome.has_value()) summary_.lost_shard = lost_shard_;
  }
  if (options_.exit_when_done) {
    StayForWatchers();
  } else {
    StayUntilStopped();
  }
  Stop();
  MutexLock lock(mu_);
  return summary_;
}

// Stays only if the run is done: after any other end, a supervisor that starts
// the server again continues the run.
void Server::StayUntilStopped() {
  RunSummary summary;
  {
    MutexLock lock(mu_);
    summary = summary_;
  }
  if (summary.outcome != RunOutcome::kFinished &&
      summary.outcome != RunOutcome::kDrained) {
    return;
  }
  // Results are written before the wait. Stop then has nothing left to write.
  WriteResults(summary);
  WriteLastCheckpoint(summary);
  Log(LogLevel::kInfo,
      "the run is over; the server stays up until it is stopped "
      "(--exit_when_done=false)");
  MutexLock lock(mu_);
  while (!stop_requested_ && !stopping_) changed_.Wait(mu_);
}

void Server::RequestStop() {
  MutexLock lock(mu_);
  stop_requested_ = true;
  changed_.NotifyAll();
}

void Server::Stop() {
  RunSummary summary;
  bool concluded = false;
  {
    MutexLock lock(mu_);
    if (stopping_) {
      while (!stopped_) changed_.Wait(mu_);
      return;
    }
    stopping_ = true;
    changed_.NotifyAll();
    summary = summary_;
    concluded = concluded_;
  }
  if (ops_ != nullptr) {
    ops_->SetReady(absl::UnavailableError("the server is stopping"));
  }
  // Null if the start failed before the recorder was opened.
  if (recorder_ != nullptr && summary.outcome.has_value()) {
    if (!concluded) WriteResults(summary);
    WaitForLeavers();
  }
  if (run_ != nullptr) run_->CloseStreams();
  if (probe_ != nullptr) probe_->Stop();
  if (admin_ != nullptr) admin_->Shutdown(kCallGrace);
  if (transport_ != nullptr) transport_->Shutdown(kCallGrace);
  if (run_ != nullptr) run_->Stop();
  const bool without_shards =
      !data_shards_.empty() && !attached_ && !summary.outcome.has_value();
  if (recorder_ != nullptr && (without_shards || !summary.lost_shard.empty())) {
    // The partitions of this version are gone, or were never here.
    recorder_->Finish();
    if (options_.stop_requested != nullptr && options_.stop_requested()) {
      ConcludeWithoutShards(summary);
    }
  } else if (recorder_ != nullptr && !concluded) {
    if (!summary.outcome.has_value()) WriteResults(summary);
    Conclude(summary);
  }
  NoteLostAtTheEnd(summary);
  EndDataShards(summary.outcome.has_value() && summary.lost_shard.empty());
  security_->StopWatching();
  ops_.reset();
  probe_.reset();
  report_.reset();
  figures_.reset();
  if (trace_ != nullptr && !trace_->status().ok()) {
    Log(LogLevel::kError, trace_->status().message());
  }
  MutexLock lock(mu_);
  summary_ = summary;
  stopped_ = true;
  changed_.NotifyAll();
}

void Server::WriteResults(RunSummary& summary) {
  WriteModelAndStaleness(summary);
  // The report says whether the model was written.
  if (report_ != nullptr) KeepFirst(summary.files, report_->Write());
}

void Server::WriteModelAndStaleness(RunSummary& summary) {
  if (run_->partitions().model() == nullptr) return;
  const absl::StatusOr<RunState> state = WholeState();
  if (!state.ok()) return KeepFirst(summary.files, state.status());
  summary.model = state->model;
  summary.snapshot = state->snapshot;
  if (!files_->keeps_results()) return;
  KeepFirst(summary.files, files_->WriteStaleness(run_->Status().staleness));
  const absl::Status written =
      files_->WriteModel(*state->model, *state->snapshot);
  KeepFirst(summary.files, written);
  Log(written.ok() ? LogLevel::kInfo : LogLevel::kError,
      written.ok()
          ? absl::StrCat("the model of step ", state->snapshot->version.value(),
                         " was written to ", files_->model_path())
          : absl::StrCat("the model could not be written: ",
                         written.message()));
}

void Server::WaitForLeavers() {
  const Instant deadline = clock_.Now() + options_.leave_grace;
  // Workers that were not told of the end are on their way back.
  const bool come_back =
      !options_.ended_shard_addresses.empty() || OverBeforeStart();
  MutexLock lock(mu_);
  while ((come_back || run_->partitions().streams().sessions() > 0) &&
         !stop_requested_ && clock_.Now() < deadline) {
    changed_.WaitFor(mu_, kLeavePoll);
  }
}

// Results are written before the server waits for watchers.
void Server::StayForWatchers() {
  const absl::Duration patience = watchers_.UntilAllAsk();
  RunSummary summary;
  {
    MutexLock lock(mu_);
    summary = summary_;
  }
  if (!summary.outcome.has_value() || patience <= absl::ZeroDuration()) return;
  WriteResults(summary);
  Conclude(summary);
  Log(LogLevel::kInfo,
      absl::StrCat("the server stays up for ", SecondsText(patience),
                   " so that clients watching the run see its end"));
  const Instant begin = clock_.Now();
  MutexLock lock(mu_);
  summary_ = summary;
  concluded_ = true;
  while (!stop_requested_ && !watchers_.HaveSeen(begin, patience)) {
    changed_.WaitFor(mu_, kLeavePoll);
  }
}

void Server::Conclude(RunSummary& summary) {
  recorder_->Finish();
  summary.last_evaluation = recorder_->last_evaluation();
  WriteLastCheckpoint(summary);
  PrintEnd(summary);
}

void Server::ConcludeWithoutShards(RunSummary& summary) {
  if (!summary.lost_shard.empty()) return;
  // A change may not be on disk yet.
  WriteLastCheckpoint(summary);
  if (const absl::StatusOr<RunState> state = run_->State(); state.ok()) {
    summary.snapshot = state->snapshot;
  }
  PrintEnd(summary);
}

absl::Status Server::FilesStatus() const {
  MutexLock lock(mu_);
  return summary_.files;
}

void Server::WriteLastCheckpoint(RunSummary& summary) {
  if (!files_->keeps_checkpoints()) return;
  const absl::StatusOr<RunState> state = run_->State();
  // Without a model there is nothing to save.
  if (!state.ok()) return;
  KeepFirst(summary.files, files_->SaveCheckpoint(*state));
}

void Server::PrintEnd(const RunSummary& summary) {
  if (!summary.outcome.has_value() && summary.snapshot == nullptr &&
      run_->Policy().history.size() > 1) {
    out_ << "stopped before a worker had registered a model, hence without a "
            "checkpoint: changes of settings are lost; give them as flags\n";
  }
  if (!summary.outcome.has_value() && summary.snapshot != nullptr) {
    out_ << "stopped at step " << summary.snapshot->version;
    if (!files_->keeps_checkpoints()) {
      out_ << "; no checkpoint was written (no --checkpoint_dir)\n";
    } else if (summary.files.ok()) {
      out_ << "; the checkpoint is in " << options_.files.checkpoint_dir
           << ", continue with the same flags and --resume\n";
    } else {
      out_ << "; " << summary.files.message() << '\n';
    }
  }
  const std::string staleness = StalenessText(run_->Status().staleness);
  if (!staleness.empty()) {
    out_ << "staleness of pushes, in steps: " << staleness << '\n';
  }
  if (summary.outcome.has_value() && summary.last_evaluation.has_value()) {
    PrintMeasures(*summary.last_evaluation, summary.snapshot, out_);
  }
  out_ << std::flush;
}

absl::Status Server::ForOperator(const absl::Status& status) const {
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

absl::StatusOr<Version> Server::CheckpointNow() {
  COHORT_ASSIGN_OR_RETURN(const RunState state, run_->State());
  COHORT_RETURN_IF_ERROR(ForOperator(files_->SaveCheckpoint(state)));
  return state.snapshot->version;
}

absl::StatusOr<Version> Server::ExportNow() {
  const absl::StatusOr<RunState> state = WholeState();
  COHORT_RETURN_IF_ERROR(ForOperator(state.status()));
  COHORT_RETURN_IF_ERROR(
      ForOperator(files_->WriteModel(*state->model, *state->snapshot)));
  return state->snapshot->version;
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
  recorder_->Committed(record);
  if (CurrentLogLevel() == LogLevel::kDebug) LogCommit(record);
}

void Server::OnPolicyChanged(const PolicyRecord& record,
                             std::optional<RunState> state) {
  recorder_->PolicyChanged(record);
  // A restart does not undo the change.
  if (state.has_value()) files_->KeepChange(*std::move(state));
}

void Server::OnChangedBeforeStart() {
  if (run_->facts().ended) {
    MutexLock lock(mu_);
    over_before_start_ = true;
    return;
  }
  absl::StatusOr<RunState> state = run_->State();
  if (state.ok()) files_->KeepChange(*std::move(state));
}

void Server::OnEvaluated(const EvaluationRecord& record) {
  stats_.Evaluated(record);
  recorder_->Evaluated(record);
}

void Server::OnLogged(const effect::Log& log) {
  bool continues_elsewhere = false;
  {
    MutexLock lock(mu_);
    continues_elsewhere = !lost_shard_.empty();
  }
  // Workers whose streams end because the next server takes over are not news.
  if (!continues_elsewhere) stats_.Happened(log);
  const LogLevel level = LevelOf(log.severity);
  if (!log.worker.has_value()) {
    Log(level, log.text);
    return;
  }
  // Replaces the server's own incarnation in the line.
  Log(level, log.text,
      {{"worker", absl::StrCat(log.worker->rank.value())},
       {"incarnation", absl::StrCat(log.worker->incarnation.value())}});
}

void Server::OnCheckpoint(RunState state) {
  files_->OfferCheckpoint(std::move(state));
}

void Server::OnEnded(const effect::RunEnded& ended,
                     const SharedSnapshot& snapshot) {
  MutexLock lock(mu_);
  summary_.outcome = ended.outcome;
  summary_.reason = ended.reason;
  summary_.model = ended.model;
  summary_.snapshot = snapshot;
  changed_.NotifyAll();
}

}  // namespace cohort
