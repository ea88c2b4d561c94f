#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/assignment.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/model_layout.h"
#include "server/core/effects.h"
#include "server/core/gradient_budget.h"
#include "server/core/membership/rank_table.h"
#include "server/core/membership/registration_book.h"
#include "server/core/model/model_store.h"
#include "server/core/model/pinned_work.h"
#include "server/core/observation.h"
#include "server/core/options.h"
#include "server/core/policy/aggregation_policy.h"
#include "server/core/policy/call_agreement.h"
#include "server/core/policy/lead.h"
#include "server/core/policy/staleness_rule.h"
#include "server/core/push.h"
#include "server/core/rendezvous.h"
#include "server/core/requests.h"
#include "server/core/round.h"
#include "server/core/run_ledger.h"
#include "server/core/run_settings.h"
#include "server/core/transaction.h"
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
  //   (no vacant rank), InvalidArgument, FailedPrecondition (another run),
  //   Aborted (that incarnation was replaced).
  absl::Status Join(SessionId session, const JoinRequest& request, Instant now,
                    Effects& out);
  // `phases` empty: nothing new.
  void Heartbeat(SessionId session, Instant now,
                 const PhaseSeconds& phases = {});
  void Leave(SessionId session, const std::string& reason, Instant now,
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
  // A part of the values has arrived: the deadline begins anew.
  absl::Status RegisterProgress(const Sender& sender, Instant now);
  // Of the worker that was asked. `values` has one buffer a partition;
  // `statistics` one entry a layer or none.
  // Errors also: FailedPrecondition if it was not asked.
  absl::StatusOr<RegisterAnswer> FinishRegister(
      const Sender& sender, const ModelLayout& layout, const RunPlan& plan,
      std::vector<SharedFloats> values, std::vector<LayerStatistics> statistics,
      Instant now, Effects& out);

  // ---- one push
  // Every push is answered once (effect SendVerdict): when it is decided, or at
  // its closing if it was decided before. So is each repetition of it.
  // Errors: InvalidArgument (malformed), FailedPrecondition (no such
  //   assignment, or out of order).
  absl::Status Open(const Sender& sender, const PushKey& key,
                    const PushOpening& opening, Instant now, Effects& out);
  // Takes from `message` unless it answers kPaused.
  absl::StatusOr<Admission> Gradient(const Sender& sender, const PushKey& key,
                                     GradientMessage& message, Instant now,
                                     Effects& out);
  absl::Status Close(const Sender& sender, const PushKey& key,
                     PushClosing closing, Instant now, Effects& out);
  void FoldDone(FoldResult result, Instant now, Effects& out);

  // ---- rendezvous
  // Errors also: ResourceExhausted (the rank waits in too many calls).
  absl::Status Reduce(const Sender& sender, const ReduceKey& key,
                      Moments moments, Instant now, Effects& out);

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
  // if that is under way, only answers. They are published with the newest
  // version once all batches are in, and evaluated. An empty `run_id` means
  // whatever run this is.
  // Errors: FailedPrecondition (another run, not started, training is done,
  //   the policy does not keep them, no layer has any).
  absl::StatusOr<CollectionAnswer> CollectStatistics(const std::string& run_id,
                                                     Instant now, Effects& out);

  // ---- reading
  // Errors: FailedPrecondition nothing registered; OutOfRange not held.
  absl::StatusOr<SharedSnapshot> Read(std::optional<Version> version) const;
  // Null before registration.
  SharedModel model() const { return model_.model(); }
  // State for a checkpoint of the current version; FailedPrecondition before
  // registration.
  absl::StatusOr<RunState> State() const;
  StatusView Status(Instant now) const;
  bool ended() const { return ledger_.ended(); }
  // Gradients held until they are folded, and room reserved for more.
  int64_t inflight_bytes() const { return budget_.held_bytes(); }

  // ---- changes
  // All of the values or none. Leases, deadlines and on_worker_loss act at
  // once; the others take effect together once nothing is in flight.
  // Errors: InvalidArgument (name, value or combination), FailedPrecondition
  //   (another run, over, optimizer slots that do not fit).
  absl::StatusOr<ChangeAnswer> Change(const ChangeRequest& request, Instant now,
                                      Effects& out);
  // The life that holds `rank` is over, as if its process had died.
  // Errors: InvalidArgument (no such rank), FailedPrecondition (vacant, over).
  absl::Status Evict(Rank rank, const std::string& reason, Instant now,
                     Effects& out);
  // The life that holds `rank` is told to leave once it has done what it is
  // at: its push counts, and nothing is computed twice.
  // Errors: those of Evict.
  absl::Status DrainWorker(Rank rank, const std::string& reason, Instant now,
                           Effects& out);
  PolicyView Policy(Instant now) const;

  // ---- time and people
  // Notices leases, graces and deadlines that have passed. Call it at least
  // every 100 ms.
  void Tick(Instant now, Effects& out);
  // Ends the run at the next commit (at once if none is under way).
  void Drain(const std::string& reason, Instant now, Effects& out);

 private:
  // Errors: those of Evict.
  absl::Status CheckHeld(Rank rank) const;
  // coordinator.cc
  void Restore(const RunState& restored);
  absl::StatusOr<Worker*> Check(const Sender& sender, Instant now);
  absl::Status RequireRegistered(const Worker& worker) const;
  void Advance(Instant now, Effects& out);
  bool ReadyToStart(Instant now) const;
  void Start(Instant now, Effects& out);
  // NextFor a rank that may have been given up meanwhile.
  Assignment NextForRank(Rank rank, Instant now);
  Assignment NextFor(Worker& worker, Instant now);
  std::optional<Assignment> NextTraining(Worker& worker);
  Assignment WaitAssignment(const Worker& worker, Instant now) const;
  Assignment FinishedAssignment(const std::string& reason) const;
  void NotifyWaiting(Instant now, Effects& out);
  void End(RunOutcome outcome, const std::string& reason, Effects& out);
  bool TrainingDone() const;
  int64_t samples_total() const;
  // Samples of a nominal global step: the batch sizes of all ranks.
  int64_t samples_reference() const;

  // coordinator_registration.cc
  // Keeps a registration until the run has a model.
  void AwaitModel(const Sender& sender, const ModelLayout& layout,
                  const RunPlan& plan, Instant now, Effects& out);
  // Asks the next worker for its values if it is time to.
  void AskForValues(Instant now, Effects& out);
  // The worker that was asked is lost if it makes no progress.
  void CheckValuesDeadline(Instant now, Effects& out);
  // The run has a model: whoever waits for it is registered.
  void AdmitRegistrants(Rank from, Instant now, Effects& out);
  void Admit(Rank rank);
  // Answers a registration that comes to nothing, so that its worker goes on
  // to read that it has nothing to do. No-op if there is none, or if that
  // worker was asked for its values: it is answered once they are in.
  void DismissRegistrant(Rank rank, Effects& out);
  RegisterAnswer AnswerOf(const RegistrationBook::Entry& entry) const;
  RegisterAnswer AnswerOfModel() const;

  // coordinator_change.cc
  absl::Status CheckChange(const CoordinatorOptions& target) const;
  void ActAtOnce(const CoordinatorOptions& target, Instant now, Effects& out);
  // Nothing is in flight that the settings in force apply to.
  bool Quiet() const;
  // Withdraws what lost ranks hold, so that nothing waits for them.
  void WithdrawFromLost(const std::string& reason, Instant now, Effects& out);
  // Lets the change take effect once it is quiet.
  void TryChange(Instant now, Effects& out);
  void ResizeCohort(int32_t workers, Instant now, Effects& out);
  // "the run goes on with 2 workers".
  std::string SizeText() const;
  void Record(SettingValues changed, std::string text, Effects& out);
  std::vector<Rank> InFlight() const;

  // coordinator_status.cc
  // Before the start: ranks that must come first, without those that have.
  std::vector<Rank> AwaitedToStart() const;
  std::string StartText(Instant now) const;
  // Until a continued run goes on without the ranks that have not come back;
  // infinite where it does not.
  absl::Duration StartLeft(Instant now) const;
  // Ranks that hold the run up, and since when at the earliest.
  std::vector<Rank> WaitedFor() const;
  std::string WaitText(Instant now) const;
  // Names ranks that have been paused for seconds; to be appended.
  std::string PausedText(Instant now) const;
  // Of a replacement, in words.
  std::string LostText(const std::vector<Rank>& lost, Instant now) const;
  absl::Duration WaitLeft(const std::vector<Rank>& ranks, Instant now) const;
  std::vector<Rank> VacantRanks() const;
  StatusView::Worker ViewOf(const Worker& worker, Instant now) const;
  absl::string_view ActivityOf(const Worker& worker) const;
  struct HoldUp {
    // How long the one has been idle that has waited longest.
    absl::Duration longest;
    std::vector<Rank> by;
  };
  HoldUp HeldUp(Instant now) const;
  // Sentence, phase and who is waited for.
  void DescribeState(Instant now, StatusView& view) const;

  // coordinator_membership.cc
  absl::Status Rejoin(SessionId session, const JoinRequest& request,
                      Instant now, Effects& out);
  absl::StatusOr<Worker*> VacantFor(const JoinRequest& request, Instant now);
  // "rank 2 is not needed any more: the run goes on with 2 workers".
  std::string SurplusText(Rank rank) const;
  // Why a worker finds no rank yet, if a change of their number is pending;
  // empty otherwise.
  std::string PendingWorkersText(Instant now) const;
  // The first event tells when this process began to wait.
  void NoteBegin(Instant now);
  void Welcome(Worker& worker, SessionId session, const JoinRequest& request,
               Instant now, Effects& out);
  // A new life, or the same one after a broken stream, repeats what is
  // outstanding.
  void RepeatOutstanding(Worker& worker);
  void Vacate(Rank rank, VacancyReason why, const std::string& reason,
              Instant now, Effects& out);
  void ReleaseOutstanding(Rank rank, const std::string& why, Instant now,
                          Effects& out);
  void GiveUpWaiting(Instant now, Effects& out);
  void CheckStepDeadline(Instant now, Effects& out);
  bool HoldsOthersUp(const Worker& worker) const;
  // Tells a worker that waits what it waits for now. No-op for a rank that is
  // gone.
  void RepeatWait(Rank rank, Instant now, Effects& out) const;
  void RepeatWaits(Instant now, Effects& out) const;

  // coordinator_sync.cc
  void StartStep();
  void AbortAttempt(const std::string& reason, Instant now, Effects& out);
  RoundView ViewOfRound() const;
  // True if the first moments make a member, false if a complete push does.
  bool ClaimedByMoments() const;
  void Claim(Rank rank, Instant now, Effects& out);
  void FixMembers(const std::vector<Rank>& members, Instant now, Effects& out);
  // The step is full without `rank`, which takes a new assignment.
  void DropFromStep(Rank rank, Instant now, Effects& out);
  // Lost before it could become a member.
  void RemoveCandidate(Rank rank, Instant now, Effects& out);
  std::vector<Rank> Candidates() const;
  void AnswerRendezvous(const ReduceKey& key,
                        const RendezvousTable::Outcome& outcome, Instant now,
                        Effects& out);
  void OpenTransaction(Instant now, Effects& out);
  void StartFoldIfReady(int32_t partition, Instant now, Effects& out);
  void TryCommit(Instant now, Effects& out);
  void CommitStep(Instant now, Effects& out);
  // What the round did, but for the numbers of the run as a whole.
  CommitRecord RecordOf(const Round& round) const;
  // What the round was like, but for the drift.
  CommitObservation ObservationOf(Round& round, Instant now) const;
  // By member: the push it has made.
  std::map<Rank, PushKey> EndAssignmentsOf(const Round& round);
  // The member leaves the round, with what was counted of its push.
  void ErasePush(Rank rank);
  bool IsMember(Rank rank) const;
  // Moves them out of the round, which is about to end: they are many
  // megabytes.
  std::vector<RankMoments> TakeStepMoments();

  // coordinator_calls.cc
  // Compares the members' batch-norm calls, once no member computes any more.
  // False: they differ, and the attempt is over, or the run.
  bool SettleCalls(Instant now, Effects& out);
  // Of a step that the first pushes make: candidates that closed theirs without
  // any moments would never claim it otherwise.
  void ClaimClosed(Instant now, Effects& out);
  // Every member has closed its push, or waits in a rendezvous.
  bool AllClosedOrWaiting() const;
  // The batch-norm calls of one member, as far as they are known.
  MemberCalls CallsOf(Rank rank) const;
  // A disagreement in which a closed push takes part; absent: there is none.
  std::optional<CallDissent> ClosedDissent() const;
  // Where all members count the same calls: those whose rendezvous contradict
  // their own count.
  std::optional<CallDissent> MiscountedDissent(
      const std::vector<int32_t>& counts) const;
  // That of a group whose members have waited for each other for longer than
  // the step deadline.
  std::optional<CallDissent> CrossedDissent(Instant now) const;
  // Repeats the step, and fences the member that is alone in the disagreement.
  // The second time it ends the run.
  void EndDissent(const CallDissent& dissent, Instant now, Effects& out);
  void Fence(Rank rank, const std::string& reason, Instant now, Effects& out);

  // coordinator_async.cc
  void EnqueueArrival(Worker& worker, Instant now, Effects& out);
  void ReissuePiece(Rank rank);
  void ApplyNext(Instant now, Effects& out);
  // Ranks that `rank` must wait for before it starts another assignment.
  std::vector<Rank> Behind(Rank rank) const;
  std::vector<RankLead> Leads() const;
  // Keeps the versions that pushes under way have read, as far as the policy
  // needs them.
  void HoldReadVersions();
  // What a push's gradient was computed at, where that is needed to
  // compensate it; otherwise null.
  SharedSnapshot ReadBy(Version version) const;
  void CommitArrival(Instant now, Effects& out);
  void ApplyArrival(const Arrival& arrival, const Transaction& transaction);
  PushVerdict VerdictOn(const Arrival& arrival) const;
  void DropArrival(Instant now, Effects& out);
  // The push is decided; `transaction` is null if nothing was folded.
  void EndArrival(const Arrival& arrival, const Transaction* transaction,
                  PushVerdict verdict, Instant now, Effects& out);
  // Sends the weights of `applied` and the verdict, unless the sender's life
  // is over.
  void AnswerArrival(const Arrival& arrival, const Transaction* applied,
                     PushVerdict verdict, Instant now, Effects& out);

  // coordinator_flow.cc
  // A message that there is no room for.
  struct Paused {
    int64_t bytes = 0;
    Instant since;
    // Its stream was told to go on, and has not spoken yet.
    bool resumed = false;
  };
  // Pushes are let in whole; otherwise message by message.
  bool ReservesPushes() const { return !settings_.sync() || !round_->fixed; }
  bool IsPaused(Rank rank) const;
  std::vector<Rank> PausedRanks() const;
  bool MayTake(Rank rank, int64_t bytes) const;
  // No member has sent fewer partitions of this attempt.
  bool IsFurthestBehind(Rank rank) const;
  bool Stalled(Instant now) const;
  // Lets those in who are paused while the others wait for each other.
  void EndStall(Instant now);
  // Lets streams go on for whose message there is room now.
  void ResumePaused(Instant now, Effects& out);
  void ResumeAll(Effects& out);
  // Frees what `rank` holds of `push`, which ends before it is complete.
  void ReleasePush(Rank rank, const Push& push);
  // Replaces the reservation by what has come of the push.
  void SettlePush(Rank rank, const Push& push);
  // Forgets what has come of an asynchronous push.
  void DropAssembly(Rank rank);
  // `rank` is lost and waited for. Where others may take its place in the step,
  // what came of its push goes: they need the room.
  void FreeRoomOf(Rank rank);

  // coordinator_push.cc
  // Null: an older push of this rank, which changes nothing any more.
  absl::StatusOr<Push*> FindPush(Worker& worker, const PushKey& key);
  // The closing of an older push.
  void AnswerOldPush(Worker& worker, const PushKey& key, Instant now,
                     Effects& out);
  // It is complete, and waits for its turn (async).
  bool InQueue(Rank rank, const PushKey& key) const;
  // The run is over, and closed pushes will not be applied any more.
  void AnswerAtTheEnd(Effects& out);
  absl::Status CheckOpening(const Worker& worker,
                            const PushOpening& opening) const;
  absl::Status CheckGradient(const GradientMessage& message) const;
  absl::Status CheckClosing(const PushClosing& closing) const;
  absl::Status CheckReduce(const Worker& worker, const ReduceKey& key,
                           const Moments& moments) const;
  // Errors: ResourceExhausted: the rank waits in, or holds, too many calls.
  absl::Status CheckHeldMoments(const Worker& worker,
                                const ReduceKey& key) const;
  // More of it has arrived: it may make a member, or a commit.
  void TakePush(const Worker& worker, Instant now, Effects& out);
  void CountArrival(const Worker& worker, Push::Arrival arrival, Effects& out);
  // As the schedule has it now.
  double learning_rate() const;
  void SendResult(const FoldResult& result, Version version,
                  const Worker& worker, const PushKey& key, Effects& out) const;
  // "rank 2: moments of bn1", if any are not finite.
  std::optional<std::string> NonfiniteMoments(Rank rank,
                                              const Push& push) const;
  std::string NonfiniteText(const NonfiniteGradient& where) const;
  void AfterCommit(const CommitRecord& record, CommitObservation observation,
                   Effects& out);
  void Answer(Worker& worker, const PushKey& key, PushVerdict verdict,
              int32_t weights_partitions, Instant now, Effects& out);
  // The same, if a verdict is held already.
  void Tell(Worker& worker, const PushKey& key, PushVerdict verdict,
            int32_t weights_partitions, Instant now, Effects& out);
  // Returns true if the run must stop.
  bool CountNonfinite(const std::string& what, Effects& out);

  // coordinator_statistics.cc
  // Notes what became of the moments of so many pushes.
  void CountStatistics(int64_t StatisticsCounts::*what, int64_t pushes);
  // Work on a pinned version: an evaluation's or a collection's.
  std::optional<Assignment> NextShard(Worker& worker);
  void ReturnShard(Worker& worker);
  // Others compute the step and would wait for it in a rendezvous.
  bool HoldsUpIssuedStep(Rank rank) const;
  // False: of an older assignment, to be ignored.
  absl::StatusOr<bool> ReportsOutstanding(const Worker& worker,
                                          AssignmentKind kind,
                                          Sequence sequence) const;

  RunSettings settings_;

  // Resized by ResizeCohort, and so by all that may call Advance. No reference
  // to a worker is kept over such a call: its rank is, and is looked up again.
  RankTable ranks_;
  RunLedger ledger_;
  RegistrationBook registrations_;
  ModelStore model_;
  PinnedWork pinned_;
  Incarnation next_incarnation_;
  // Continued from a checkpoint, with what it says of who was there.
  bool resumed_ = false;
  std::set<Rank> lost_before_;
  std::set<Rank> never_registered_before_;
  // Time of the first event of this process.
  std::optional<Instant> begin_;
  GradientBudget budget_;
  std::map<Rank, Paused> paused_;
  // Members of this attempt that are never paused again.
  std::set<Rank> let_in_;

  // Sync.
  std::optional<Round> round_;
  // The step that was repeated because its members' batch-norm calls differed.
  std::optional<Version> dissent_step_;
  // Ranks that were fenced for theirs and have not made a step since.
  std::set<Rank> fenced_;
  // Async: pushes in assembly, complete ones in order of arrival, and the one
  // being applied.
  std::map<Rank, Push> assembling_;
  std::map<Rank, DataCursor::Piece> pieces_;
  std::vector<Arrival> arrivals_;
  std::optional<Arrival> applying_;
  std::optional<Transaction> applying_transaction_;
  StalenessDecision judgement_;
};

}  // namespace cohort
