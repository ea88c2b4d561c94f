#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/assignment.h"
#include "common/evaluation_sums.h"
#include "common/ids.h"
#include "common/log_level.h"
#include "common/measures/measures.h"
#include "common/model_layout.h"
#include "common/moments.h"
#include "common/push.h"
#include "common/rank_list.h"
#include "server/core/model/commands.h"
#include "server/core/model/model_snapshot.h"
#include "server/core/optimizer/slots.h"
#include "server/core/policy/call_order.h"
#include "server/core/settings/options.h"
#include "server/core/settings/settings.h"
#include "server/core/statistics/observation.h"
#include "server/core/statistics/rendezvous.h"
#include "server/core/statistics/statistics_sets.h"

namespace cohort {

// Settings that took effect together.
struct PolicyRecord {
  // Rises by one with each.
  int64_t policy_epoch = 0;
  // The first version made under them is the one after this.
  Version version;
  int64_t samples = 0;
  // The new values of what changed; in the first record, all settings.
  SettingValues changed;
  // In words, with what becomes of optimizer and statistics.
  std::string text;
  // Asked for by the flags of a process that started, not while it ran.
  bool by_flags = false;
  ChangeNote note;

  friend bool operator==(const PolicyRecord&, const PolicyRecord&) = default;
};

// A range of one epoch that was handed out on its own (async).
struct IssuedRange {
  int64_t epoch = 0;
  IndexRange range;

  friend bool operator==(const IssuedRange&, const IssuedRange&) = default;
};

// The state that a restart needs beside the options.
struct RunState {
  SharedModel model;
  // The core gives it without weights and slots.
  SharedSnapshot snapshot;
  int64_t samples = 0;
  int64_t local_steps = 0;
  int64_t data_epoch = 0;
  int64_t cursor = 0;
  int64_t policy_epoch = 0;
  // In force; what the process was started with may differ.
  SettingValues settings;
  // The slots that they have: what FittedToSettings fits the snapshot to. Not
  // on disk.
  std::vector<SlotKind> slots;
  // --epochs and --max_steps.
  int64_t epochs = 0;
  int64_t max_steps = 0;
  std::vector<PolicyRecord> policy_history;
  // By rank: the number of the next assignment and the batch size. Numbers
  // are also kept of ranks that a smaller cohort has given up.
  std::vector<Sequence> next_sequences;
  std::vector<int64_t> batch_sizes;
  // Ranks that were vacant, ascending: those that had taken part, and those
  // that never had.
  std::vector<Rank> lost;
  std::vector<Rank> never_registered;
  Incarnation next_incarnation;
  // Issued but not committed (async); issued again after a restart.
  std::vector<IssuedRange> reissue;
  // The order of batch-norm calls, as learnt from repeated attempts.
  CallOrder::State call_order;
  // The state that the training programs keep beside the model, as bytes, and
  // the first version at which it was not the initial one; see
  // server/run/kept_states.h. Null: it still is at this version. The core does
  // not have it.
  SharedText kept_state;
  Version kept_moves_from;
  // Absent: no epoch was evaluated yet.
  std::optional<Score> score;
  // Training and evaluations are done: the reason for the run's end. Only with
  // several shards; a server that continues from it ends the run at once.
  std::optional<std::string> ended;
  // This process makes no later version, whether or not the run is over then.
  // Only with several shards; not on disk.
  bool last = false;
};

// Sums of one commit, for progress and history.
struct CommitRecord {
  Version version;
  int64_t data_epoch = 0;
  // In all versions so far.
  int64_t local_steps = 0;
  // Seen so far, this commit included.
  int64_t samples = 0;
  int64_t commit_samples = 0;
  // Means over `loss_weight` and `labels`; where those are 0, so are these, and
  // say nothing.
  double loss = 0;
  double accuracy = 0;
  double loss_weight = 0;
  int64_t labels = 0;
  double learning_rate = 0;
  int64_t staleness_versions = 0;
  RankList members;
  // Norm of the mean gradient before clipping; absent if no norm was needed.
  std::optional<double> gradient_norm;
  // The training program's measures, summed over the pushes; ascending by name.
  std::vector<Measure> measures;
  bool skipped = false;
  bool epoch_ended = false;
};

// How the model does with one kind of moving statistics.
struct EvaluationResult {
  StatisticsKind statistics = StatisticsKind::kSync;
  EvaluationSums sums;
  double loss() const { return MeanLoss(sums); }
  double accuracy() const { return Accuracy(sums); }
};

struct EvaluationRecord {
  Version version;
  // Completed epochs at that version.
  int64_t epochs = 0;
  // In the policy's order; never empty. Without those of kAfter where nothing
  // was collected from these weights.
  std::vector<EvaluationResult> results;
  // Follows a collection that was asked for, with its kind only; not an
  // epoch's end.
  bool on_request = false;

  const EvaluationSums& sums() const { return results.front().sums; }
  double loss() const { return results.front().loss(); }
  double accuracy() const { return results.front().accuracy(); }
};

enum class RunOutcome {
  kFinished,
  // Drained on request.
  kDrained,
  // Gave up waiting for a replacement.
  kWorkerLost,
  // Too many non-finite steps in a row.
  kNonfinite,
  // A step that cannot be: the workers' models disagree within it, or with a
  // recorded change of settings, or a worker's program was refused.
  kRefused,
};

struct WorkerProcess {
  Rank rank;
  Incarnation incarnation;
};

// The answer to a registration.
struct RegisterAnswer {
  std::vector<Partition> partitions;
  // True: call FinishRegister with the initial values.
  bool send_values = false;
  double loss_reference = 1;
};

// The actions that the state machine asks for. Adapters carry them out in
// order and decide nothing. Anything addressed to a stream that has ended is
// dropped.
namespace effect {

struct Joined {
  SessionId session;
  Rank rank;
  Incarnation incarnation;
  Version version;
};
// The session's stream ends with this status.
struct EndSession {
  SessionId session;
  absl::Status status;
};
struct Notify {
  SessionId session;
  Assignment assignment;
};
struct StepAborted {
  SessionId session;
  Version step;
  Attempt attempt;
  RankList members;
  std::string reason;
};
// The answer to BeginRegister, which may come long after it. A status that is
// not OK refuses the registration.
struct RegisterAnswered {
  Rank rank;
  Incarnation incarnation;
  absl::StatusOr<RegisterAnswer> answer;
};
struct ReduceResult {
  Rank rank;
  Incarnation incarnation;
  ReduceKey key;
  std::shared_ptr<const Moments> moments;
};
struct ReduceAborted {
  Rank rank;
  Incarnation incarnation;
  ReduceKey key;
  std::string reason;
};
struct SendVerdict {
  Rank rank;
  Incarnation incarnation;
  PushKey key;
  PushVerdict verdict;
  // Partitions whose weights of verdict.version go to this push.
  int32_t weights_partitions = 0;
  // Moving statistics of verdict.version; the first set goes to the worker.
  // May be null.
  std::shared_ptr<const StatisticsSets> statistics;
};
// A gradient of the rank was paused: the core may be asked once more.
struct ResumeGradients {
  Rank rank;
  Incarnation incarnation;
};
// The model is registered: each shard takes its partitions of version 0.
struct InstallModel {
  SharedModel model;
  CoordinatorOptions settings;
};
// Run on a pool; hand the result to Coordinator::MomentsFolded.
struct FoldMoments {
  MomentsFold job;
};
// Run on a pool; hand the result to Coordinator::StatisticsUpdated.
struct UpdateStatistics {
  StatisticsUpdate job;
};
// How far the members' moments of a step are apart, for people: StepDrift of
// this, on a pool. One entry a member.
struct MeasureDrift {
  SharedModel model;
  std::shared_ptr<const std::vector<RankMoments>> moments;
};
// Carries large objects that are no longer needed, so that they are destroyed
// outside the lock.
struct Discard {
  std::shared_ptr<const void> what;
};
struct Committed {
  CommitRecord record;
  CommitObservation observation;
};
struct PolicyChanged {
  PolicyRecord record;
  // A checkpoint of it keeps the change over a restart. Absent before
  // registration.
  std::optional<RunState> state;
};
struct Evaluated {
  EvaluationRecord record;
};
struct WriteCheckpoint {
  RunState state;
  // The run waits until it is written: call Coordinator::CheckpointStored then.
  // Such a checkpoint must not be skipped.
  bool awaited = false;
};
struct Log {
  LogLevel severity = LogLevel::kInfo;
  // The worker that it is about, if it is one.
  std::optional<WorkerProcess> worker;
  std::string text;
};
// The run is over; workers have been notified.
struct RunEnded {
  RunOutcome outcome = RunOutcome::kFinished;
  std::string reason;
  // Null if nothing was ever registered.
  SharedModel model;
  SharedVersion version;
};

}  // namespace effect

// Commands go to ShardsOf.
using Effect = std::variant<
    effect::Joined, effect::EndSession, effect::Notify, effect::StepAborted,
    effect::RegisterAnswered, effect::ReduceResult, effect::ReduceAborted,
    effect::SendVerdict, effect::ResumeGradients, effect::InstallModel,
    command::Adopt, command::Take, command::Drop, command::Prepare,
    command::Scale, command::Commit, command::Abort, command::SendWeights,
    effect::FoldMoments, effect::UpdateStatistics, effect::MeasureDrift,
    effect::Discard, effect::Committed, effect::PolicyChanged,
    effect::Evaluated, effect::WriteCheckpoint, effect::Log, effect::RunEnded>;

using Effects = std::vector<Effect>;

}  // namespace cohort
