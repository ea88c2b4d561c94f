#include "server/ctl/cluster/local_cluster.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

// The delay until a process's end, or the server's address, is noticed.
constexpr absl::Duration kRoundMax = absl::Milliseconds(50);

// As after a signal that a process does not handle.
constexpr int kShardStopped = 128 + SIGTERM;

// "folder/w.json" as "folder/w.1.json".
std::string NumberedFile(const std::string& file, absl::string_view number) {
  const std::filesystem::path path(file);
  const std::string name = absl::StrCat(path.stem().string(), ".", number,
                                        path.extension().string());
  return (path.parent_path() / name).string();
}

// Numbers the files of --trace and --exchange_log, because several workers
// cannot write one file.
std::vector<std::string> FlagsOfRank(std::vector<std::string> flags,
                                     int32_t rank) {
  for (const absl::string_view name : {"--trace", "--exchange_log"}) {
    for (size_t i = 0; i < flags.size(); ++i) {
      absl::string_view file = flags[i];
      if (absl::ConsumePrefix(&file, name) && absl::ConsumePrefix(&file, "=")) {
        flags[i] = absl::StrCat(
            name, "=", NumberedFile(std::string(file), absl::StrCat(rank)));
      } else if (flags[i] == name && i + 1 < flags.size()) {
        flags[i + 1] = NumberedFile(flags[i + 1], absl::StrCat(rank));
      }
    }
  }
  return flags;
}

absl::Status CheckFlags(absl::string_view whose,
                        const std::vector<std::string>& flags,
                        std::initializer_list<absl::string_view> own) {
  for (absl::string_view name : own) {
    if (!HasFlag(flags, name)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--", name, " of the ", whose,
                     " is set by the cluster itself\nLeave it out"));
  }
  return absl::OkStatus();
}

// `names` are those of certificate, key and authority, such as "--tls_cert=".
void AddTls(const TlsFiles& tls, std::array<const char*, 3> names,
            std::vector<std::string>& command) {
  if (!tls.encrypted()) return;
  command.push_back(names[0] + tls.cert);
  command.push_back(names[1] + tls.key);
  command.push_back(names[2] + tls.ca);
}

constexpr std::array kTlsFlags = {"--tls_cert=", "--tls_key=", "--tls_ca="};
constexpr std::array kTlsVariables = {
    "COHORT_TLS_CERT=", "COHORT_TLS_KEY=", "COHORT_TLS_CA="};

absl::Status Check(const ClusterSpec& spec) {
  if (spec.workers < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--workers: got ", spec.workers, ", want 1 or more"));
  }
  COHORT_RETURN_IF_ERROR(CheckFlags("server", spec.server_flags,
                                    {"workers", "address_file", "admin_listen",
                                     "data_shard", "shard_addresses"}));
  if (!spec.worker_command.empty() && !spec.worker_flags.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(spec.worker_flags.front(),
                     ": a flag of cohort-worker, but the workers "
                     "run ",
                     spec.worker_command.front(), "\nSet it in that program"));
  }
  return CheckFlags("workers", spec.worker_flags, {"server", "rank"});
}

// Adds a free port, so that clusters do not collide, unless the user sets one
// by flag or by the variable that the server reads.
void AddFreePort(absl::string_view name, absl::string_view variable,
                 std::vector<std::string>& flags) {
  if (HasFlag(flags, name)) return;
  const char* value = getenv(std::string(variable).c_str());
  if (value != nullptr && *value != '\0') return;
  flags.push_back(absl::StrCat("--", name, "=127.0.0.1:0"));
}

}  // namespace

bool HasFlag(const std::vector<std::string>& flags, absl::string_view name) {
  const std::string spelled = absl::StrCat("--", name);
  return std::any_of(flags.begin(), flags.end(), [&](const std::string& flag) {
    return flag == spelled || absl::StartsWith(flag, spelled + "=");
  });
}

std::string FlagValue(const std::vector<std::string>& flags,
                      absl::string_view name) {
  const std::string spelled = absl::StrCat("--", name);
  std::string value;
  for (size_t i = 0; i < flags.size(); ++i) {
    absl::string_view flag = flags[i];
    if (flag == spelled && i + 1 < flags.size()) {
      value = flags[i + 1];
    } else if (absl::ConsumePrefix(&flag, spelled + "=")) {
      value = std::string(flag);
    }
  }
  return value;
}

std::string ClusterProcess::Name() const {
  if (is_server()) return "server";
  return absl::StrCat(is_worker() ? "worker " : "shard ", number);
}

std::string ClusterProcess::LogName() const {
  return absl::StrReplaceAll(Name(), {{" ", "-"}}) + ".log";
}

LocalCluster::LocalCluster(ClusterSpec spec, ClusterHooks hooks,
                           const Clock& clock)
    : spec_(std::move(spec)), hooks_(std::move(hooks)), clock_(clock) {}

LocalCluster::~LocalCluster() { RemoveScratch(); }

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Start(
    ClusterSpec spec, ClusterHooks hooks, const Clock& clock) {
  COHORT_RETURN_IF_ERROR(Check(spec));
  AddFreePort("listen", "COHORT_LISTEN", spec.server_flags);
  AddFreePort("ops_listen", "COHORT_OPS_LISTEN", spec.server_flags);
  std::unique_ptr<LocalCluster> cluster(
      new LocalCluster(std::move(spec), std::move(hooks), clock));
  COHORT_RETURN_IF_ERROR(cluster->MakeScratch());
  const int32_t data_shards = cluster->spec_.shards - 1;
  cluster->data_addresses_.resize(static_cast<size_t>(data_shards));
  for (int32_t shard = 1; shard <= data_shards; ++shard) {
    COHORT_RETURN_IF_ERROR(
        cluster->StartProcess(ClusterProcess::DataShard(shard)));
  }
  if (data_shards == 0) COHORT_RETURN_IF_ERROR(cluster->StartProcess({}));
  cluster->deadline_ = clock.Now() + cluster->spec_.listen_patience;
  return cluster;
}

absl::Status LocalCluster::MakeScratch() {
  std::error_code error;
  const std::filesystem::path top = std::filesystem::temp_directory_path(error);
  if (error) {
    return absl::InternalError(
        absl::StrCat("$TMPDIR: ", error.message(),
                     "\nSet it to a folder for scratch files"));
  }
  std::string path = (top / "cohort-cluster-XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr) {
    return absl::InternalError(
        absl::StrCat(path, ": ", strerror(errno),
                     "\nSet TMPDIR to a folder that can be written"));
  }
  scratch_ = std::move(path);
  return absl::OkStatus();
}

void LocalCluster::RemoveScratch() {
  if (scratch_.empty()) return;
  std::error_code ignored;
  std::filesystem::remove_all(scratch_, ignored);
  scratch_.clear();
}

std::vector<std::string> LocalCluster::ServerCommand() const {
  std::vector<std::string> command = {
      spec_.programs.server,
      absl::StrCat(
          "--workers=",
          spec_.workers_min > 0 ? absl::StrCat(spec_.workers_min, ":") : "",
          spec_.workers),
      absl::StrCat("--address_file=", AddressFile({}))};
  AddTls(spec_.certificates.server, kTlsFlags, command);
  if (spec_.shards > 1) {
    command.push_back(absl::StrCat("--shard_addresses=",
                                   absl::StrJoin(data_addresses_, ",")));
  }
  command.insert(command.end(), spec_.server_flags.begin(),
                 spec_.server_flags.end());
  return command;
}

std::vector<std::string> LocalCluster::DataShardCommand(int32_t shard) const {
  const std::string& known = data_addresses_[static_cast<size_t>(shard) - 1];
  const std::string trace = FlagValue(spec_.server_flags, "trace");
  // Ports and files that the environment names are shard 0's.
  std::vector<std::string> command = {
      spec_.programs.server, "--data_shard",
      // Tells a shard that was stopped from one whose run is over.
      absl::StrCat("--stopped_exit_code=", kShardStopped),
      absl::StrCat("--workers=", spec_.workers),
      absl::StrCat("--listen=", known.empty() ? "127.0.0.1:0" : known),
      "--ops_listen=", "--ops_address_file=",
      absl::StrCat("--trace=",
                   trace.empty()
                       ? ""
                       : NumberedFile(trace, absl::StrCat("shard", shard)))};
  if (known.empty()) {
    command.push_back(absl::StrCat(
        "--address_file=", AddressFile(ClusterProcess::DataShard(shard))));
  }
  AddTls(spec_.certificates.server, kTlsFlags, command);
  return command;
}

std::string LocalCluster::AddressFile(const ClusterProcess& process) const {
  return absl::StrCat(
      scratch_, "/address",
      process.is_server() ? "" : absl::StrCat(".", process.number));
}

TlsFiles LocalCluster::CertificateOf(int32_t rank) const {
  const std::vector<TlsFiles>& workers = spec_.certificates.workers;
  return workers.empty() ? TlsFiles() : workers[static_cast<size_t>(rank)];
}

std::vector<std::string> LocalCluster::WorkerCommand(int32_t rank) const {
  if (address_.empty()) return {};
  if (!spec_.worker_command.empty()) {
    std::vector<std::string> command = {
        "/usr/bin/env", absl::StrCat("COHORT_SERVER=", address_),
        absl::StrCat("COHORT_RANK=", rank),
        // What the environment names is the server's.
        "COHORT_OPS_LISTEN=", "COHORT_TRACE="};
    AddTls(CertificateOf(rank), kTlsVariables, command);
    command.insert(command.end(), spec_.worker_command.begin(),
                   spec_.worker_command.end());
    return command;
  }
  std::vector<std::string> command = {spec_.programs.worker,
                                      absl::StrCat("--server=", address_),
                                      absl::StrCat("--rank=", rank)};
  AddTls(CertificateOf(rank), kTlsFlags, command);
  const std::vector<std::string> flags =
      spec_.workers > 1 ? FlagsOfRank(spec_.worker_flags, rank)
                        : spec_.worker_flags;
  command.insert(command.end(), flags.begin(), flags.end());
  return command;
}

absl::Status LocalCluster::StartProcess(const ClusterProcess& process) {
  COHORT_ASSIGN_OR_RETURN(
      std::unique_ptr<ChildProcess> child,
      ChildProcess::Start(process.is_server() ? ServerCommand()
                          : process.is_worker()
                              ? WorkerCommand(process.number)
                              : DataShardCommand(process.number)));
  const pid_t pid = child->pid();
  children_[process] = std::move(child);
  if (hooks_.on_start) hooks_.on_start(process, pid);
  return absl::OkStatus();
}

absl::Status LocalCluster::Restart(const ClusterProcess& process) {
  const bool unreachable = process.is_worker() && address_.empty();
  if (phase_ == Phase::kRunning && !unreachable && !running(process)) {
    return StartProcess(process);
  }
  return absl::FailedPreconditionError(absl::StrCat(
      process.Name(), ": cannot be started, ",
      running(process)
          ? "it runs"
          : (unreachable ? "the server is not there" : "the cluster stops")));
}

bool LocalCluster::done() const {
  // The server may never have been started.
  const bool over = server_end_.has_value() || phase_ == Phase::kWorkersStop;
  return over && children_.empty();
}

int32_t LocalCluster::workers_running() const {
  return static_cast<int32_t>(
      std::count_if(children_.begin(), children_.end(),
                    [](const auto& one) { return one.first.is_worker(); }));
}

absl::Status LocalCluster::Poll(absl::Duration timeout) {
  AwaitOutput(std::min(timeout, kRoundMax));
  ReadAll();
  ReapAll();
  absl::Status status;
  if (phase_ == Phase::kRunning && address_.empty()) {
    status = AwaitAddress();
    if (!status.ok()) RequestStop();
  }
  AdvanceStop();
  return status;
}

std::vector<ClusterProcess> LocalCluster::Running() const {
  std::vector<ClusterProcess> processes;
  processes.reserve(children_.size());
  for (const auto& [process, child] : children_) processes.push_back(process);
  return processes;
}

void LocalCluster::AwaitOutput(absl::Duration timeout) {
  std::vector<pollfd> outputs;
  for (const auto& [process, child] : children_) {
    if (child->output() < 0) continue;
    outputs.push_back({.fd = child->output(), .events = POLLIN});
  }
  // An interrupted poll needs no handling: the caller checks everything again.
  poll(outputs.data(), outputs.size(),
       static_cast<int>(absl::ToInt64Milliseconds(timeout)));
}

void LocalCluster::Tell(const ClusterProcess& process, absl::string_view line) {
  if (hooks_.on_line) hooks_.on_line(process, line);
}

void LocalCluster::ReadAll() {
  // Iterates over a copy, because a hook may start a worker.
  for (const ClusterProcess& process : Running()) {
    children_.at(process)->ReadLines(
        [&](absl::string_view line) { Tell(process, line); });
  }
}

void LocalCluster::ReapAll() {
  for (const ClusterProcess& process : Running()) {
    const std::optional<ProcessEnd> end = children_.at(process)->TryReap(
        [&](absl::string_view line) { Tell(process, line); });
    if (!end.has_value()) continue;
    children_.erase(process);
    if (process.is_server()) server_end_ = end;
    if (hooks_.on_end) hooks_.on_end(process, *end);
  }
}

absl::StatusOr<std::optional<std::string>> LocalCluster::ReadAddress(
    const ClusterProcess& process) const {
  std::ifstream file(AddressFile(process));
  std::string line;
  // A line without an end is still being written.
  if (std::getline(file, line) && !file.eof()) return line;
  if (clock_.Now() < deadline_) return std::nullopt;
  return absl::DeadlineExceededError(absl::StrCat(
      process.is_server() ? "the server" : process.Name(),
      " did not listen within ", SecondsText(spec_.listen_patience),
      "\nIts own lines above tell what it was at"));
}

absl::Status LocalCluster::AwaitDataShards() {
  for (size_t i = 0; i < data_addresses_.size(); ++i) {
    if (!data_addresses_[i].empty()) continue;
    COHORT_ASSIGN_OR_RETURN(
        const std::optional<std::string> address,
        ReadAddress(ClusterProcess::DataShard(static_cast<int32_t>(i) + 1)));
    if (!address.has_value()) return absl::OkStatus();
    data_addresses_[i] = *address;
  }
  return StartProcess({});
}

absl::Status LocalCluster::AwaitAddress() {
  if (server_end_.has_value()) return absl::OkStatus();
  if (!running({})) return AwaitDataShards();
  COHORT_ASSIGN_OR_RETURN(const std::optional<std::string> address,
                          ReadAddress({}));
  if (!address.has_value()) return absl::OkStatus();
  address_ = *address;
  RemoveScratch();
  for (int32_t rank = 0; rank < spec_.workers; ++rank) {
    COHORT_RETURN_IF_ERROR(StartProcess(ClusterProcess::Worker(rank)));
  }
  return absl::OkStatus();
}

void LocalCluster::Enter(Phase phase) {
  phase_ = phase;
  deadline_ = clock_.Now() + spec_.stop_patience;
  if (phase == Phase::kServerStops) children_.at({})->Signal(SIGTERM);
  if (phase == Phase::kWorkersStop) SignalWorkers(SIGTERM);
}

void LocalCluster::SignalWorkers(int number) {
  for (const auto& [process, child] : children_) {
    if (!process.is_server()) child->Signal(number);
  }
}

void LocalCluster::RequestStop() {
  if (phase_ == Phase::kRunning && running({})) {
    Enter(Phase::kServerStops);
  } else if (phase_ == Phase::kRunning || phase_ == Phase::kWorkersLeave) {
    Enter(Phase::kWorkersStop);
  }
}

void LocalCluster::AdvanceStop() {
  const bool late = clock_.Now() >= deadline_;
  switch (phase_) {
    case Phase::kRunning:
      if (!server_end_.has_value()) return;
      // Workers hear nothing from a killed server and would keep trying to
      // reach it.
      return Enter(server_end_->signal == 0 ? Phase::kWorkersLeave
                                            : Phase::kWorkersStop);
    case Phase::kServerStops:
      if (server_end_.has_value()) return Enter(Phase::kWorkersStop);
      if (late) children_.at({})->Signal(SIGKILL);
      return;
    case Phase::kWorkersLeave:
      if (late) Enter(Phase::kWorkersStop);
      return;
    case Phase::kWorkersStop:
      if (late) SignalWorkers(SIGKILL);
      return;
  }
}

void LocalCluster::Stop() {
  RequestStop();
  while (!done()) {
    // Poll's errors are about starting, which is over.
    Poll(kRoundMax).IgnoreError();
  }
}

}  // namespace cohort
