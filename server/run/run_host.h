#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/assignment.h"
#include "common/clock.h"
#include "common/departure.h"
#include "common/evaluation_sums.h"
#include "common/float_buffer.h"
#include "common/ids.h"
#include "common/moments.h"
#include "common/mutex.h"
#include "common/periodic_task.h"
#include "common/push.h"
#include "common/timeline.h"
#include "common/worker_report.h"
#include "server/core/coordinator.h"
#include "server/core/events/effects.h"
#include "server/core/model/model_snapshot.h"
#include "server/metrics/run_figures.h"
#include "server/metrics/run_trace.h"
#include "server/metrics/shard_stats.h"
#include "server/partitions/partitions_host.h"
#include "server/partitions/partitions_link.h"
#include "server/partitions/pull_table.h"
#include "server/partitions/reserved_bytes.h"
#include "server/partitions/service_counters.h"
#include "server/run/arrived_gradients.h"
#include "server/run/model_limits.h"
#include "server/streams/stream_registry.h"
#include "server/streams/streams.h"

namespace cohort {

// Gets the events of a run, in order, from one thread at a time. Must return at
// once, because everything else waits for it.
class RunListener {
 public:
  virtual ~RunListener() = default;
  virtual void OnCommitted(const CommitRecord& record,
                           const CommitObservation& observation) = 0;
  // `state` is absent before registration.
  virtual void OnPolicyChanged(const PolicyRecord& record,
                               std::optional<RunState> state) = 0;
  virtual void OnEvaluated(const EvaluationRecord& record) = 0;
  virtual void OnLogged(const effect::Log& log) = 0;
  virtual void OnCheckpoint(RunState state) = 0;
  // The run waits until this one is on disk, or cannot be: call
  // RunHost::CheckpointStored then, from any thread. With several shards only.
  virtual void OnMilestone(RunState state) = 0;
  // `snapshot` is null if nothing was ever registered.
  virtual void OnEnded(const effect::RunEnded& ended,
                       const SharedSnapshot& snapshot) = 0;
  // An operator's request has changed something before Start. The methods above
  // report it after Start. Called by any thread.
  virtual void OnChangedBeforeStart() = 0;
  // A partition was folded and updated. Unlike the other methods, it is called
  // by any thread and out of order.
  virtual void OnFolded(absl::Duration took) = 0;
  // The drift of a synchronous step. Called like OnFolded.
  virtual void OnDrift(const std::vector<LayerDrift>& drift) = 0;
};

struct RunHostOptions {
  CoordinatorOptions coordinator;
  int32_t fold_threads = 2;
  // Memory that the process may use; 0 if unknown.
  int64_t memory_bytes = 0;
  // See ModelNeeds.
  int64_t weight_bytes_max = int64_t{16} << 30;
  // The data shards from shard 1 on, and the addresses that workers receive.
  // Must outlive the host.
  std::vector<PartitionsLink*> data_shards;
  std::vector<std::string> data_addresses;
  // What is known of all shards. Null: there is only this one. Must outlive the
  // host.
  ShardStats* shard_stats = nullptr;
  // Gives the memory for new weights. Null: it is the process's own.
  std::shared_ptr<FloatStorage> weights_memory;
  // Receives spans for folds, commits and rendezvous. May be null. Must outlive
  // the host.
  Timeline* timeline = nullptr;
  // Called when a change of settings was asked for or has taken effect, and
  // when nothing pending will, on any thread; must not block. May be null.
  std::function<void(const PolicyView&)> on_policy_moved;
  // Called with the client of a message that was refused because it names a
  // rank that is not its own, on any thread; must not block. May be null.
  std::function<void(const std::string& client)> on_denied_rank;
};

// Facts of a run that Join, registrations and status reports contain.
struct RunFacts {
  std::string run_id;
  // Number of the start of this server; rises with each.
  int64_t generation = 0;
  // Addresses of this process and of the data shards, `shards` in all.
  std::string address;
  std::vector<std::string> data_addresses;
  int32_t shards = 1;
  // Between heartbeats: two may be lost before the lease ends. Fixed, because
  // workers receive it only when they join.
  absl::Duration heartbeat_interval;
  bool ended = false;
};

struct RunHostFigures {
  ServiceFigures service;
  // Empty if there is only one.
  std::vector<ShardFigures> shards;
};

// How an operator ends the session that holds a rank.
enum class Dismissal {
  // As if its process had died.
  kEvict,
  // It leaves by itself once the step in progress is done.
  kDrain,
};

// The state machine of one run with everything that it needs in production: a
// lock, a clock, threads for heavy effects, the streams that receive effects,
// and the ways to the shards, of which the first is in this process. Events
// come in through the methods. Each method appends its effects to one outbox
// under the lock, and one thread at a time carries them out in that order,
// outside the lock. If another thread is already doing so, the method leaves
// its effects to that thread.
//
// Thread safety: safe. Methods wait only for the lock, but for State, which
// waits for a commit in progress, and Stop, which waits for folds; any of them
// may be the one that carries out the effects of others.
// Errors: those of the Coordinator's method of the same name. An exception in
//   the core or in an effect ends the process (see fault.h); one in a stream's
//   method ends that stream.
class RunHost {
 public:
  // `listener` and `clock` must outlive the host. Pass `restored` to continue
  // from a checkpoint. Effects are held back until Start.
  RunHost(const RunHostOptions& options, const RunState* restored,
          const Clock& clock, RunListener& listener);
  ~RunHost();

  // Starts carrying out effects and keeping time. `address` is that of this
  // process, as workers receive it.
  void Start(const std::string& address);
  // Ends all streams with Unavailable and admits no more.
  void CloseStreams();
  // Stops keeping time and waits for running folds. Effects are dropped from
  // then on. Call it when no method can be called any more.
  void Stop();

  // The partitions of this process.
  PartitionsHost& partitions() { return host_; }
  // Like StreamRegistry::AdmitSession; the stream is ended if no join arrives
  // in time.
  // Errors also: Unavailable: before Start, if there are data shards to wait
  //   for; see ShardStats.
  absl::StatusOr<SessionId> AdmitSession(
      const std::shared_ptr<SessionStream>& stream);
  ModelNeeds model_needs() const;
  RunFacts facts() const ABSL_LOCKS_EXCLUDED(mu_);
  // The options with the settings that are in force now.
  CoordinatorOptions options() const;

  absl::Status Join(SessionId session, const JoinRequest& request);
  void Heartbeat(SessionId session, const WorkerReport& report);
  void Leave(SessionId session, const Departure& departure);
  void SessionBroken(SessionId session);

  // The answer goes to `from`, now or later.
  absl::Status BeginRegister(const Sender& sender, const ModelLayout& layout,
                             const RunPlan& plan,
                             const std::shared_ptr<RegisterStream>& from);
  absl::Status RegisterProgress(const Sender& sender);
  void RegisterClosed(const Sender& sender);
  absl::StatusOr<RegisterAnswer> FinishRegister(
      const Sender& sender, const ModelLayout& layout, const RunPlan& plan,
      std::vector<SharedFloats> values,
      std::vector<LayerStatistics> statistics);

  // Once a message is accepted, answers go to `from`.
  absl::Status Open(const Sender& sender, const PushKey& key,
                    const PushOpening& opening,
                    const std::shared_ptr<ExchangeStream>& from);
  absl::Status Close(const Sender& sender, const PushKey& key,
                     PushClosing closing,
                     const std::shared_ptr<ExchangeStream>& from);
  // Handles the contributions one after another, up to the first that is
  // refused.
  absl::Status Reduce(const Sender& sender,
                      std::vector<MomentsMessage> contributions,
                      const std::shared_ptr<ReduceStream>& from);

  void CheckpointStored();
  absl::Status MissesState(const Sender& sender, const PushKey& key, bool lost);

  // A shard has received a gradient.
  void Arrived(int32_t shard, RemoteGradient gradient) ABSL_LOCKS_EXCLUDED(mu_);
  // It has ended a fold. Errors: InvalidArgument (the report does not fit the
  // model: the data shard is of no use).
  absl::Status Folded(int32_t shard, FoldReport report)
      ABSL_LOCKS_EXCLUDED(mu_);

  absl::StatusOr<Assignment> ReportEvaluation(const Sender& sender,
                                              Sequence sequence,
                                              const EvaluationSums& sums);

  absl::StatusOr<Assignment> ReportMoments(const Sender& sender,
                                           Sequence sequence,
                                           std::vector<CallMoments> calls);
  absl::StatusOr<CollectionAnswer> CollectStatistics(const std::string& run_id);

  // The newest version, or one that is held.
  // Errors: FailedPrecondition nothing registered; OutOfRange not held.
  absl::StatusOr<SharedVersion> Find(std::optional<Version> version) const;
  // The state at the newest version, with the weights of this process. It waits
  // until this thread or another one has carried out the commit of that
  // version, and so must not be called by RunListener.
  absl::StatusOr<RunState> State();
  StatusView Status() const;
  RunHostFigures figures();
  // Reports a message to RunHostOptions::on_denied_rank.
  void DeniedRank(const std::string& client) {
    if (options_.on_denied_rank != nullptr) options_.on_denied_rank(client);
  }

  // Returns the version at the time of the request.
  // Errors: FailedPrecondition the run is over.
  absl::StatusOr<Version> Drain(const std::string& reason);

  // Errors also: InvalidArgument: a lease too short for the heartbeat interval.
  absl::StatusOr<ChangeAnswer> Change(const ChangeRequest& request);
  PolicyView Policy() const;
  // Returns the version at the time of the request. `run_id` is the intended
  // run; empty for whatever run this is.
  absl::StatusOr<Version> Dismiss(const std::string& run_id, Rank rank,
                                  Dismissal how, const std::string& reason);

 private:
  struct Dispatcher;
  class OwnLink;

  StreamRegistry& streams() { return host_.streams(); }
  ServiceCounters& counters() { return host_.counters(); }
  void NotePolicyMoved() const ABSL_LOCKS_EXCLUDED(mu_);
  SharedModel model() const ABSL_LOCKS_EXCLUDED(mu_);
  bool ended() const ABSL_LOCKS_EXCLUDED(mu_);
  const std::string& run_id() const { return options_.coordinator.run_id; }
  int64_t generation() const {
    return options_.coordinator.first_incarnation.value();
  }
  int32_t shards() const {
    return static_cast<int32_t>(options_.data_shards.size()) + 1;
  }
  absl::Duration heartbeat_interval() const;

  // `doing` is the method's name, for the log line if `call` throws.
  template <typename Call>
  auto Handle(Call call, const char* doing = __builtin_FUNCTION())
      ABSL_LOCKS_EXCLUDED(mu_);
  // The same for a method of the core with these arguments.
  template <typename Method, typename... Args>
  auto Forward(const char* doing, Method method, Args&&... args)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The same for a message of a stream: it becomes the sender's if `call`
  // accepts it.
  template <typename T, typename Call>
  absl::Status HandleFrom(const Sender& sender, const std::shared_ptr<T>& from,
                          Call call, const char* doing = __builtin_FUNCTION());
  // Counts `status`, the answer to a message of a push, and returns it.
  absl::Status CountRefusal(absl::Status status);
  bool closing() const ABSL_LOCKS_EXCLUDED(mu_);
  // What a thread that has changed the core does once it has left the lock.
  struct Duty {
    // Before Start: the listener is notified that there are effects.
    bool early = false;
    // Effects to carry out; empty if there are none, or another thread does it.
    Effects batch = {};
  };
  Duty TakeDuty() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Carries out the effects, and those that are added until it is done.
  void Dispatch(Duty duty) ABSL_LOCKS_EXCLUDED(mu_);
  // ---- shards
  void Install(int32_t shard, const SharedModel& model,
               const SharedSnapshot& whole, const CoordinatorOptions& settings);
  template <typename Command>
  void Send(Command command);
  // `version` with the weights and slots of this process; null if it is not
  // here (yet).
  SharedSnapshot WithWeights(const SharedVersion& version) const;
  // `state` with the weights and slots of this process, which must have its
  // version.
  RunState WithWeights(RunState state) const;
  // As WithWeights, but waits until the version is here.
  // Errors: Unavailable: it does not come.
  absl::StatusOr<SharedSnapshot> AwaitWeights(const SharedVersion& version);
  // Errors: InvalidArgument.
  absl::Status CheckFold(int32_t shard, const FoldReport& report) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Names the data shards that everything waits for.
  void DescribeWaiting(StatusView& view) const;
  void NoteCommit(const command::Commit& commit);
  // Passes waiting gradients of the rank to the core; after `call`, with the
  // time, in the same critical section.
  void Offer(Rank rank) ABSL_LOCKS_EXCLUDED(mu_);
  template <typename Call>
  void OfferAfter(Rank rank, Call call) ABSL_LOCKS_EXCLUDED(mu_);
  // The same for ranks whose gradients have waited for an opening for too long.
  void OfferOverdue() ABSL_LOCKS_EXCLUDED(mu_);

  void StartFold(MomentsFold job) ABSL_LOCKS_EXCLUDED(mu_);
  void StartUpdate(StatisticsUpdate job) ABSL_LOCKS_EXCLUDED(mu_);
  void StartMeasuring(effect::MeasureDrift measure) ABSL_LOCKS_EXCLUDED(mu_);

  // Fixed after construction.
  const RunHostOptions options_;
  const Clock& clock_;
  RunListener& listener_;

  // The version that the run continues from, until Start.
  SharedModel restored_model_;
  SharedSnapshot restored_snapshot_;
  // By shard; the first is `own_link_`. Fixed after construction.
  std::shared_ptr<OwnLink> own_link_;
  std::vector<PartitionsLink*> links_;

  mutable Mutex mu_;
  Coordinator core_ ABSL_GUARDED_BY(mu_);
  Effects outbox_ ABSL_GUARDED_BY(mu_);
  ArrivedGradients arrived_ ABSL_GUARDED_BY(mu_);
  // Initial values of the model, until InstallModel is carried out.
  std::vector<SharedFloats> initial_values_ ABSL_GUARDED_BY(mu_);
  std::string address_ ABSL_GUARDED_BY(mu_);
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  // Since CloseStreams.
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  // True while a thread carries out effects.
  bool dispatching_ ABSL_GUARDED_BY(mu_) = false;
  CondVar dispatched_;

  // Last: their threads use everything above.
  PartitionsHost host_;
  std::unique_ptr<PeriodicTask> ticker_;
};

}  // namespace cohort
