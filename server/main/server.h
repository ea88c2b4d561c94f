#pragma once

#include <atomic>
#include <functional>
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
#include "common/listen_address.h"
#include "common/local/shared_float_files.h"
#include "common/mutex.h"
#include "common/ops/listen_socket.h"
#include "common/periodic_task.h"
#include "common/progress_report.h"
#include "server/core/events/effects.h"
#include "server/local/local_door.h"
#include "server/main/server_options.h"
#include "server/main/server_security.h"
#include "server/metrics/grpc_metrics.h"
#include "server/metrics/run_stats.h"
#include "server/metrics/shard_stats.h"
#include "server/ops/figures_source.h"
#include "server/ops/ops_port.h"
#include "server/ops/report_writer.h"
#include "server/ops/watchers.h"
#include "server/records/run_files.h"
#include "server/records/run_recorder.h"
#include "server/rpc/data_shard_client.h"
#include "server/rpc/self_probe.h"
#include "server/rpc/transport.h"
#include "server/run/run_host.h"

namespace cohort {

// The result of a server's run.
struct RunSummary {
  // Absent if the server was stopped before the run ended.
  std::optional<RunOutcome> outcome;
  std::string reason;
  // Null if no worker ever registered a model.
  SharedModel model;
  SharedSnapshot snapshot;
  std::optional<EvaluationRecord> last_evaluation;
  // An error if results or the last checkpoint could not be written.
  absl::Status files;
  // Why a data shard was lost; empty if none was. The server has stopped
  // without results, and the run goes on from the newest checkpoint in another
  // one.
  std::string lost_shard;
};

// One parameter server: a shard, its gRPC services, its files and its
// progress output, wired together.
//
// Thread safety: safe, but only one thread calls Wait.
class Server : private RunListener {
 public:
  ~Server() override;

  // The listening address.
  const std::string& address() const { return address_; }
  int port() const { return port_; }
  // The address of the operations port; empty if there is none.
  std::string ops_address() const ABSL_LOCKS_EXCLUDED(mu_);
  // That of Admin; empty without --admin_listen.
  std::string admin_address() const {
    return admin_ == nullptr ? "" : admin_->address().ToString();
  }
  std::string run_id() const { return run_->facts().run_id; }

  // For the server that continues the run; see RunSummary::lost_shard.
  Handover TakeHandover();

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

  absl::Status Start();
  // Whether all files were written, once it has stopped.
  absl::Status FilesStatus() const ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OpenRecorder();
  absl::Status Listen();
  absl::Status OpenLocalDoor();
  absl::Status ListenForAdmin(Transport::Services services);
  // ---- data shards; see server_shards.cc
  void MakeDataShards(const std::vector<std::string>& addresses);
  // Waits until all are there, or the run is drained without them. Errors:
  // those of DataShardClient::Attach.
  absl::Status AttachDataShards();
  bool OverBeforeStart() const ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status AttachDataShard(size_t i, const std::function<bool()>& give_up);
  void NoteContinued();
  // For page, metrics and events.
  void NoteShardLost(int32_t shard, const absl::Status& why);
  // Writes a checkpoint and gives up a data shard that is to stop, if there is
  // one.
  void LetShardLeave() ABSL_LOCKS_EXCLUDED(mu_);
  void OnShardLeaving(int32_t shard) ABSL_LOCKS_EXCLUDED(mu_);
  // The run goes on in another server.
  void OnShardLost(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // `state` with the partitions of all shards. May block.
  absl::StatusOr<RunState> WithAllPartitions(RunState state);
  absl::StatusOr<RunState> WholeState();
  // All partitions of `version`, if they are here.
  SharedSnapshot WholeHere(Version version) const ABSL_LOCKS_EXCLUDED(mu_);
  void EndDataShards(bool run_is_over);
  // Waits for a milestone, or until Wait has something else to do: absent then.
  std::optional<RunState> AwaitMilestone() ABSL_LOCKS_EXCLUDED(mu_);
  // Writes the checkpoint that the run waits for, and lets it go on.
  void StoreMilestone(RunState state) ABSL_LOCKS_EXCLUDED(mu_);
  // A run that is over needs no data shards: its checkpoint has all partitions.
  static void ServeAloneIfOver(const RunState& restored,
                               ServerOptions& options);
  // The run was over before this process began: tells those data shards that
  // are still there.
  void EndShardsOfOverRun();
  // ---- see server_ops.cc
  void StartReport();
  absl::Status StartOps();
  void PrintStart();
  // Classifies errors of an operator's request. FailedPrecondition: a wrong
  // flag, or a data shard is away and named; Internal: all others, which are
  // ours.
  absl::Status ForOperator(const absl::Status& status) const;
  absl::StatusOr<Version> CheckpointNow();
  absl::StatusOr<Version> ExportNow();
  void StayUntilStopped() ABSL_LOCKS_EXCLUDED(mu_);
  // Writes a checkpoint of a live change.
  void WriteResults(RunSummary& summary);
  void NoteLostAtTheEnd(RunSummary& summary) ABSL_LOCKS_EXCLUDED(mu_);
  void WriteModelAndStaleness(RunSummary& summary);
  void WaitForLeavers() ABSL_LOCKS_EXCLUDED(mu_);
  void StayForWatchers() ABSL_LOCKS_EXCLUDED(mu_);
  // Does everything that follows the results.
  void Conclude(RunSummary& summary);
  // The same for a server that is stopped while it waits for data shards.
  void ConcludeWithoutShards(RunSummary& summary);
  void WriteLastCheckpoint(RunSummary& summary);
  void PrintEnd(const RunSummary& summary);

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
  int port_ = 0;
  const SteadyClock clock_;

  // Synchronise themselves.
  RunStats stats_;
  GrpcMetrics grpc_metrics_;
  Watchers watchers_{clock_};
  // Used by OnCommitted only.
  ProgressReport progress_;

  mutable Mutex mu_;
  CondVar changed_;
  // Empty until the operations port listens; calls are served before that.
  std::string ops_address_ ABSL_GUARDED_BY(mu_);
  bool stop_requested_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  // True once all results of the run are written and printed.
  bool concluded_ ABSL_GUARDED_BY(mu_) = false;
  RunSummary summary_ ABSL_GUARDED_BY(mu_);
  // Drained while data shards were awaited.
  bool over_before_start_ ABSL_GUARDED_BY(mu_) = false;
  // The data shard that is to stop; 0: none.
  int32_t leaving_shard_ ABSL_GUARDED_BY(mu_) = 0;
  // Why a data shard was lost; empty if none was.
  std::string lost_shard_ ABSL_GUARDED_BY(mu_);
  // The reason of an operator's drain.
  std::optional<std::string> drain_asked_for_ ABSL_GUARDED_BY(mu_);
  // The run waits until it is on disk.
  std::optional<RunState> milestone_ ABSL_GUARDED_BY(mu_);
  // All partitions of the version that is restored, until training starts, and
  // of the last one. No data shard is needed for its checkpoints and results.
  // Null between.
  SharedSnapshot whole_ ABSL_GUARDED_BY(mu_);

  // Destroyed in the reverse order: each uses those before it. Null without
  // --trace.
  std::unique_ptr<ServerSecurity> security_;
  std::shared_ptr<TraceFile> trace_;
  std::unique_ptr<RunFiles> files_;
  // Null if no memory is shared.
  std::shared_ptr<SharedFloatFiles> local_weights_;
  // All data shards are there, and are being told of the model. Set before
  // anything can ask for their partitions.
  std::atomic<bool> attached_ = false;
  // Null if there are no data shards.
  std::shared_ptr<ShardStats> shard_stats_;
  // Gone once the server has stopped.
  std::vector<std::unique_ptr<DataShardClient>> data_shards_;
  // Notices data shards that hang. Null without any.
  std::unique_ptr<PeriodicTask> shard_watch_;
  std::unique_ptr<RunHost> run_;
  std::unique_ptr<RunRecorder> recorder_;
  // Null if no memory is shared.
  std::unique_ptr<LocalDoor> local_;
  // Null without --admin_listen.
  std::unique_ptr<Transport> admin_;
  std::unique_ptr<Transport> transport_;
  // Null if nothing shows them.
  std::unique_ptr<FiguresSource> figures_;
  // Null without --results_dir.
  std::unique_ptr<ReportWriter> report_;
  // Null without an operations port.
  std::unique_ptr<SelfProbe> probe_;
  // Null without an operations port.
  std::unique_ptr<OpsPort> ops_;
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
