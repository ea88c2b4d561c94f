#include "server/records/run_files.h"

#include <chrono>
#include <filesystem>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/formats/file_system.h"
#include "common/log/log.h"
#include "common/status_macros.h"
#include "server/checkpoint/model_tensors.h"
#include "server/core/optimizer/mask.h"
#include "server/core/optimizer/slots.h"
#include "server/core/optimizer/workers_optimizer.h"
#include "server/core/settings/settings.h"

namespace cohort {
namespace {

// The newest, and the previous one in case the newest is damaged.
constexpr int32_t kCheckpointsKept = 2;
constexpr absl::string_view kCheckpointLock = "lock";
// Hidden, because people browse the results. It differs from the name above,
// because both may be in one folder.
constexpr absl::string_view kResultsLock = ".cohort-lock";

absl::Status MakeDirectories(absl::string_view flag, const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("--", flag, ": cannot create ", path, ": ", error.message(),
                   "; name a folder that this user can write"));
}

absl::StatusOr<std::unique_ptr<StateLock>> LockFolder(absl::string_view flag,
                                                      const std::string& path,
                                                      absl::string_view name) {
  absl::StatusOr<std::unique_ptr<StateLock>> lock =
      StateLock::Acquire(path, name);
  if (lock.ok()) return lock;
  // Whatever the cause, the same start would fail again.
  return absl::FailedPreconditionError(
      absl::StrCat("--", flag, ": ", lock.status().message(),
                   absl::IsFailedPrecondition(lock.status())
                       ? ""
                       : "; name a folder that this user can write"));
}

absl::Status Refuse(absl::string_view flag, absl::string_view seen,
                    absl::string_view wanted) {
  return absl::FailedPreconditionError(absl::StrCat(
      "--", flag, ": got ", seen, ", but the checkpoint has ", wanted));
}

// Seconds since 1970.
std::optional<double> ModifiedAt(const std::string& path) {
  std::error_code error;
  const auto time = std::filesystem::last_write_time(path, error);
  if (error) return std::nullopt;
  const auto since_epoch =
      std::chrono::file_clock::to_sys(time).time_since_epoch();
  return std::chrono::duration<double>(since_epoch).count();
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunFiles>> RunFiles::Open(
    FileSystem& files, const RunFilesOptions& options) {
  std::unique_ptr<RunFiles> run(new RunFiles(files, options));
  COHORT_RETURN_IF_ERROR(run->Prepare());
  return run;
}

absl::Status RunFiles::Prepare() {
  if (options_.resume && !keeps_checkpoints()) {
    return absl::FailedPreconditionError(
        "--resume: got no --checkpoint_dir to continue from");
  }
  if (keeps_results()) {
    COHORT_RETURN_IF_ERROR(
        MakeDirectories("results_dir", options_.results_dir));
    COHORT_ASSIGN_OR_RETURN(
        results_lock_,
        LockFolder("results_dir", options_.results_dir, kResultsLock));
  }
  if (!keeps_checkpoints()) return absl::OkStatus();
  {
    MutexLock lock(mu_);
    figures_.enabled = true;
  }
  COHORT_RETURN_IF_ERROR(
      MakeDirectories("checkpoint_dir", options_.checkpoint_dir));
  COHORT_ASSIGN_OR_RETURN(
      lock_,
      LockFolder("checkpoint_dir", options_.checkpoint_dir, kCheckpointLock));
  if (options_.resume) {
    COHORT_RETURN_IF_ERROR(Restore());
    return Boot();
  }
  if (HoldsCheckpoints(files_, options_.checkpoint_dir)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--checkpoint_dir: ", options_.checkpoint_dir,
        " holds checkpoints of an earlier run; continue it with --resume, or "
        "name another directory"));
  }
  return Boot();
}

absl::Status RunFiles::Boot() {
  std::optional<Incarnation> next;
  if (restored_.has_value()) next = restored_->state.next_incarnation;
  std::random_device chance;
  absl::StatusOr<BootNumber> boot =
      TakeBootNumber(files_, options_.checkpoint_dir, next, chance());
  if (!boot.ok()) {
    // Without it this start could repeat the incarnations of another one.
    return absl::FailedPreconditionError(
        absl::StrCat("--checkpoint_dir: ", boot.status().message()));
  }
  if (!boot->problem.empty()) Log(LogLevel::kWarning, boot->problem);
  first_incarnation_ = boot->first_incarnation();
  return absl::OkStatus();
}

absl::Status RunFiles::Restore() {
  std::vector<std::string> problems;
  const Instant begin = clock_.Now();
  absl::StatusOr<std::optional<Checkpoint>> newest =
      LoadNewestCheckpoint(files_, options_.checkpoint_dir, problems);
  const bool older = newest.ok() && newest->has_value();
  for (const std::string& problem : problems) {
    Log(LogLevel::kWarning,
        absl::StrCat(
            "damaged checkpoint: ", problem,
            older ? absl::StrCat("; continuing from ", (*newest)->path) : ""));
  }
  COHORT_RETURN_IF_ERROR(newest.status());
  restored_ = *std::move(newest);
  const absl::Duration took = clock_.Now() - begin;
  const int64_t bytes = NewestCheckpointBytes(files_, options_.checkpoint_dir);
  if (restored_.has_value()) {
    MutexLock lock(mu_);
    figures_.damaged_skipped = static_cast<int64_t>(problems.size());
    last_written_ = WrittenOf(restored_->state);
    figures_.restored = 1;
    figures_.restore_seconds = absl::ToDoubleSeconds(took);
    figures_.version = restored_->state.snapshot->version.value();
    figures_.size_bytes = bytes;
    figures_.written_at = ModifiedAt(restored_->path);
    return absl::OkStatus();
  }
  Log(LogLevel::kInfo,
      absl::StrCat("no checkpoint in ", options_.checkpoint_dir,
                   ": starting a new run"));
  return absl::OkStatus();
}

void RunFiles::BeginRun(const RunIdentity& identity,
                        CheckpointWriter::Complete complete) {
  if (!keeps_checkpoints()) return;
  writer_ = std::make_unique<CheckpointWriter>(
      files_, options_.checkpoint_dir, kCheckpointsKept, identity,
      options_.timeline,
      restored_.has_value() ? restored_->damaged : std::set<std::string>(),
      std::move(complete));
}

void RunFiles::OnWritten(const Written& written, Instant begin,
                         const absl::Status& status) {
  const Version version = written.version;
  if (!status.ok()) {
    const std::string problem = absl::StrCat(
        "checkpoint of step ", version.value(), " failed; ",
        IsIndeterminate(status) ? "no more are written until a restart: "
                                : "the next one will still be tried: ",
        status.message());
    Log(LogLevel::kError, problem);
    MutexLock lock(mu_);
    ++(absl::IsResourceExhausted(status) ? figures_.failed_disk_full
                                         : figures_.failed_io);
    figures_.problem = problem;
    return;
  }
  Log(LogLevel::kInfo,
      absl::StrCat("checkpoint of step ", version.value(), " is on disk"));
  const int64_t bytes = NewestCheckpointBytes(files_, options_.checkpoint_dir);
  MutexLock lock(mu_);
  last_written_ = written;
  ++figures_.written;
  figures_.problem.clear();
  figures_.size_bytes = bytes;
  figures_.version = version.value();
  figures_.duration_seconds.Add(absl::ToDoubleSeconds(clock_.Now() - begin));
  figures_.written_at = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
}

CheckpointFigures RunFiles::figures() const {
  MutexLock lock(mu_);
  return figures_;
}

RunFiles::Written RunFiles::WrittenOf(const RunState& state) {
  return {.version = state.snapshot->version,
          .statistics = state.snapshot->statistics,
          .settings = state.settings,
          .changes = state.policy_history.size(),
          .epochs = state.epochs,
          .max_steps = state.max_steps,
          .ended = state.ended.has_value()};
}

bool RunFiles::IsWritten(const Written& state) const {
  MutexLock lock(mu_);
  if (!last_written_.has_value()) return false;
  const Written& last = *last_written_;
  return last.version == state.version &&
         *last.statistics == *state.statistics &&
         last.settings == state.settings && last.changes == state.changes &&
         last.epochs == state.epochs && last.max_steps == state.max_steps &&
         (last.ended || !state.ended);
}

CheckpointWriter::Done RunFiles::OnDone(const Written& state) {
  return [this, state, begin = clock_.Now()](Version /*version*/,
                                             const absl::Status& status) {
    OnWritten(state, begin, status);
  };
}

void RunFiles::KeepChange(RunState state) {
  if (writer_ == nullptr) return;
  const Written kept = WrittenOf(state);
  if (IsWritten(kept)) return;
  const absl::Status accepted =
      writer_->SubmitNext(std::move(state), OnDone(kept));
  if (accepted.ok()) return;
  Log(LogLevel::kWarning,
      absl::StrCat("the change at step ", kept.version.value(),
                   " is in no checkpoint: ", accepted.message()));
}

void RunFiles::OfferCheckpoint(RunState state) {
  if (writer_ == nullptr) return;
  const Written offered = WrittenOf(state);
  const absl::Status accepted =
      writer_->Submit(std::move(state), OnDone(offered));
  if (accepted.ok()) return;
  Log(LogLevel::kWarning,
      absl::StrCat("checkpoint of step ", offered.version.value(),
                   " skipped: ", accepted.message()));
}

absl::Status RunFiles::SaveCheckpoint(const RunState& state) {
  if (writer_ == nullptr) {
    return absl::FailedPreconditionError(
        "the server was started without --checkpoint_dir");
  }
  const Written saved = WrittenOf(state);
  for (;;) {
    writer_->WaitIdle();
    if (IsWritten(saved)) return absl::OkStatus();
    const auto result = std::make_shared<absl::Status>();
    const absl::Status accepted = writer_->Submit(
        state, [result, done = OnDone(saved)](Version version,
                                              const absl::Status& status) {
          *result = status;
          done(version, status);
        });
    // Another call was faster.
    if (absl::IsUnavailable(accepted)) continue;
    COHORT_RETURN_IF_ERROR(accepted);
    writer_->WaitIdle();
    return *result;
  }
}

void RunFiles::AwaitWriter() {
  if (writer_ != nullptr) writer_->WaitIdle();
}

std::string RunFiles::model_path() const {
  return absl::StrCat(options_.results_dir, "/model.safetensors");
}

absl::Status RunFiles::WriteModel(const RegisteredModel& model,
                                  const ModelSnapshot& snapshot) {
  if (!keeps_results()) {
    return absl::FailedPreconditionError(
        "the server was started without --results_dir");
  }
  COHORT_RETURN_IF_ERROR(
      cohort::WriteModel(files_, model_path(), model, snapshot));
  const SharedSnapshot average = AverageOf(snapshot);
  if (average != nullptr) {
    COHORT_RETURN_IF_ERROR(cohort::WriteModel(
        files_,
        absl::StrCat(options_.results_dir, "/model_average.safetensors"), model,
        *average));
  }
  MutexLock lock(mu_);
  figures_.model_version = snapshot.version.value();
  return absl::OkStatus();
}

absl::Status RunFiles::WriteStaleness(const StalenessCounts& counts) {
  if (!keeps_results()) {
    return absl::FailedPreconditionError(
        "the server was started without --results_dir");
  }
  if (counts.empty()) return absl::OkStatus();
  std::string text = "staleness_versions,pushes\n";
  for (const auto& [staleness, pushes] : counts) {
    absl::StrAppend(&text, staleness, ",", pushes, "\n");
  }
  return WriteFileAtomically(
      files_, absl::StrCat(options_.results_dir, "/staleness.csv"),
      kPublicFileMode, text);
}

absl::StatusOr<CoordinatorOptions> ContinuedOptions(
    const Checkpoint& checkpoint, const CoordinatorOptions& options,
    const std::set<std::string>& given) {
  // Flags with which processes of this run were started.
  SettingValues flags;
  for (const PolicyRecord& record : checkpoint.state.policy_history) {
    if (!record.by_flags) continue;
    for (const auto& [name, value] : record.changed) flags[name] = value;
  }
  const SettingValues told = SettingsOf(options);
  CoordinatorOptions continued = options;
  if (!given.contains("run_name")) {
    continued.run_name = checkpoint.identity.run_name;
  }
  if (!given.contains("epochs")) continued.epochs = checkpoint.state.epochs;
  if (!given.contains("max_steps")) {
    continued.max_steps = checkpoint.state.max_steps;
  }
  for (const auto& [name, value] : checkpoint.state.settings) {
    const auto flag = flags.find(name);
    // Unknown names are refused below.
    const auto now = told.find(name);
    // The workers of this run have registered their optimizer.
    const bool is_auto =
        name == "optimizer" && now != told.end() && now->second == "auto";
    const bool is_new = !is_auto && (flag == flags.end() || now == told.end() ||
                                     flag->second != now->second);
    if (given.contains(name) && is_new) continue;
    const absl::Status known = SetSetting(name, value, continued);
    if (!known.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat(checkpoint.path, ": ", known.message(),
                       "; another release of Cohort wrote it"));
    }
  }
  TakeImplied(continued);
  return continued;
}

absl::Status CheckContinuable(const Checkpoint& checkpoint,
                              const CoordinatorOptions& options) {
  if (checkpoint.identity.seed != options.seed) {
    return Refuse("seed", absl::StrCat(options.seed),
                  absl::StrCat(checkpoint.identity.seed,
                               ": the data order depends on it"));
  }
  const RunState& state = checkpoint.state;
  const auto local = state.settings.find("local_steps");
  const bool had_local = local != state.settings.end() && local->second != "0";
  if (had_local != (options.policy.local_steps > 0)) {
    return Refuse("local_steps", absl::StrCat(options.policy.local_steps),
                  absl::StrCat(had_local ? "above 0" : "0",
                               ", as the state of the optimizer is of such "
                               "pushes; change it while the run trains"));
  }
  COHORT_RETURN_IF_ERROR(CheckPlanFits(options, state.model->plan));
  COHORT_RETURN_IF_ERROR(
      CheckSlots(SlotsHeld(state.snapshot->slots), options.optimizer.kind));
  return MaskFor(options.optimizer, state.model->layout,
                 state.model->partitions)
      .status();
}

}  // namespace cohort
