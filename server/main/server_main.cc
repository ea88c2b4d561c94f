#include <unistd.h>

#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/check.h"
#include "common/cli/command_line.h"
#include "common/cli/environment.h"
#include "common/cli/file_limit.h"
#include "common/cli/program.h"
#include "common/cli/signal_watcher.h"
#include "common/log/log.h"
#include "common/status_macros.h"
#include "common/wire/grpc_log.h"
#include "server/core/settings.h"
#include "server/main/server.h"
#include "server/shard/fault.h"

ABSL_FLAG(std::string, listen, "127.0.0.1:7070",
          "Address to listen on, host:port. Port 0 takes a free one.");
ABSL_FLAG(bool, insecure, false,
          "Listen unencrypted where other machines can connect.");
ABSL_FLAG(std::string, address_file, "",
          "File that gets the address once the server listens.");
ABSL_FLAG(std::string, ops_listen, "127.0.0.1:7071",
          "Address of the live page and of the metrics for Prometheus, "
          "host:port. Port 0 takes a free one; empty: neither is served.");
ABSL_FLAG(std::string, ops_address_file, "",
          "File that gets the address of the live page.");
ABSL_FLAG(std::string, run_name, "",
          "What people call the run, a DNS label; empty: made from its "
          "identifier.");
ABSL_FLAG(int32_t, workers, 2,
          "Size of the cohort. Training starts when all have registered.");
ABSL_FLAG(std::string, aggregation, "sync",
          "How pushes are combined: sync (all workers of a step), bounded "
          "(each on arrival, no worker far ahead) or async (each on arrival).");
ABSL_FLAG(int32_t, min_pushes, 0,
          "Sync: pushes that complete a step, the others are dropped; 0: all.");
ABSL_FLAG(int64_t, max_lead, 4,
          "Bounded: assignments a worker may be ahead of the slowest.");
ABSL_FLAG(std::string, staleness, "keep",
          "Pushes that read older weights: keep, drop (above "
          "--max_staleness), scale (by 1/(1+max(0, t-t0))) or compensate "
          "(DC-ASGD).");
ABSL_FLAG(int64_t, max_staleness, 16, "Versions above which drop drops.");
ABSL_FLAG(std::string, staleness_free, "auto",
          "t0 of scale, in versions; auto: workers - 1.");
ABSL_FLAG(double, compensation, 0.04, "Lambda of compensate.");
ABSL_FLAG(bool, compensation_adaptive, false,
          "Divide lambda by the root of a moving mean square of gradients.");
ABSL_FLAG(std::string, normalization, "auto",
          "Batch statistics: global (of all workers, needs sync), local, or "
          "auto (global under sync).");
ABSL_FLAG(
    int32_t, normalization_group, 0,
    "Global normalisation: workers that share their batch statistics, "
    "consecutive ranks of a step; the last group has as many as are left. "
    "0: all.");
ABSL_FLAG(std::string, bn_statistics, "auto",
          "Moving statistics: sync (once a step, combined), async (per push), "
          "chief (lowest rank only), after (collected once training is done), "
          "or auto (as the aggregation). Several, separated by commas, are "
          "kept side by side; the first is exported. With batch behind them "
          "evaluation also tells what the weights are worth when each batch is "
          "normalised by itself, as in training.");
ABSL_FLAG(bool, bn_mixture_variance, false,
          "Moving variances hold how far the batch means are apart, too.");
ABSL_FLAG(int64_t, precise_batches, 200,
          "Batches that --bn_statistics=after is collected over.");
ABSL_FLAG(std::string, optimizer, "momentum",
          "sgd, momentum, nesterov, adam, adamw or lars.");
ABSL_FLAG(double, learning_rate, 0.1, "Rate that the schedule starts from.");
ABSL_FLAG(double, momentum, 0.9, "Of momentum, nesterov and lars.");
ABSL_FLAG(double, adam_beta1, 0.9, "Decay of adam's mean of gradients.");
ABSL_FLAG(double, adam_beta2, 0.999, "Decay of adam's mean of squares.");
ABSL_FLAG(double, adam_epsilon, 1e-8, "Added to the root in adam's divisor.");
ABSL_FLAG(double, lars_trust, 0.001, "Trust coefficient of lars.");
ABSL_FLAG(double, weight_decay, 5e-4, "Not applied to biases and batch norm.");
ABSL_FLAG(bool, decay_everything, false,
          "Apply weight decay to biases and batch norm too.");
ABSL_FLAG(std::string, no_decay, "none",
          "Parameters that are never decayed: names or patterns with * and ?, "
          "separated by commas.");
ABSL_FLAG(double, clip_norm, 0,
          "Longer gradients, over all parameters, are cut to this norm; 0: "
          "off.");
ABSL_FLAG(std::string, freeze, "none",
          "What stays as it is, separated by semicolons: parameters such as "
          "layer4.* or slices such as conv2.weight[:,0:2,-1].");
ABSL_FLAG(std::string, schedule, "cosine",
          "Learning rate over the run: constant, step, cosine or polynomial.");
ABSL_FLAG(std::string, step_epochs, "none",
          "Step: epochs after which the rate falls, such as 30,60,80.");
ABSL_FLAG(double, step_gamma, 0.1, "Step: what the rate is multiplied by.");
ABSL_FLAG(double, poly_power, 1, "Polynomial: power of what is left to do.");
ABSL_FLAG(double, warmup_epochs, 0,
          "Epochs in which the rate first rises from 0.");
ABSL_FLAG(double, final_learning_rate, 0,
          "Cosine and polynomial: rate at the end.");
ABSL_FLAG(int64_t, epochs, 5, "Passes over the training data.");
ABSL_FLAG(uint64_t, seed, 1,
          "Of the data order and everything random on a worker.");
ABSL_FLAG(absl::Duration, lease, absl::Seconds(10),
          "Silence after which a worker is lost.");
ABSL_FLAG(absl::Duration, reconnect_grace, absl::Milliseconds(500),
          "How long a worker whose connection broke may take to return.");
ABSL_FLAG(absl::Duration, step_deadline, absl::Minutes(5),
          "Time without progress after which a worker is lost.");
ABSL_FLAG(absl::Duration, replacement_deadline, absl::Minutes(10),
          "How long a lost worker's replacement is waited for.");
ABSL_FLAG(std::string, on_worker_loss, "wait",
          "wait (for a replacement, exact) or continue (without it).");
ABSL_FLAG(std::string, results_dir, "",
          "Gets model.safetensors and history.csv.");
ABSL_FLAG(std::string, tensorboard, "",
          "Directory that gets TensorBoard's event files.");
ABSL_FLAG(std::string, trace, "",
          "File that gets the timeline of this process, as Chrome's and "
          "Perfetto's viewers read it; see cohortctl trace merge.");
ABSL_FLAG(std::string, log_level, "info",
          "Least important lines that are logged: debug, info, warning or "
          "error; cohortctl log level changes it.");
ABSL_FLAG(std::string, checkpoint_dir, "", "Gets checkpoints.");
ABSL_FLAG(int64_t, checkpoint_every, 0,
          "Commits between checkpoints; 0: only at the end.");
ABSL_FLAG(bool, resume, false,
          "Continue from the newest checkpoint in --checkpoint_dir, with its "
          "settings; a setting given here changes it.");
ABSL_FLAG(int64_t, partition_kib, 1024, "Unit of transfer and of folding.");
ABSL_FLAG(int32_t, fold_threads, 2, "Threads that fold gradients.");
ABSL_FLAG(int64_t, inflight_mib, 4096,
          "Bytes of gradients held at most before they are folded.");
ABSL_FLAG(bool, exit_when_done, true,
          "End once the run is over and its results are written. Off: stay, "
          "to be looked at, until stopped.");
ABSL_FLAG(int32_t, stopped_exit_code, 0,
          "Exit code after a signal that came before the end of the run, for "
          "starters that take 0 for done.");

namespace cohort {
namespace {

constexpr int64_t kKib = 1024;
// A partition must fit into one message.
constexpr int64_t kPartitionKibMax = 32 * kKib;
constexpr int64_t kInflightMibMax = int64_t{1} << 24;

const Program kProgram = {
    .text = {.name = "cohort-server",
             .summary = "holds a model's weights while workers train it",
             .examples = {"cohort-server --workers=2 --results_dir=results",
                          "cohort-server --workers=4 --aggregation=async "
                          "--checkpoint_dir=state --checkpoint_every=100"}},
    .source = "server_main",
    .role = TaskRole::kServer};

absl::Status CheckRange(absl::string_view flag, int64_t value, int64_t max) {
  if (value >= 1 && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, ": got ", value, ", want 1 to ", max));
}

// Every setting of a run is a flag of the same name.
absl::Status SettingsFromFlags(CoordinatorOptions& options) {
  for (const std::string& name : SettingNames()) {
    const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    COHORT_CHECK(flag != nullptr, absl::StrCat("no flag for ", name));
    COHORT_RETURN_IF_ERROR(SetSetting(name, flag->CurrentValue(), options));
  }
  return absl::OkStatus();
}

absl::StatusOr<ServerOptions> OptionsFromFlags(
    const std::set<std::string>& given) {
  COHORT_RETURN_IF_ERROR(CheckRange(
      "partition_kib", absl::GetFlag(FLAGS_partition_kib), kPartitionKibMax));
  COHORT_RETURN_IF_ERROR(CheckRange(
      "inflight_mib", absl::GetFlag(FLAGS_inflight_mib), kInflightMibMax));
  COHORT_RETURN_IF_ERROR(CheckExitCode("stopped_exit_code",
                                       absl::GetFlag(FLAGS_stopped_exit_code)));
  ServerOptions options;
  options.given = given;
  CoordinatorOptions& run = options.coordinator;
  COHORT_RETURN_IF_ERROR(SettingsFromFlags(run));
  run.epochs = absl::GetFlag(FLAGS_epochs);
  run.seed = absl::GetFlag(FLAGS_seed);
  run.run_name = absl::GetFlag(FLAGS_run_name);
  run.partition_bytes = absl::GetFlag(FLAGS_partition_kib) * kKib;
  options.listen = absl::GetFlag(FLAGS_listen);
  options.insecure = absl::GetFlag(FLAGS_insecure);
  options.address_file = absl::GetFlag(FLAGS_address_file);
  options.ops_listen = absl::GetFlag(FLAGS_ops_listen);
  options.ops_address_file = absl::GetFlag(FLAGS_ops_address_file);
  options.fold_threads = absl::GetFlag(FLAGS_fold_threads);
  options.inflight_bytes_max = absl::GetFlag(FLAGS_inflight_mib) * kKib * kKib;
  options.files = {.results_dir = absl::GetFlag(FLAGS_results_dir),
                   .checkpoint_dir = absl::GetFlag(FLAGS_checkpoint_dir),
                   .resume = absl::GetFlag(FLAGS_resume)};
  options.exit_when_done = absl::GetFlag(FLAGS_exit_when_done);
  options.tensorboard_dir = absl::GetFlag(FLAGS_tensorboard);
  options.trace = absl::GetFlag(FLAGS_trace);
  options.terminal = isatty(STDOUT_FILENO) == 1;
  return options;
}

// Three connections a worker and those of a replacement; the rest for files,
// the operations port and people.
void WarnOfLowFileLimit(int32_t workers) {
  constexpr int64_t kPerWorker = 6;
  constexpr int64_t kOthers = 512 + 128;
  const int64_t limit = RaiseFileLimit();
  const int64_t wanted = kPerWorker * workers + kOthers;
  if (limit >= wanted) return;
  Log(LogLevel::kWarning,
      absl::StrCat("open files: got a limit of ", limit, ", want at least ",
                   wanted, " for --workers=", workers,
                   "; raise the hard limit (ulimit -Hn, LimitNOFILE= of "
                   "systemd, --ulimit nofile= of a container)"));
}

int Fail(int code, const absl::Status& status) {
  std::cerr << "cohort-server: " << status.message() << std::endl;
  return code;
}

ExitCode StartFailure(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
      return kExitConfig;
    case absl::StatusCode::kDataLoss:
      return kExitBadCheckpoint;
    default:
      return kExitFailure;
  }
}

int OutcomeCode(const RunSummary& summary) {
  if (summary.outcome == RunOutcome::kWorkerLost) return kExitWaitTimeout;
  if (summary.outcome == RunOutcome::kNonfinite) return kExitNonfinite;
  if (summary.outcome == RunOutcome::kModelMismatch) return kExitFailure;
  if (!summary.files.ok()) return kExitFailure;
  return summary.outcome.has_value() ? int{kExitOk}
                                     : absl::GetFlag(FLAGS_stopped_exit_code);
}

int Main(absl::Span<char* const> arguments) {
  ExitOnEarlySignals();
  std::set<std::string> given;
  const std::vector<std::string> environment = Environment();
  const std::optional<ExitCode> answered = ReadFlags(
      kProgram, arguments,
      {.out = std::cout, .err = std::cerr, .environment = environment}, &given);
  if (answered.has_value()) return *answered;
  const absl::StatusOr<LogLevel> level =
      ParseLogLevel(absl::GetFlag(FLAGS_log_level));
  if (!level.ok()) {
    return Fail(kExitConfig, absl::InvalidArgumentError(absl::StrCat(
                                 "--log_level: ", level.status().message())));
  }
  InitLogging({.level = *level, .process = "server"});
  // What goes wrong there comes back as a status, and is told in our words.
  RouteGrpcLog([](absl::string_view text) { Log(LogLevel::kDebug, text); });
  ExitOnUncaughtExceptions();
  const absl::StatusOr<ServerOptions> options = OptionsFromFlags(given);
  if (!options.ok()) return Fail(kExitConfig, options.status());
  WarnOfLowFileLimit(options->coordinator.workers);
  absl::StatusOr<std::unique_ptr<Server>> server =
      StartServer(*options, std::cout);
  if (!server.ok()) {
    return Fail(StartFailure(server.status()), server.status());
  }
  SignalWatcher signals([&server](int) { (*server)->RequestStop(); });
  const RunSummary summary = (*server)->Wait();
  FlushLog();
  const int code = OutcomeCode(summary);
  if (!summary.files.ok()) return Fail(code, summary.files);
  // A stop has its own last line.
  if (code != kExitOk && summary.outcome.has_value()) {
    return Fail(code, absl::InternalError(summary.reason));
  }
  return code;
}

}  // namespace
}  // namespace cohort

int main(int argc, char** argv) {
  return cohort::Main(absl::MakeConstSpan(argv, static_cast<size_t>(argc)));
}
