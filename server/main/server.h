#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/formats/trace_file.h"
#include "common/local/shared_float_files.h"
#include "common/mutex.h"
#include "common/progress_report.h"
#include "server/core/events/effects.h"
#include "server/main/data_shards.h"
#include "server/main/doors.h"
#include "server/main/endings.h"
#include "server/main/lifecycle.h"
#include "server/main/operations.h"
#include "server/main/server_options.h"
#include "server/main/server_security.h"
#include "server/metrics/run_stats.h"
#include "server/ops/figures_source.h"
#include "server/ops/watchers.h"
#include "server/records/run_files.h"
#include "server/rpc/call_counts.h"
#include "server/rpc/change_waits.h"
#include "server/run/kept_states.h"
#include "server/run/run_host.h"

namespace cohort {

// One parameter server: a run with its data shards, its doors, its files and
// what shows it, wired together.
//
// Thread safety: safe, but only one thread calls Wait.
class Server : private RunListener {
 public:
  ~Server() override;

  // The listening address.
  const std::string& address() const { return address_; }
  // The address of the operations port; empty if there is none.
  std::string ops_address() const { return operations_.address(); }
  // The address of Admin; empty without --admin_listen.
  std::string admin_address() const { return doors_.admin_address(); }
  std::string run_id() const { return run_->facts().run_id; }

  // For the server that continues the run; see RunSummary::lost_shard.
  Handover TakeHandover() ABSL_LOCKS_EXCLUDED(mu_);

  // Blocks until the run is over or a stop is requested, then until watchers
  // have seen the end and the server has stopped.
  RunSummary Wait() ABSL_LOCKS_EXCLUDED(mu_);

  // Makes Wait stop the server. Returns at once, so that a signal's thread may
  // call it.
  void RequestStop() ABSL_LOCKS_EXCLUDED(mu_);

  // Stops in this order: write the results of a run that has ended and wait for
  // its workers to leave; refuse new calls and end held streams with
  // Unavailable; join tasks; write the last checkpoint. A second call does
  // nothing.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend absl::StatusOr<std::unique_ptr<Server>> StartServer(
      const ServerOptions& options, std::ostream& out);

  Server(const ServerOptions& options, std::ostream& out,
         std::unique_ptr<ServerSecurity> security,
         std::shared_ptr<TraceFile> trace, std::unique_ptr<RunFiles> files);

  // ---- the start
  absl::Status Start();
  // Gives the run its identity.
  void NameRun();
  void MakeRun();
  absl::Status OpenRecorder();
  absl::Status Listen();
  // What a status says of where this server is.
  RunLinks Links() const ABSL_LOCKS_EXCLUDED(mu_);
  void PrintStart();
  // Waits until all are there, or the run is drained without them. Errors:
  // those of DataShards::Attach.
  absl::Status AttachDataShards() ABSL_LOCKS_EXCLUDED(mu_);
  // Passes on a stop of the process.
  void NoteRequestedStop() ABSL_LOCKS_EXCLUDED(mu_);
  bool OverBeforeStart() const ABSL_LOCKS_EXCLUDED(mu_);

  // ---- the main thread
  ServerLifecycle::Task AwaitTask() ABSL_LOCKS_EXCLUDED(mu_);
  // Writes the checkpoint that the run waits for, and lets it continue.
  void StoreMilestone() ABSL_LOCKS_EXCLUDED(mu_);
  void SaveForLeaving() ABSL_LOCKS_EXCLUDED(mu_);
  void Stay() ABSL_LOCKS_EXCLUDED(mu_);

  // ---- the stop
  void WaitForLeavers() ABSL_LOCKS_EXCLUDED(mu_);
  // Writes a checkpoint of the first version from now on whose kept state a
  // worker sends in time. No-op if the programs keep none.
  void SaveWithKeptState() ABSL_LOCKS_EXCLUDED(mu_);
  void WriteEnding(RunSummary& summary) ABSL_LOCKS_EXCLUDED(mu_);
  // Also says whether the run continues in another server.
  void EndDataShards(RunSummary& summary) ABSL_LOCKS_EXCLUDED(mu_);
  RunSummary Summary() const ABSL_LOCKS_EXCLUDED(mu_);

  // ---- events
  void OnShardLeaving(int32_t shard) ABSL_LOCKS_EXCLUDED(mu_);
  void OnShardLost(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // No worker has the kept state of `version`. Returns whether the run
  // continues from a checkpoint.
  bool OnKeptStateLost(Version version) ABSL_LOCKS_EXCLUDED(mu_);
  void OnCommitted(const CommitRecord& record,
                   const CommitObservation& observation) override;
  void OnPolicyChanged(const PolicyRecord& record,
                       std::optional<RunState> state) override;
  void OnEvaluated(const EvaluationRecord& record) override;
  void OnLogged(const effect::Log& log) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnCheckpoint(RunState state) override;
  void OnMilestone(RunState state) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnEnded(const effect::RunEnded& ended,
               const SharedSnapshot& snapshot) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void OnChangedBeforeStart() override ABSL_LOCKS_EXCLUDED(mu_);
  void OnFolded(absl::Duration took) override;
  void OnDrift(const std::vector<LayerDrift>& drift) override;

  // Fixed after Start.
  ServerOptions options_;
  std::ostream& out_;
  std::string address_;
  const SteadyClock clock_;

  // Synchronise themselves.
  RunStats stats_;
  CallCounts calls_;
  Watchers watchers_{clock_};
  ChangeWaits change_waits_;
  // Used by OnCommitted only.
  ProgressReport progress_;

  mutable Mutex mu_;
  CondVar changed_;
  ServerLifecycle lifecycle_ ABSL_GUARDED_BY(mu_);
  RunSummary summary_ ABSL_GUARDED_BY(mu_);
  // The reason of an operator's drain.
  std::optional<std::string> drain_asked_for_ ABSL_GUARDED_BY(mu_);
  // The run waits until it is on disk.
  std::optional<RunState> milestone_ ABSL_GUARDED_BY(mu_);

  // Destroyed in the reverse order: each uses those before it.
  const std::unique_ptr<ServerSecurity> security_;
  // Null without --trace.
  const std::shared_ptr<TraceFile> trace_;
  // Synchronises itself. The files' writer uses it.
  KeptStates kept_states_;
  const std::unique_ptr<RunFiles> files_;
  // Null if no memory is shared.
  std::shared_ptr<SharedFloatFiles> local_weights_;
  // These four are made by Start.
  std::unique_ptr<DataShards> shards_;
  std::unique_ptr<RunHost> run_;
  std::unique_ptr<Endings> endings_;
  std::unique_ptr<FiguresSource> figures_;
  Doors doors_;
  Operations operations_;
};

// Starts a server. Progress and results go to `out`, which must outlive it.
// Errors:
//   InvalidArgument     see Validate.
//   FailedPrecondition  the directories do not fit the flags, or another
//                       process holds them.
//   DataLoss            no checkpoint is whole.
//   Unavailable         the address cannot be listened on.
absl::StatusOr<std::unique_ptr<Server>> StartServer(
    const ServerOptions& options, std::ostream& out);

}  // namespace cohort
