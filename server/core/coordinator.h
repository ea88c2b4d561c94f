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
#include "common/staleness_histogram.h"
#include "server/core/data_cursor.h"
#include "server/core/effects.h"
#include "server/core/evaluation.h"
#include "server/core/moments_collection.h"
#include "server/core/observation.h"
#include "server/core/optimizer/mask.h"
#include "server/core/options.h"
#include "server/core/policy/aggregation_policy.h"
#include "server/core/policy/lead.h"
#include "server/core/policy/staleness_rule.h"
#include "server/core/push.h"
#include "server/core/rank_table.h"
#include "server/core/rendezvous.h"
#include "server/core/statistics_sets.h"
#include "server/core/transaction.h"
#include "server/core/views.h"

namespace cohort {

struct JoinRequest {
  std::optional<Rank> rank;
  // Both empty for a fresh process.
  std::string run_id;
  Incarnation incarnation;
  int64_t batch_size = 0;
  std::string fingerprint;
  std::string description;
  std::string build;
};

struct GradientMessage {
  int32_t partition = 0;
  // The partition's elements, float32.
  ByteRope gradient;
  // XXH3-64 of it.
  uint64_t checksum = 0;
  std::vector<int32_t> absent_slices;
};

// What a registrant is told.
struct RegisterAnswer {
  std::vector<Partition> partitions;
  // True: call FinishRegister with the initial values.
  bool send_values = false;
  double loss_reference = 1;
};

// A change of settings that was asked for.
struct ChangeRequest {
  // Empty: whatever run this is.
  std::string run_id;
  SettingValues values;
  // Checks and answers, changes nothing.
  bool dry_run = false;
};

struct ChangeAnswer {
  // In force once the change is.
  int64_t policy_epoch = 0;
  Version version;
  // False: it is in force, or nothing differs from what was.
  bool pending = false;
  std::string text;
};

// A collection of precise statistics that is under way.
struct CollectionAnswer {
  // Whose weights it is over.
  Version version;
  int64_t batches = 0;
};

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
  // Errors: InvalidArgument, FailedPrecondition naming the difference.
  absl::StatusOr<RegisterAnswer> BeginRegister(const Sender& sender,
                                               const ModelLayout& layout,
                                               const RunPlan& plan, Instant now,
                                               Effects& out);
  // `values` has one buffer a partition; `statistics` one entry a layer or
  // none. If another worker was first, only compares.
  absl::Status FinishRegister(const Sender& sender, const ModelLayout& layout,
                              const RunPlan& plan,
                              std::vector<SharedFloats> values,
                              std::vector<LayerStatistics> statistics,
                              Instant now, Effects& out);

  // ---- one push
  // Errors: InvalidArgument (malformed), FailedPrecondition (no such
  //   assignment, or out of order).
  absl::Status Open(const Sender& sender, const PushKey& key,
                    const PushOpening& opening, Instant now, Effects& out);
  absl::Status Gradient(const Sender& sender, const PushKey& key,
                        GradientMessage message, Instant now, Effects& out);
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
  SharedModel model() const { return model_; }
  // State for a checkpoint of the current version; FailedPrecondition before
  // registration.
  absl::StatusOr<RunState> State() const;
  StatusView Status(Instant now) const;
  bool ended() const { return ended_; }

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
  // The pushes of one (step, attempt).
  struct Round {
    Version step;
    Attempt attempt;
    // Ascending; until they are fixed, whoever may become one.
    std::vector<Rank> members;
    bool fixed = true;
    // Not fixed: who has done what makes a member, in order.
    std::vector<Rank> claims;
    // No members, because the step was full without them.
    std::set<Rank> dropped;
    StepCut cut;
    // What each is to compute; of a dropped one too.
    std::map<Rank, IndexRange> ranges;
    // Of the members.
    std::map<Rank, Push> pushes;
    // Members that have been given the step.
    std::set<Rank> issued;
    RendezvousTable rendezvous;
    // Set once all members have opened.
    std::optional<Transaction> transaction;
    // "rank 3: conv1.weight", of moments or gradients.
    std::optional<std::string> nonfinite;
    // In order: who closed, and when.
    std::vector<std::pair<Rank, Instant>> closed;
    std::optional<Instant> first_fold;
  };

  // A complete asynchronous push on its way into the model.
  struct Arrival {
    Rank rank;
    Incarnation incarnation;
    PushKey key;
    Push push;
    DataCursor::Piece piece;
    // When it was complete.
    Instant since;
    std::vector<LayerDrift> drift;
  };

  // What was asked for and waits until nothing is in flight.
  struct PendingChange {
    CoordinatorOptions target;
    SettingValues changed;
  };

  struct Decided {
    PushKey key;
    PushVerdict verdict;
  };

  // coordinator.cc
  bool sync() const { return policy_.aggregation == AggregationKind::kSync; }
  bool bounded() const {
    return policy_.aggregation == AggregationKind::kBounded;
  }
  bool global() const {
    return policy_.normalization == NormalizationKind::kGlobal;
  }
  absl::StatusOr<Worker*> Check(const Sender& sender, Instant now);
  absl::Status RequireRegistered(const Worker& worker) const;
  void Install(const ModelLayout& layout, const RunPlan& plan,
               std::vector<SharedFloats> values,
               std::vector<LayerStatistics> statistics);
  void Advance(Instant now, Effects& out);
  bool ReadyToStart() const;
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

  // coordinator_change.cc
  absl::Status CheckChange(const CoordinatorOptions& target) const;
  // Mask and slots of the options in force.
  void ChangeOptimizer();
  void ActAtOnce(const CoordinatorOptions& target, Instant now, Effects& out);
  // Nothing is in flight that the settings in force apply to.
  bool Quiet() const;
  // Withdraws what lost ranks hold, so that nothing waits for them.
  void WithdrawFromLost(const std::string& reason, Instant now, Effects& out);
  // Lets the change take effect once it is quiet.
  void TryChange(Instant now, Effects& out);
  void ResizeCohort(int32_t workers, Instant now, Effects& out);
  void Record(SettingValues changed, std::string text, Effects& out);
  std::vector<Rank> InFlight() const;

  // coordinator_status.cc
  // Ranks that hold the run up, and since when at the earliest.
  std::vector<Rank> WaitedFor() const;
  std::string WaitText(Instant now) const;
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
  // Whether the run had this rank at some time.
  bool HadRank(Rank rank) const;
  void Welcome(Worker& worker, SessionId session, const JoinRequest& request,
               Instant now, Effects& out);
  // A new life, or the same one after a broken stream, repeats what is
  // outstanding.
  void RepeatOutstanding(Worker& worker);
  void Vacate(Worker& worker, VacancyReason why, const std::string& reason,
              Instant now, Effects& out);
  void ReleaseOutstanding(Worker& worker, const std::string& why, Instant now,
                          Effects& out);
  void GiveUpWaiting(Instant now, Effects& out);
  void CheckStepDeadline(Instant now, Effects& out);
  bool HoldsOthersUp(const Worker& worker) const;
  // Names the batch-norm calls in which all members wait for each other.
  std::optional<std::string> CrossedRendezvous(Instant now) const;
  void RepeatWait(const Worker& worker, Instant now, Effects& out) const;

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
  // Names a batch-norm layer that the members call unequally often.
  std::optional<std::string> CallMismatch() const;
  bool IsMember(Rank rank) const;
  std::vector<RankMoments> StepMoments() const;

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

  // coordinator_push.cc
  // Null: an older push of this rank, to be ignored.
  absl::StatusOr<Push*> FindPush(Worker& worker, const PushKey& key);
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
  // `plan` without what this knows: the model, its options and its mask.
  Transaction NewTransaction(Transaction::Plan plan);
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
  // Returns true if the run must stop.
  bool CountNonfinite(const std::string& what, Effects& out);

  // coordinator_statistics.cc
  bool TracksStatistics() const;
  // Notes what became of the moments of so many pushes.
  void CountStatistics(int64_t StatisticsCounts::*what, int64_t pushes);
  // Keeps the policy's kinds from now on. Returns what becomes of those that
  // are new, to be appended to a sentence; empty if none is.
  std::string AdoptStatistics();
  // kAfter is collected before the run ends.
  bool EndsWithCollection() const;
  void StartEvaluation(const SharedSnapshot& snapshot,
                       EvaluationBook::Plan plan);
  // An epoch, the last of `epochs`, has ended with the present version.
  void EvaluateEpoch(int64_t epochs);
  void EvaluateAllKinds(int64_t epochs);
  // At the end of training: collects kAfter and evaluates. Returns true once
  // there is nothing left to start.
  bool ConcludeStatistics(Effects& out);
  void StartCollection(Effects& out);
  void FinishCollection(Effects& out);
  // Work on a pinned version: an evaluation's or a collection's.
  std::optional<Assignment> NextShard(Worker& worker);
  void ReturnShard(Worker& worker);
  // Others compute the step and would wait for it in a rendezvous.
  bool HoldsUpIssuedStep(Rank rank) const;
  // False: of an older assignment, to be ignored.
  absl::StatusOr<bool> ReportsOutstanding(const Worker& worker,
                                          AssignmentKind kind,
                                          Sequence sequence) const;
  absl::Status CheckCollected(const std::vector<CallMoments>& calls) const;

  // Changed as a whole by TryChange, and where changes act at once.
  CoordinatorOptions options_;
  PolicyOptions policy_;
  std::unique_ptr<AggregationPolicy> aggregation_;

  RankTable ranks_;
  SharedModel model_;
  int32_t trainable_partitions_ = 0;
  // Frozen elements. Null: none.
  SharedMask mask_;
  SharedSnapshot current_;
  DataCursor cursor_;
  EvaluationBook evaluations_;
  KeptStatistics statistics_;
  std::optional<MomentsCollection> collection_;
  int64_t next_collection_ = 1;
  // Its activations were not finite.
  std::optional<Version> uncollectable_;
  // What ConcludeStatistics does is done.
  bool concluded_ = false;
  int64_t policy_epoch_ = 1;
  std::optional<PendingChange> pending_;
  std::vector<PolicyRecord> history_;
  Incarnation next_incarnation_;
  int64_t samples_ = 0;
  bool started_ = false;
  bool draining_ = false;
  std::string drain_reason_;
  bool ended_ = false;
  std::string end_reason_;
  int64_t next_transaction_ = 1;
  int32_t nonfinite_in_row_ = 0;
  std::optional<double> train_loss_;
  std::optional<EvaluationRecord> last_evaluation_;
  std::map<std::string, int64_t> counters_;
  StalenessCounts staleness_;
  std::map<VacancyReason, int64_t> vacancies_;
  StatisticsCounts statistics_counts_;
  // By rank: how the last push ended, to answer its repetitions.
  std::vector<std::optional<Decided>> decided_;

  // Sync.
  std::optional<Round> round_;
  // Of the next round of this version: workers know that the attempts before
  // it are over, also where another policy came between.
  Attempt next_attempt_;
  // Async: pushes in assembly, complete ones in order of arrival, and the one
  // being applied.
  std::map<Rank, Push> assembling_;
  std::map<Rank, DataCursor::Piece> pieces_;
  std::vector<Arrival> arrivals_;
  std::optional<Arrival> applying_;
  std::optional<Transaction> applying_transaction_;
  StalenessDecision judgement_;
  // Versions that pushes under way may have read (delay compensation).
  std::map<Version, SharedSnapshot> read_;
};

}  // namespace cohort
