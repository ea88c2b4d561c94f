#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/cli/command_line.h"
#include "common/cli/environment.h"
#include "common/cli/file_limit.h"
#include "common/cli/program.h"
#include "common/cli/signal_watcher.h"
#include "common/clock.h"
#include "common/flags/flag_table.h"
#include "common/host_memory.h"
#include "common/limits.h"
#include "common/log/log.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "common/wire/channel.h"
#include "common/wire/grpc_log.h"
#include "server/core/settings/settings.h"
#include "server/main/data_server.h"
#include "server/main/server.h"
#include "server/main/server_options.h"
#include "server/records/recorded_policy.h"
#include "server/rpc/handshake_log.h"
#include "server/streams/fault.h"

// One ABSL_FLAG for each row of the table.
#define COHORT_FLAG_SUBJECT(name, heading)
#define COHORT_FLAG(type, name, default_value, limits, help) \
  ABSL_FLAG(type, name, default_value, help);
#define COHORT_SETTING(type, name, member, value, limits, change, help) \
  ABSL_FLAG(type, name, value, help);
#define COHORT_TEXT_SETTING(kind, ...) COHORT_SETTING(std::string, __VA_ARGS__)
#include "common/flags/server_flags.inc"
#undef COHORT_FLAG_SUBJECT
#undef COHORT_FLAG
#undef COHORT_SETTING
#undef COHORT_TEXT_SETTING

namespace cohort {
namespace {

// A global, because gRPC's log takes a plain function. Never destroyed: gRPC's
// threads may log until the process ends.
HandshakeLog& Handshakes() {
  static HandshakeLog& log = *new HandshakeLog(*new SteadyClock());
  return log;
}

constexpr int64_t kKib = 1024;

Program ServerProgram() {
  return {.text = {.name = "cohort-server",
                   .summary = "holds a model's weights while workers train it",
                   .examples = {"cohort-server --workers=2 "
                                "--results_dir=results",
                                "cohort-server --workers=4 "
                                "--aggregation=async --checkpoint_dir=state "
                                "--checkpoint_every=100"}},
          .flags = ServerFlagTable()};
}

absl::Status SettingsFromFlags(CoordinatorOptions& options) {
  for (const std::string& name : SettingNames()) {
    const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    COHORT_RETURN_IF_ERROR(SetSetting(name, flag->CurrentValue(), options));
  }
  return absl::OkStatus();
}

absl::StatusOr<ServerOptions> OptionsFromFlags(
    const std::set<std::string>& given) {
  ServerOptions options;
  options.given = given;
  CoordinatorOptions& run = options.coordinator;
  COHORT_RETURN_IF_ERROR(SettingsFromFlags(run));
  run.epochs = absl::GetFlag(FLAGS_epochs);
  run.max_steps = absl::GetFlag(FLAGS_max_steps);
  run.given = given;
  TakeImplied(run);
  TakeOuterDefaults(run);
  const std::string policy_from = absl::GetFlag(FLAGS_policy_from);
  if (!policy_from.empty()) {
    COHORT_ASSIGN_OR_RETURN(RecordedPolicy recorded,
                            ReadPolicyTable(policy_from));
    COHORT_ASSIGN_OR_RETURN(run.planned,
                            PlanRecorded(std::move(recorded), run));
  }
  run.seed = absl::GetFlag(FLAGS_seed);
  run.run_name = absl::GetFlag(FLAGS_run_name);
  run.partition_bytes = absl::GetFlag(FLAGS_partition_kib) * kKib;
  options.listen = absl::GetFlag(FLAGS_listen);
  options.admin_listen = absl::GetFlag(FLAGS_admin_listen);
  options.insecure = absl::GetFlag(FLAGS_insecure);
  options.security = {.tls = {.cert = absl::GetFlag(FLAGS_tls_cert),
                              .key = absl::GetFlag(FLAGS_tls_key),
                              .ca = absl::GetFlag(FLAGS_tls_ca)},
                      .viewer_tokens = absl::GetFlag(FLAGS_viewer_tokens),
                      .audit_log = absl::GetFlag(FLAGS_audit_log)};
  options.connections_per_address =
      absl::GetFlag(FLAGS_connections_per_address);
  COHORT_ASSIGN_OR_RETURN(
      options.shard_addresses,
      ParseShardAddresses(absl::GetFlag(FLAGS_shard_addresses)));
  run.shards = static_cast<int32_t>(options.shard_addresses.size()) + 1;
  options.shard_lease = absl::GetFlag(FLAGS_shard_lease);
  options.local = absl::GetFlag(FLAGS_local);
  options.local_dir = absl::GetFlag(FLAGS_local_dir);
  options.address_file = absl::GetFlag(FLAGS_address_file);
  options.ops_listen = absl::GetFlag(FLAGS_ops_listen);
  options.dashboards_url = absl::GetFlag(FLAGS_dashboards_url);
  options.ops_address_file = absl::GetFlag(FLAGS_ops_address_file);
  options.fold_threads = absl::GetFlag(FLAGS_fold_threads);
  options.inflight_bytes_max = absl::GetFlag(FLAGS_inflight_mib) * kKib * kKib;
  options.model_bytes_max = absl::GetFlag(FLAGS_model_mib) * kKib * kKib;
  options.files = {.results_dir = absl::GetFlag(FLAGS_results_dir),
                   .checkpoint_dir = absl::GetFlag(FLAGS_checkpoint_dir),
                   .resume = absl::GetFlag(FLAGS_resume)};
  options.exit_when_done = absl::GetFlag(FLAGS_exit_when_done);
  options.tensorboard_dir = absl::GetFlag(FLAGS_tensorboard);
  options.trace = absl::GetFlag(FLAGS_trace);
  options.terminal = isatty(STDOUT_FILENO) == 1;
  options.handshakes = &Handshakes();
  return options;
}

// Assumes three connections a worker and three of a replacement; the rest is
// for files, the operations port and people.
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

// Errors of the transport also come back as a status, which is reported in our
// words, but those of a client that never completes a connection do not.
void LogTransport(absl::string_view text) {
  std::string line;
  if (!Handshakes().Take(text, line)) return Log(LogLevel::kDebug, text);
  if (!line.empty()) Log(LogLevel::kWarning, line);
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
  if (summary.outcome == RunOutcome::kRefused) return kExitConfig;
  if (!summary.files.ok()) return kExitFailure;
  return summary.outcome.has_value() ? int{kExitOk}
                                     : absl::GetFlag(FLAGS_stopped_exit_code);
}

// The server of a run, which is another one after the loss of a data shard. A
// signal reaches whichever there is.
class CurrentServer {
 public:
  void Set(Server* server) {
    MutexLock lock(mu_);
    server_ = server;
    if (server_ != nullptr && stop_requested_) server_->RequestStop();
  }
  void RequestStop() {
    MutexLock lock(mu_);
    stop_requested_ = true;
    if (server_ != nullptr) server_->RequestStop();
  }
  bool stop_requested() {
    MutexLock lock(mu_);
    return stop_requested_;
  }

 private:
  Mutex mu_;
  bool stop_requested_ ABSL_GUARDED_BY(mu_) = false;
  Server* server_ ABSL_GUARDED_BY(mu_) = nullptr;
};

// Options of a new server that continues the run of `server` at the same
// addresses.
ServerOptions OptionsAfter(Server& server, ServerOptions options) {
  options.files.resume = true;
  options.handover = server.TakeHandover();
  // Without a checkpoint, workers that have joined still find their run.
  options.coordinator.run_id = server.run_id();
  options.listen = server.address();
  // They are written, and their reader may have removed them.
  options.address_file.clear();
  options.ops_address_file.clear();
  if (!options.ops_listen.empty()) options.ops_listen = server.ops_address();
  if (!options.admin_listen.empty()) {
    options.admin_listen = server.admin_address();
  }
  return options;
}

// The exit code of a server that has not started.
int EndOfStart(const absl::Status& status, bool stop_requested) {
  // Others may have cancelled something, too.
  if (!stop_requested || !absl::IsCancelled(status)) {
    return Fail(StartFailure(status), status);
  }
  FlushLog();
  std::cout << "stopped: " << status.message() << std::endl;
  return absl::GetFlag(FLAGS_stopped_exit_code);
}

int RunServer(ServerOptions options) {
  CurrentServer current;
  options.stop_requested = [&current] { return current.stop_requested(); };
  std::optional<SignalWatcher> signals;
  const auto watch_signals = [&current, &signals] {
    signals.emplace([&current](int) { current.RequestStop(); });
  };
  // The start waits for data shards for as long as it takes, and then a signal
  // is an ordinary stop. Otherwise it ends the process.
  if (!options.shard_addresses.empty()) watch_signals();
  absl::StatusOr<std::unique_ptr<Server>> server;
  RunSummary summary;
  for (;;) {
    server = StartServer(options, std::cout);
    if (!server.ok()) {
      return EndOfStart(server.status(), current.stop_requested());
    }
    if (!signals.has_value()) watch_signals();
    current.Set(server->get());
    summary = (*server)->Wait();
    current.Set(nullptr);
    if (summary.lost_shard.empty()) break;
    Log(LogLevel::kError,
        absl::StrCat(summary.lost_shard,
                     "; the run continues from the newest checkpoint"));
    options = OptionsAfter(**server, std::move(options));
    server->reset();
  }
  FlushLog();
  const int code = OutcomeCode(summary);
  if (!summary.files.ok()) return Fail(code, summary.files);
  // A stop prints its own last line.
  if (code != kExitOk && summary.outcome.has_value()) {
    return Fail(code, absl::InternalError(summary.reason));
  }
  return code;
}

// A variable that is meant for another process may be among them.
void WarnOfUnusedFlags(const std::set<std::string>& given) {
  const absl::Span<const absl::string_view> used_here = DataShardFlags();
  std::vector<std::string> unused;
  for (const std::string& name : given) {
    const bool used =
        std::find(used_here.begin(), used_here.end(), name) != used_here.end();
    if (!used) unused.push_back(absl::StrCat("--", name));
  }
  if (unused.empty()) return;
  Log(LogLevel::kWarning,
      absl::StrCat("--data_shard: ", absl::StrJoin(unused, ", "),
                   " without effect here; model and settings come from the "
                   "server that coordinates the run"));
}

int RunDataShard(ServerOptions options) {
  // By default it is shard 0's, and only one process of a machine can have it.
  if (!options.given.contains("ops_listen")) options.ops_listen.clear();
  if (!options.shard_addresses.empty()) {
    return Fail(kExitConfig,
                absl::InvalidArgumentError(
                    "--data_shard: got --shard_addresses too, want them at the "
                    "server that coordinates the run only"));
  }
  WarnOfUnusedFlags(options.given);
  absl::StatusOr<std::unique_ptr<DataServer>> server =
      DataServer::Start(options, std::cout);
  if (!server.ok()) {
    return Fail(StartFailure(server.status()), server.status());
  }
  SignalWatcher signals([&server](int) { (*server)->RequestStop(); });
  const bool ended = (*server)->Wait();
  FlushLog();
  return ended ? int{kExitOk} : absl::GetFlag(FLAGS_stopped_exit_code);
}

int Main(absl::Span<char* const> arguments) {
  ExitOnEarlySignals();
  std::set<std::string> given;
  const std::vector<std::string> environment = Environment();
  const std::optional<ExitCode> answered = ReadFlags(
      ServerProgram(), arguments,
      {.out = std::cout, .err = std::cerr, .environment = environment}, &given);
  if (answered.has_value()) return *answered;
  const absl::StatusOr<LogLevel> level =
      ParseLogLevel(absl::GetFlag(FLAGS_log_level));
  if (!level.ok()) {
    return Fail(kExitConfig, absl::InvalidArgumentError(absl::StrCat(
                                 "--log_level: ", level.status().message())));
  }
  InitLogging({.level = *level, .process = "server"});
  // gRPC's errors come back as a status, which is reported in Cohort's words.
  RouteGrpcLog(&LogTransport);
  ApplyProcessSettings();
  KeepFreedMemory();
  ExitOnUncaughtExceptions();
  const absl::StatusOr<ServerOptions> options = OptionsFromFlags(given);
  if (!options.ok()) return Fail(kExitConfig, options.status());
  WarnOfLowFileLimit(options->coordinator.workers);
  return absl::GetFlag(FLAGS_data_shard) ? RunDataShard(*options)
                                         : RunServer(*options);
}

}  // namespace
}  // namespace cohort

int main(int argc, char** argv) {
  return cohort::Main(absl::MakeConstSpan(argv, static_cast<size_t>(argc)));
}
