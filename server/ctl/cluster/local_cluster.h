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
#include "server/ctl/cluster/child_process.h"
#include "server/ctl/cluster/programs.h"

namespace cohort {

// One of a cluster's processes: the server, or the worker of a rank.
struct ClusterProcess {
  static constexpr int32_t kServer = -1;

  int32_t rank = kServer;

  bool is_server() const { return rank == kServer; }
  // "server", "worker 0".
  std::string Name() const;
  friend auto operator<=>(const ClusterProcess&,
                          const ClusterProcess&) = default;
};

struct ClusterSpec {
  ClusterPrograms programs;
  int32_t workers = 1;
  // As on the command line, "--name=value" or "--name", "value". The cluster
  // itself sets --workers and --address_file of the server, --server and
  // --rank of the workers, and free ports unless others are asked for. Of
  // several workers each has its own --trace: FILE.json is FILE.1.json.
  std::vector<std::string> server_flags;
  std::vector<std::string> worker_flags;
  // Until the server listens; restoring a large checkpoint takes its time.
  absl::Duration listen_patience = absl::Minutes(5);
  // Between a request to end and the kill; and between the server's end and
  // that request, since workers end themselves once they have heard of it.
  absl::Duration stop_patience = absl::Seconds(20);
};

// What one hears of a cluster, on the thread that polls it. They may call
// anything of the cluster but Poll and Stop.
struct ClusterHooks {
  std::function<void(const ClusterProcess&, pid_t)> on_start;
  // A line of stdout or stderr.
  std::function<void(const ClusterProcess&, absl::string_view)> on_line;
  // After its last line.
  std::function<void(const ClusterProcess&, const ProcessEnd&)> on_end;
};

// A server and its workers as processes of this machine. The workers are
// started once the server listens. Nothing is started again by itself:
// StartWorker does that.
//
// Everything happens within Poll, which is to be called until done():
//
//   while (!(*cluster)->done()) {
//     COHORT_RETURN_IF_ERROR((*cluster)->Poll(absl::Milliseconds(100)));
//   }
//
// Once the server has ended, the workers are given time to end themselves and
// are ended after it. Several clusters may be polled in turn. None of the
// processes outlives this one; the thread that polls must outlive them.
// Thread safety: none.
class LocalCluster {
 public:
  // Starts the server. `clock` must outlive the cluster.
  // Errors: InvalidArgument, a flag that the cluster itself sets, or no
  //   worker; those of ChildProcess::Start; Internal, no scratch folder.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(
      ClusterSpec spec, ClusterHooks hooks, const Clock& clock);
  // Kills what still runs.
  ~LocalCluster();
  LocalCluster(const LocalCluster&) = delete;
  LocalCluster& operator=(const LocalCluster&) = delete;

  // Waits at most `timeout` (and never longer than 50 ms) for something to
  // happen, and does what follows from it.
  // Errors, told once each, after which the cluster stops itself (poll on
  //   until done()): DeadlineExceeded, the server does not listen; those of
  //   ChildProcess::Start for a worker.
  absl::Status Poll(absl::Duration timeout);

  // All processes have ended, and none will be started.
  bool done() const;
  // Where the server listens; empty before.
  const std::string& address() const { return address_; }
  // How the server ended; absent while it runs.
  const std::optional<ProcessEnd>& server_end() const { return server_end_; }
  bool running(const ClusterProcess& process) const {
    return children_.contains(process);
  }
  int32_t workers_running() const;
  // What starts the worker of a rank; empty before the server listens.
  std::vector<std::string> WorkerCommand(int32_t rank) const;

  // Starts the worker of a rank again.
  // Errors: FailedPrecondition, it runs, the server does not listen or has
  //   ended, or the cluster stops; those of ChildProcess::Start.
  absl::Status StartWorker(int32_t rank);

  // Asks the server to end, then the workers; kills those that do not end
  // within the spec's patience. Returns at once: Poll does it.
  void RequestStop();
  // The same, and waits for the end.
  void Stop();

 private:
  enum class Phase {
    kRunning,
    // It was asked to end.
    kServerStops,
    // It has ended; they end themselves.
    kWorkersLeave,
    // They were asked to end.
    kWorkersStop,
  };

  LocalCluster(ClusterSpec spec, ClusterHooks hooks, const Clock& clock);

  absl::Status MakeScratch();
  void RemoveScratch();
  std::vector<std::string> ServerCommand() const;
  absl::Status StartProcess(const ClusterProcess& process);
  std::vector<ClusterProcess> Running() const;
  void AwaitOutput(absl::Duration timeout);
  void ReadAll();
  void ReapAll();
  void Tell(const ClusterProcess& process, absl::string_view line);
  // Starts the workers once the server's address is there.
  absl::Status AwaitAddress();
  void AdvanceStop();
  void Enter(Phase phase);
  void SignalWorkers(int number);

  // Fixed after construction.
  const ClusterSpec spec_;
  const ClusterHooks hooks_;
  const Clock& clock_;

  Phase phase_ = Phase::kRunning;
  // Of the phase; before the address is known, of that.
  Instant deadline_;
  // Holds the address file; empty once it is removed.
  std::string scratch_;
  std::string address_;
  std::map<ClusterProcess, std::unique_ptr<ChildProcess>> children_;
  std::optional<ProcessEnd> server_end_;
};

}  // namespace cohort
