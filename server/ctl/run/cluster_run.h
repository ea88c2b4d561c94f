#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/exit_codes.h"
#include "server/ctl/cluster/local_cluster.h"
#include "server/ctl/run/run_screen.h"
#include "server/ctl/server_target.h"
#include "server/ctl/verb.h"

namespace cohort {

struct ClusterRunOptions {
  ClusterSpec spec;
  // Limit on restarts of one process since its last step.
  int32_t max_restarts = 3;
  // The server's reaction to a lost worker, used if it cannot be queried:
  // "wait" or "continue".
  std::string on_worker_loss = "wait";
  // Command that continues a stopped run; empty if nothing was saved.
  std::string resume_command;
};

// One run of a cluster on this machine, from its start to its end.
//
// A worker that dies is started again if the server waits for it or the cohort
// is elastic, unless it would die again: it ended with the code for a wrong
// command line or value, or has used up its restarts. Then the run is stopped,
// or, if enough workers of an elastic cohort are left, continues without it. A
// run that all workers have left by themselves is drained.
class ClusterRun {
 public:
  // Both must outlive it.
  ClusterRun(ClusterRunOptions options, RunScreen& screen, CtlIo& io);

  // Returns the exit code: the server's; or that of the worker for which the
  // run was stopped; or 128 + the signal's number if a signal stopped it and
  // the server ended well. If the server ended well, that of the first rank
  // whose last process did not, even if the run went past it or was over
  // by then: 0 means that everything ended well.
  // Errors: those of LocalCluster.
  absl::StatusOr<int> Run();

 private:
  // The run ends because of a worker, unless the server ends it for a reason of
  // its own before `deadline`.
  struct GivenUp {
    int code = 0;
    // The same command may succeed.
    bool may_go_on = false;
    Instant deadline;
  };

  ClusterHooks Hooks();
  void OnEnd(const ClusterProcess& process, const ProcessEnd& end);
  void OnWorkerLeft(const ClusterProcess& worker);
  void OnWorkerLost(const ClusterProcess& worker, const ProcessEnd& end);
  void OnDataShardEnded(const ClusterProcess& shard, const ProcessEnd& end);
  // ---- for a worker or a data shard
  // Why it is not started again; empty if it may be.
  std::string WhyNot(const ClusterProcess& process,
                     const ProcessEnd& end) const;
  void Restart(const ClusterProcess& process, const ProcessEnd& end);
  void GiveUp(const ClusterProcess& worker, const ProcessEnd& end,
              absl::string_view why);
  std::string WatchCommand() const;
  ServerTarget Target() const;
  SizeRule RuleInForce() const;
  // False if the server does not answer.
  bool RunIsOver() const;
  void LookForSignal();
  void LookForDeadline();
  absl::StatusOr<int> Outcome() const;
  void SayHowToGoOn() const;

  const ClusterRunOptions options_;
  RunScreen& screen_;
  CtlIo& io_;
  std::unique_ptr<LocalCluster> cluster_;
  std::map<ClusterProcess, int32_t> restarts_;
  // How the last process of each rank ended.
  std::map<ClusterProcess, ProcessEnd> worker_ends_;
  std::optional<GivenUp> given_up_;
  absl::Status failure_;
  bool interrupted_ = false;
  bool stopping_ = false;
};

}  // namespace cohort
