#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/security/tls_files.h"
#include "server/ctl/cluster/child_process.h"
#include "server/ctl/cluster/programs.h"

namespace cohort {

// Whether a flag is among those of a command line: "--name=value", or "--name",
// "value".
bool HasFlag(const std::vector<std::string>& flags, absl::string_view name);
// The value that counts, the last one; empty without the flag.
std::string FlagValue(const std::vector<std::string>& flags,
                      absl::string_view name);

// One of a cluster's processes: the server, a data shard, or the worker of a
// rank.
struct ClusterProcess {
  enum class Role { kServer, kDataShard, kWorker };
  Role role = Role::kServer;
  // A worker's rank, or a data shard's number, from 1 on.
  int32_t number = 0;

  static ClusterProcess DataShard(int32_t shard) {
    return {.role = Role::kDataShard, .number = shard};
  }
  static ClusterProcess Worker(int32_t rank) {
    return {.role = Role::kWorker, .number = rank};
  }

  bool is_server() const { return role == Role::kServer; }
  bool is_worker() const { return role == Role::kWorker; }
  // "server", "shard 1", "worker 0".
  std::string Name() const;
  // "server.log", "worker-0.log".
  std::string LogName() const;
  friend auto operator<=>(const ClusterProcess&,
                          const ClusterProcess&) = default;
};

// The files of an encrypted cluster; all empty without encryption.
struct ClusterCertificates {
  TlsFiles server;
  // By rank.
  std::vector<TlsFiles> workers;
  // An operator's, for the process that polls.
  TlsFiles client;
};

struct ClusterSpec {
  ClusterPrograms programs;
  ClusterCertificates certificates;
  int32_t workers = 1;
  // Server processes that share the model.
  int32_t shards = 1;
  // The run starts and continues with so many, as --workers=MIN:MAX; 0: not.
  int32_t workers_min = 0;
  // As on the command line: "--name=value", or "--name", "value". The cluster
  // itself sets --workers, --address_file and, with several shards,
  // --shard_addresses of the server, --server and --rank
  // of the workers, and free ports unless ports are given. With several workers
  // each has its own --trace: FILE.json becomes FILE.1.json.
  std::vector<std::string> server_flags;
  std::vector<std::string> worker_flags;
  // A program of the user's in place of cohort-worker, such as {"python3",
  // "train.py"}. It finds server and rank in COHORT_SERVER and COHORT_RANK.
  // Without worker_flags. Certificates are in COHORT_TLS_CERT and so on.
  std::vector<std::string> worker_command;
  // Limit on the time until the server listens; restoring a large checkpoint
  // takes time.
  absl::Duration listen_patience = absl::Minutes(5);
  // Time between a request to end and the kill. Also the time between the
  // server's end and that request, because workers end by themselves once they
  // learn of it.
  absl::Duration stop_patience = absl::Seconds(20);
};

// Callbacks of a cluster, run on the thread that polls it. They may call any
// method of the cluster except Poll and Stop.
struct ClusterHooks {
  std::function<void(const ClusterProcess&, pid_t)> on_start;
  // Called with a line of stdout or stderr.
  std::function<void(const ClusterProcess&, absl::string_view)> on_line;
  // Called after the process's last line.
  std::function<void(const ClusterProcess&, const ProcessEnd&)> on_end;
};

// A server and its workers as processes of this machine. Data shards are
// started first, and the workers once the server listens. The cluster never
// restarts a process by itself; Restart does.
//
// All work happens in Poll, which must be called until done():
//
//   while (!(*cluster)->done()) {
//     COHORT_RETURN_IF_ERROR((*cluster)->Poll(absl::Milliseconds(100)));
//   }
//
// Once the server has ended, the workers get time to end by themselves and are
// then stopped. Several clusters may be polled in turn. None of the processes
// outlives this one; the thread that polls must outlive them.
// Thread safety: none.
class LocalCluster {
 public:
  // Starts the server, or its data shards. `clock` must outlive the cluster.
  // Errors: InvalidArgument: a flag that the cluster itself sets, or no worker;
  //   those of ChildProcess::Start; Internal: no scratch folder.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(
      ClusterSpec spec, ClusterHooks hooks, const Clock& clock);
  // Kills the processes that still run.
  ~LocalCluster();
  LocalCluster(const LocalCluster&) = delete;
  LocalCluster& operator=(const LocalCluster&) = delete;

  // Waits at most `timeout` (and never longer than 50 ms) for an event, and
  // reacts to it.
  // Errors, returned once each: DeadlineExceeded: the server does not listen;
  //   those of ChildProcess::Start for a worker. The cluster then stops itself;
  //   poll on until done().
  absl::Status Poll(absl::Duration timeout);

  // True once all processes have ended and none will be started.
  bool done() const;
  // The server's address; empty before it listens.
  const std::string& address() const { return address_; }
  // How the server ended; absent while it runs.
  const std::optional<ProcessEnd>& server_end() const { return server_end_; }
  bool running(const ClusterProcess& process) const {
    return children_.contains(process);
  }
  int32_t workers_running() const;
  // The command that starts the worker of a rank; empty before the server
  // listens.
  std::vector<std::string> WorkerCommand(int32_t rank) const;

  // Starts a worker or data shard again; the latter at the address that it had.
  // Errors: FailedPrecondition: it runs, the worker's server does not listen or
  //   has ended, or the cluster stops; those of ChildProcess::Start.
  absl::Status Restart(const ClusterProcess& process);

  // Stops the server, then the workers, and kills those that do not end within
  // the spec's patience. Returns at once; Poll does the work.
  void RequestStop();
  // Requests a stop and waits for the end.
  void Stop();

 private:
  enum class Phase {
    kRunning,
    // The server was asked to end.
    kServerStops,
    // The server has ended; the workers end by themselves.
    kWorkersLeave,
    // The workers were asked to end.
    kWorkersStop,
  };

  LocalCluster(ClusterSpec spec, ClusterHooks hooks, const Clock& clock);

  absl::Status MakeScratch();
  void RemoveScratch();
  std::vector<std::string> ServerCommand() const;
  std::vector<std::string> DataShardCommand(int32_t shard) const;
  // The file to which the process writes its address.
  std::string AddressFile(const ClusterProcess& process) const;
  // Takes the addresses of data shards that listen now.
  absl::Status AwaitDataShards();
  // Absent while the process has not written it.
  absl::StatusOr<std::optional<std::string>> ReadAddress(
      const ClusterProcess& process) const;
  TlsFiles CertificateOf(int32_t rank) const;
  absl::Status StartProcess(const ClusterProcess& process);
  std::vector<ClusterProcess> Running() const;
  void AwaitOutput(absl::Duration timeout);
  void ReadAll();
  void ReapAll();
  void Tell(const ClusterProcess& process, absl::string_view line);
  // Starts the server once the addresses of all data shards are there, and the
  // workers once that of the server is.
  absl::Status AwaitAddress();
  void AdvanceStop();
  void Enter(Phase phase);
  void SignalWorkers(int number);

  // Fixed after construction.
  const ClusterSpec spec_;
  const ClusterHooks hooks_;
  const Clock& clock_;

  Phase phase_ = Phase::kRunning;
  // Deadline of the phase, or of the address while it is unknown.
  Instant deadline_;
  // Holds the address file; empty once it is removed.
  std::string scratch_;
  std::string address_;
  // From shard 1 on; empty while unknown.
  std::vector<std::string> data_addresses_;
  std::map<ClusterProcess, std::unique_ptr<ChildProcess>> children_;
  std::optional<ProcessEnd> server_end_;
};

}  // namespace cohort
