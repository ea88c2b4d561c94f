#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "server/ctl/cluster/local_cluster.h"
#include "server/ctl/run/run_screen.h"
#include "server/ctl/verb.h"

namespace cohort {

struct ClusterRunOptions {
  ClusterSpec spec;
  // A rank is started again at most this often.
  int32_t max_restarts = 3;
  // What the server does about a lost worker, if it cannot be asked: "wait"
  // or "continue".
  std::string on_worker_loss = "wait";
  // Command that goes on where a stopped run was; empty: nothing was kept.
  std::string resume_command;
};

// One run of a cluster on this machine, from its start to its end.
//
// A worker that dies is started again if the server waits for it, unless it
// would die again: it ended with the code of a wrong command line or value, or
// was started again often enough. Then the run is stopped.
class ClusterRun {
 public:
  // Both must outlive it.
  ClusterRun(ClusterRunOptions options, RunScreen& screen, CtlIo& io);

  // Returns the exit code: the server's; the worker's for which the run was
  // stopped; 128 + the signal's number if a signal stopped it and the server
  // ended well.
  // Errors: those of LocalCluster.
  absl::StatusOr<int> Run();

 private:
  // The run ends for the sake of a worker, if the server does not end it for
  // a reason of its own before `deadline`.
  struct GivenUp {
    int code = 0;
    Instant deadline;
  };

  ClusterHooks Hooks();
  void OnEnd(const ClusterProcess& process, const ProcessEnd& end);
  void OnWorkerLeft(const ClusterProcess& worker);
  void OnWorkerLost(const ClusterProcess& worker, const ProcessEnd& end);
  void Restart(const ClusterProcess& worker, const ProcessEnd& end);
  void GiveUp(const ClusterProcess& worker, const ProcessEnd& end,
              absl::string_view why);
  std::string OnWorkerLoss() const;
  void LookForSignal();
  void LookForDeadline();
  absl::StatusOr<int> Outcome() const;

  const ClusterRunOptions options_;
  RunScreen& screen_;
  CtlIo& io_;
  std::unique_ptr<LocalCluster> cluster_;
  std::map<int32_t, int32_t> restarts_;
  std::optional<GivenUp> given_up_;
  absl::Status failure_;
  bool interrupted_ = false;
  bool stopping_ = false;
};

}  // namespace cohort
