#include "server/ctl/study/cluster_job.h"

#include <array>
#include <fstream>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/cli/command_line.h"
#include "common/status_macros.h"
#include "server/ctl/cluster/local_cluster.h"
#include "server/ctl/study/run_result.h"

namespace cohort {
namespace {

// Flags that the study sets for each run.
constexpr std::array<const char*, 14> kOwnFlags = {
    "aggregation",    "staleness", "normalization", "bn_statistics",
    "seed",           "workers",   "results_dir",   "address_file",
    "exit_when_done", "order",     "batch_size",    "server",
    "rank",           "wire"};
constexpr char kRateFlag[] = "--learning_rate=";

class ClusterJob final : public StudyJob {
 public:
  ClusterJob(StudyRun run, StudyFolder& folder)
      : run_(std::move(run)), folder_(folder) {}

  absl::Status Start(const ClusterJobOptions& options, const Clock& clock) {
    COHORT_RETURN_IF_ERROR(folder_.Prepare(run_));
    const std::string path = folder_.RunPath(run_);
    COHORT_RETURN_IF_ERROR(OpenLogs(path));
    ClusterSpec spec{.programs = options.programs,
                     .workers = static_cast<int32_t>(run_.condition.workers),
                     .server_flags = ServerFlags(run_, options.flags, path),
                     .worker_flags = WorkerFlags(run_, options.flags)};
    ClusterHooks hooks{
        .on_start = [](const ClusterProcess& /*process*/, pid_t /*pid*/) {},
        .on_line = [this](const ClusterProcess& process,
                          absl::string_view line) { OnLine(process, line); },
        .on_end = [this](const ClusterProcess& process,
                         const ProcessEnd& end) { OnEnd(process, end); }};
    COHORT_ASSIGN_OR_RETURN(
        cluster_,
        LocalCluster::Start(std::move(spec), std::move(hooks), clock));
    return absl::OkStatus();
  }

  void Poll(absl::Duration timeout) override {
    if (done_) return;
    Fail(cluster_->Poll(timeout));
    if (!cluster_->done()) return;
    done_ = true;
    Fail(Conclude());
  }
  bool done() const override { return done_; }
  absl::Status result() const override { return status_; }
  void RequestStop() override {
    Fail(absl::CancelledError("stopped"));
    cluster_->RequestStop();
  }

 private:
  absl::Status OpenLogs(const std::string& path) {
    std::vector<ClusterProcess> processes(1);
    for (int32_t rank = 0; rank < run_.condition.workers; ++rank) {
      processes.push_back(ClusterProcess::Worker(rank));
    }
    for (const ClusterProcess& process : processes) {
      const std::string file = absl::StrCat(path, "/", process.LogName());
      std::ofstream& log = logs_[process];
      log.open(file);
      if (!log) {
        return absl::FailedPreconditionError(
            absl::StrCat(file, ": cannot be written"));
      }
    }
    return absl::OkStatus();
  }

  void OnLine(const ClusterProcess& process, absl::string_view line) {
    // Flushed, so that the log is current during the run.
    logs_[process] << line << std::endl;
    // A program's message about its own end says more than the hint after it.
    for (const char* program : {"cohort-server: ", "cohort-worker: "}) {
      if (absl::StartsWith(line, program)) told_[process] = std::string(line);
    }
    last_line_[process] = std::string(line);
  }

  void OnEnd(const ClusterProcess& process, const ProcessEnd& end) {
    if (process.is_server() || end.code == 0) return;
    if (cluster_ == nullptr || cluster_->server_end().has_value()) return;
    Fail(Ended(process, end));
    cluster_->RequestStop();
  }

  absl::Status Ended(const ClusterProcess& process, const ProcessEnd& end) {
    const auto told = told_.find(process);
    const std::string& last =
        told == told_.end() ? last_line_[process] : told->second;
    // A restart would end in the same way.
    const bool refused = end.code == kExitUsage || end.code == kExitConfig;
    return absl::Status(
        refused ? absl::StatusCode::kInvalidArgument
                : absl::StatusCode::kInternal,
        absl::StrCat(process.Name(), " ", end.Text(),
                     last.empty() ? "" : absl::StrCat(": ", last), " (",
                     folder_.RunPath(run_), "/", process.LogName(), ")"));
  }

  absl::Status Conclude() {
    COHORT_RETURN_IF_ERROR(status_);
    const std::optional<ProcessEnd>& end = cluster_->server_end();
    if (!end.has_value() || end->code != 0) {
      return Ended({}, end.value_or(ProcessEnd{.code = 1}));
    }
    const std::string path = folder_.RunPath(run_);
    COHORT_RETURN_IF_ERROR(ReadRunResult(run_.kinds, path).status());
    for (const char* model :
         {"/model.safetensors", "/model_average.safetensors"}) {
      COHORT_RETURN_IF_ERROR(
          RealFileSystem().RemoveAll(absl::StrCat(path, model)));
    }
    return folder_.MarkDone(run_);
  }

  // Keeps the first failure, which is the cause of the later ones.
  void Fail(const absl::Status& status) { status_.Update(status); }

  // Fixed after construction.
  const StudyRun run_;
  StudyFolder& folder_;

  std::map<ClusterProcess, std::ofstream> logs_;
  std::map<ClusterProcess, std::string> last_line_;
  std::map<ClusterProcess, std::string> told_;
  absl::Status status_;
  bool done_ = false;
  // Last: it calls what is above.
  std::unique_ptr<LocalCluster> cluster_;
};

absl::Status CheckOwn(const std::vector<std::string>& flags,
                      absl::string_view whose) {
  for (const char* own : kOwnFlags) {
    if (!HasFlag(flags, own)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("got --", own, " among the flags of the ", whose,
                     ", want it not there: the study sets it for each run"));
  }
  return absl::OkStatus();
}

// The number given to the server by a flag; nullopt if there is none.
std::optional<double> NumberOf(absl::string_view name,
                               const StudyFlags& flags) {
  double number = 0;
  if (!absl::SimpleAtod(FlagValue(flags.server, name), &number)) {
    return std::nullopt;
  }
  return number;
}

std::optional<double> LearningRate(const StudyFlags& flags) {
  return NumberOf("learning_rate", flags);
}

double ImagesOfStep(const StudyCondition& condition, const StudyFlags& flags) {
  return NumberOf("global_batch", flags)
      .value_or(static_cast<double>(condition.workers * condition.batch_size));
}

}  // namespace

std::vector<std::string> ServerFlags(const StudyRun& run,
                                     const StudyFlags& flags,
                                     const std::string& results_dir) {
  std::vector<std::string> all = flags.server;
  const std::optional<double> rate = LearningRate(flags);
  if (flags.reference_images > 0 && rate.has_value()) {
    std::erase_if(all, [](const std::string& flag) {
      return absl::StartsWith(flag, kRateFlag);
    });
    all.push_back(
        absl::StrFormat("%s%.9g", kRateFlag,
                        *rate * ImagesOfStep(run.condition, flags) /
                            static_cast<double>(flags.reference_images)));
  }
  const StudyPolicy& policy = run.policy;
  all.push_back(absl::StrCat("--aggregation=", policy.aggregation));
  all.push_back(absl::StrCat("--normalization=", policy.normalization));
  all.push_back(absl::StrCat("--bn_statistics=", absl::StrJoin(run.kinds, ","),
                             ",", kOwnBatch));
  if (!policy.staleness.empty()) {
    all.push_back(absl::StrCat("--staleness=", policy.staleness));
  }
  if (!policy.wire.empty()) {
    all.push_back(absl::StrCat("--wire=", policy.wire));
  }
  all.push_back(absl::StrCat("--seed=", run.seed));
  all.push_back(absl::StrCat("--results_dir=", results_dir));
  return all;
}

std::vector<std::string> WorkerFlags(const StudyRun& run,
                                     const StudyFlags& flags) {
  std::vector<std::string> all = flags.worker;
  all.push_back(absl::StrCat("--batch_size=", run.condition.batch_size));
  all.push_back(absl::StrCat("--order=", run.condition.order));
  return all;
}

absl::Status CheckFlags(const StudyFlags& flags) {
  COHORT_RETURN_IF_ERROR(CheckOwn(flags.server, "server"));
  COHORT_RETURN_IF_ERROR(CheckOwn(flags.worker, "workers"));
  if (flags.reference_images > 0 && !LearningRate(flags).has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--reference_images: got ", flags.reference_images,
                     " without --learning_rate=RATE, want the rate that is "
                     "meant for a step of so many images"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<StudyJob>> StartClusterJob(
    const StudyRun& run, const ClusterJobOptions& options, StudyFolder& folder,
    const Clock& clock) {
  auto job = std::make_unique<ClusterJob>(run, folder);
  COHORT_RETURN_IF_ERROR(job->Start(options, clock));
  return std::unique_ptr<StudyJob>(std::move(job));
}

}  // namespace cohort
