#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/assignment.h"
#include "common/clock.h"
#include "common/departure.h"
#include "common/evaluation_sums.h"
#include "common/ids.h"
#include "common/model_layout.h"
#include "common/moments.h"
#include "common/push.h"
#include "common/worker_report.h"
#include "server/core/automatic_shares.h"
#include "server/core/describe_status.h"
#include "server/core/events/effects.h"
#include "server/core/events/requests.h"
#include "server/core/events/turn.h"
#include "server/core/run.h"
#include "server/core/settings/options.h"
#include "server/core/views.h"

namespace cohort {

// The state machine of a run: events in, effects out. No gRPC, threads,
// clock or files; time comes in as `now`, which never falls.
//
// Every method appends what must be done to `out`, in order. A status that a
// method returns is the answer to its caller and leaves the run unharmed.
//
// Thread safety: none; the caller holds one lock around all calls.
// Errors of everything that takes a Sender: FailedPrecondition (another
//   run), Aborted (an older incarnation: join again).
class Coordinator {
 public:
  // `options` must be valid. Pass `restored` to continue from a checkpoint.
  explicit Coordinator(const CoordinatorOptions& options,
                       const RunState* restored = nullptr);

  // ---- sessions
  // Answered with effect Joined, or by the status returned:
  //   AlreadyExists (rank is alive; says when it frees), ResourceExhausted
  //   (no vacant rank), InvalidArgument, NotFound (another run),
  //   Aborted (that incarnation was replaced).
  absl::Status Join(SessionId session, const JoinRequest& request, Instant now,
                    Effects& out);
  void Heartbeat(SessionId session, Instant now,
                 const WorkerReport& report = {});
  // Where the run numbers its data, no worker's can end.
  void Leave(SessionId session, const Departure& departure, Instant now,
             Effects& out);
  // The stream ended without Leave.
  void SessionBroken(SessionId session, Instant now, Effects& out);

  // ---- registration
  // Answered with effect RegisterAnswered: at once if the run has a model.
  // Otherwise once all ranks have come; then the lowest is asked for its
  // values, and the others are answered when it has sent them.
  // Errors: InvalidArgument, FailedPrecondition naming the difference.
  absl::Status BeginRegister(const Sender& sender, const ModelLayout& layout,
                             const RunPlan& plan, Instant now, Effects& out);
  // A part of the values has arrived: the deadline begins again.
  absl::Status RegisterProgress(const Sender& sender, Instant now);
  // The client has closed its side of the registration, so it can send no
  // values.
  void RegisterClosed(const Sender& sender, Instant now, Effects& out);
  // The values of the worker that was asked are here; `statistics` has one
  // entry a layer or none. With effect InstallModel they become the weights of
  // version 0. Without it another worker's already have. Errors also:
  // FailedPrecondition if it was not asked.
  absl::StatusOr<RegisterAnswer> FinishRegister(
      const Sender& sender, const ModelLayout& layout, const RunPlan& plan,
      std::vector<LayerStatistics> statistics, Instant now, Effects& out);

  // ---- one push
  // Every push is answered once (effect SendVerdict): when it is decided, or at
  // its closing if it was decided before. So is each repetition of it.
  // Errors: InvalidArgument (malformed), FailedPrecondition (no such
  //   assignment, or out of order).
  absl::Status Open(const Sender& sender, const PushKey& key,
                    const PushOpening& opening, Instant now, Effects& out);
  absl::StatusOr<Admission> Gradient(const Sender& sender, const PushKey& key,
                                     const GradientArrival& gradient,
                                     Instant now, Effects& out);
  absl::Status Close(const Sender& sender, const PushKey& key,
                     PushClosing closing, Instant now, Effects& out);
  // With several shards, a gradient can arrive at one of them before the
  // opening of its push arrives here. True if that of `key` is still to come;
  // Gradient would refuse it.
  bool AwaitsOpening(const Sender& sender, const PushKey& key) const;
  // The state that programs keep beside the model is not where the push of
  // `key` needs it. The step is repeated; or, if `lost`, the run ends. No-op if
  // the push is decided.
  absl::Status MissesState(const Sender& sender, const PushKey& key, bool lost,
                           Instant now, Effects& out);
  // A shard reports on a fold.
  void Folded(FoldReport report, Instant now, Effects& out);
  // Whether a report of another process may be passed to Folded.
  // Errors: InvalidArgument.
  absl::Status CheckFolded(const FoldReport& report) const;

  // ---- rendezvous
  // The contributions of one request, one after another up to the first that is
  // refused. The sender waits for all of their answers.
  // Errors also: ResourceExhausted (the rank waits in too many calls).
  absl::Status Reduce(const Sender& sender,
                      std::vector<MomentsMessage> messages, Instant now,
                      Effects& out);
  void MomentsFolded(MomentsFold done, Instant now, Effects& out);
  void StatisticsUpdated(StatisticsUpdate done, Instant now, Effects& out);

  // The checkpoint that the run waits for is written, or cannot be: the run
  // continues, as after other checkpoints that fail.
  void CheckpointStored(Instant now, Effects& out);

  // ---- evaluation
  // Returns the next assignment (kWait if there is none yet).
  absl::StatusOr<Assignment> ReportEvaluation(const Sender& sender,
                                              Sequence sequence,
                                              const EvaluationSums& sums,
                                              Instant now, Effects& out);

  // ---- precise statistics
  // The moments of one batch; returns the next assignment.
  // Errors also: InvalidArgument (malformed), FailedPrecondition (no such
  //   assignment).
  absl::StatusOr<Assignment> ReportMoments(const Sender& sender,
                                           Sequence sequence,
                                           std::vector<CallMoments> calls,
                                           Instant now, Effects& out);
  // Starts collecting the statistics of kind kAfter over the present weights;
  // if that is in progress, only answers. They are published with the newest
  // version once all batches are in, and evaluated. An empty `run_id` means
  // whatever run this is.
  // Errors: FailedPrecondition (another run, not started, training is done,
  //   the policy does not keep them, no layer has any).
  absl::StatusOr<CollectionAnswer> CollectStatistics(const std::string& run_id,
                                                     Instant now, Effects& out);

  // ---- reading
  // Errors: FailedPrecondition nothing registered; OutOfRange not held.
  absl::StatusOr<SharedVersion> Read(std::optional<Version> version) const;
  // Null before registration.
  SharedModel model() const { return run_.model.model(); }
  // State for a checkpoint of the current version; FailedPrecondition before
  // registration.
  absl::StatusOr<RunState> State() const;
  StatusView Status(Instant now) const { return DescribeStatus(run_, now); }
  // With the settings in force.
  const CoordinatorOptions& options() const { return run_.settings.options(); }
  bool ended() const { return run_.phase.ended(); }
  // Gradients that wait until they are folded, and room reserved for more.
  int64_t inflight_bytes() const { return run_.flow.budget().inflight_bytes(); }

  // ---- changes
  // All of the values or none. Leases, deadlines and on_worker_loss act at
  // once; the others take effect together once nothing is in flight.
  // Errors: InvalidArgument (name, value or combination), FailedPrecondition
  //   (another run, over, optimizer slots that do not fit).
  absl::StatusOr<ChangeAnswer> Change(const ChangeRequest& request, Instant now,
                                      Effects& out);
  // The incarnation that holds `rank` is over, as if its process had died.
  // Errors: InvalidArgument (no such rank), FailedPrecondition (vacant, over).
  absl::Status Evict(Rank rank, const std::string& reason, Instant now,
                     Effects& out);
  // The worker that holds `rank` is asked to leave once it has done its
  // assignment: its push counts, and nothing is computed twice.
  // Errors: those of Evict.
  absl::Status DrainWorker(Rank rank, const std::string& reason, Instant now,
                           Effects& out);
  PolicyView Policy(Instant now) const { return DescribePolicy(run_, now); }

  // ---- time and people
  // Notices leases, graces and deadlines that have passed. Call it at least
  // every 100 ms.
  void Tick(Instant now, Effects& out);
  // Ends the run at the next commit (at once if none is in progress).
  void Drain(const std::string& reason, Instant now, Effects& out);

 private:
  // The worker's own data has ended.
  void EndWithData(SessionId session, Instant now, Effects& out);
  // ---- an event to its end
  // Does what the parts have asked for, and what follows from it, until nothing
  // more does; then answers pushes and gives out work.
  void Settle(Turn& turn);
  absl::Status ReduceOne(Worker& worker, MomentsMessage message, Turn& turn);
  // One thing that follows. False: nothing does.
  bool Advance(Turn& turn);
  bool TryChange(Turn& turn);

  // The run was over when it was restored: why. Until the first Tick.
  std::optional<std::string> over_;
  Run run_;
  AutomaticShares shares_;
};

}  // namespace cohort
