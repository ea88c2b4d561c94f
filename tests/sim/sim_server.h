#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ids.h"
#include "server/core/coordinator.h"
#include "server/core/model/commands.h"
#include "server/main/lifecycle.h"
#include "server/partitions/shard_connection.h"
#include "server/run/arrived_gradients.h"
#include "tests/sim/checker.h"
#include "tests/sim/core_host.h"
#include "tests/sim/network.h"
#include "tests/sim/scheduler.h"
#include "tests/sim/shard_network.h"

namespace cohort::sim {

// State shared by the processes of a simulation.
struct World {
  Scheduler& scheduler;
  SplitMix64& random;
  Network& network;
  ShardNetwork& shards;
  Checker& checker;
  const Scenario& scenario;
};

// One server process: carries out effects as the service does, over a simulated
// network.
class SimServer : private CoreHost<SimServer> {
 public:
  struct Reactions {
    // It lets workers in.
    std::function<void()> on_started;
    // It does no more for workers.
    std::function<void()> on_closed;
    // It has stopped. If `continues`, another process continues the run at
    // once.
    std::function<void(bool continues)> on_stopped;
    std::function<void(Moment)> on_moment;
  };

  SimServer(World world, int32_t incarnation, const RunState* restored,
            Reactions reactions);
  // Attaches the data shards, if there are any, and then starts.
  void Start();

  Coordinator& core() { return *core_; }
  bool is_serving() const { return started_ && !stopping_; }
  // That of the checkpoint that was written for a leaving data shard, or as it
  // stopped.
  const std::optional<Version>& saved() const { return saved_; }
  int32_t incarnation() const { return incarnation_; }
  // True if it has joined and the server has not noticed an end.
  bool HasSession(const Connection& connection) const;

  absl::StatusOr<SharedSnapshot> Read(std::optional<Version> version);
  void Join(const SharedConnection& connection, const JoinRequest& request);
  void Change(const SettingValues& values);
  void Heartbeat(const SharedConnection& connection);
  void Leave(const SharedConnection& connection);
  void SessionBroken(const SharedConnection& connection);

  void BeginRegister(const SharedConnection& connection, const Sender& sender);
  absl::StatusOr<RegisterAnswer> FinishRegister(
      const Sender& sender, std::vector<SharedFloats> values);

  void Open(const SharedConnection& connection, const Sender& sender,
            const PushKey& key, const PushOpening& opening);
  void Gradient(const SharedConnection& connection, const Sender& sender,
                const PushKey& key, const ReceivedGradient& message);
  void Close(const SharedConnection& connection, const Sender& sender,
             const PushKey& key, const PushClosing& closing);
  void Reduce(const SharedConnection& connection, const Sender& sender,
              const ReduceKey& key, const Moments& moments);
  void MissesState(const Sender& sender, const PushKey& key);
  absl::StatusOr<Assignment> ReportMoments(const Sender& sender,
                                           Sequence sequence,
                                           std::vector<CallMoments> calls);
  absl::StatusOr<Assignment> Report(const Sender& sender, Sequence sequence,
                                    const EvaluationSums& sums);

  void Tick();
  // With data shards only.
  void RequestStop();

  // ---- data shards
  void OnAttached(const SharedLink& link);
  void OnLeaving(const SharedLink& link);
  void OnLinkEnd(const SharedLink& link);
  void Arrived(int32_t shard, RemoteGradient gradient);
  void Folded(FoldReport report);

 private:
  friend CoreHost<SimServer>;
  using Message = absl::AnyInvocable<void(SimServer&)>;
  // The data stream that receives a rank's effects.
  struct Place {
    Incarnation incarnation;
    SharedConnection connection;
  };
  using Places = std::map<Rank, Place>;

  // True if it was refused because the cohort is smaller now.
  bool IsSurplus(const JoinRequest& request, const absl::Status& status) const;
  bool LeavesRoom(const SettingValues& values) const;
  void On(const effect::Joined& e);
  void On(const effect::EndSession& e);
  void On(const effect::Notify& e);
  void On(const effect::StepAborted& e);
  void On(const effect::RegisterAnswered& e);
  void On(const effect::ReduceResult& e);
  void On(const effect::ReduceAborted& e);
  void On(const effect::SendVerdict& e);
  void On(const effect::ResumeGradients& e);
  void OnCheckpoint(const effect::WriteCheckpoint& e, const SharedVersion& pin);
  void On(const effect::RunEnded& e);
  template <typename Other>
  void On(const Other&) {}
  // The pool takes a while for each job.
  void Begin(const FoldJob& job) { DoneLater(Fold(job)); }
  void Begin(const MomentsFold& job) { DoneLater(RunMomentsFold(job)); }
  void Begin(const StatisticsUpdate& job) {
    DoneLater(RunStatisticsUpdate(job));
  }
  template <typename Result>
  void DoneLater(Result done);

  SharedConnection Find(const Places& places, Rank rank,
                        Incarnation incarnation) const;
  Places& PlacesOf(StreamKind kind);
  // To whichever is connected; to nothing if none is.
  void ToRank(StreamKind kind, Rank rank, Incarnation incarnation,
              Network::WorkerEvent event);
  void ToSession(SessionId session, Network::WorkerEvent event);
  void OnTaken(int64_t ticket);
  void OnWeights(const command::SendWeights& to, const WeightsMessage& message);
  // Handles the answer to a data message as the service does.
  void Accept(const absl::Status& status, const SharedConnection& connection,
              StreamKind kind, const Sender& sender);
  // True if `message` waits because its stream is paused.
  bool IsHeld(const SharedConnection& connection, Message message);
  void Resume(const SharedConnection& connection);
  void EndData(StreamKind kind, Rank rank, Incarnation below);

  // ---- data shards; see sim_server_shards.cc
  using OnWhole = std::function<void(SimServer&, ShardNetwork::MaybeSnapshot)>;

  // A data shard of this process.
  struct DataShard {
    // The link of the newest attempt to connect; null: it was not there.
    SharedLink link;
    ShardConnection connection;
  };
  // A checkpoint, with what keeps its version alive at the data shards.
  struct Write {
    RunState state;
    SharedVersion keep;
    // `whole` is an error if a data shard is gone.
    std::function<void(SimServer&, const absl::StatusOr<RunState>& whole)> done;
  };

  bool IsShared() const { return world_.shards.shards() > 1; }
  DataShard& At(int32_t shard) {
    return data_shards_[static_cast<size_t>(shard) - 1];
  }
  void Attach(int32_t shard);
  void Begin();
  // The main thread does what is to be done next, unless it is at work.
  void Proceed();
  void StoreMilestone();
  void SaveForLeaving();
  void Stop();
  void WriteEnding();
  void Stopped();
  // Writes checkpoints one after the other.
  void Save(Write write);
  void WriteNext();
  void InstallAt(const Installation& installation);
  void SendTo(int32_t shard, const ShardCommand& command);
  // Passes gradients that wait for the rank's opening, or for room, to the
  // core.
  void Offer(Rank rank);
  // Adds the partitions of the data shards. `keep` keeps the version alive
  // until then.
  void Complete(std::shared_ptr<ModelSnapshot> whole, SharedVersion keep,
                OnWhole done);
  void Fetch(const std::shared_ptr<ModelSnapshot>& whole, int32_t shard,
             const SharedVersion& keep, const OnWhole& done);
  void EndFetch(int64_t number, ShardNetwork::MaybeSnapshot part);

  World world_;
  const int32_t incarnation_;
  const Reactions reactions_;
  ServerLifecycle lifecycle_;
  // By shard, from 1 on.
  std::vector<DataShard> data_shards_;
  int32_t attached_ = 0;
  ArrivedGradients arrived_;
  // Gradients of this process's shard that were not answered yet, by ticket.
  struct Waiting {
    SharedConnection connection;
    Sender sender;
  };
  std::map<int64_t, Waiting> waiting_;
  // What the data shards begin with. Null: a worker's model.
  SharedModel restored_model_;
  SharedSnapshot restored_snapshot_;
  bool started_ = false;
  bool stopping_ = false;
  // The main thread writes something.
  bool busy_ = false;
  std::optional<Write> milestone_;
  // The first one is in progress.
  std::deque<Write> writes_;
  // As DataShards::KeepWhole.
  SharedSnapshot whole_;
  // Fetches in progress, by number. They end with the connection to their data
  // shard.
  struct PartFetch {
    int32_t shard = 0;
    std::function<void(ShardNetwork::MaybeSnapshot)> done;
  };
  int64_t next_fetch_ = 1;
  std::map<int64_t, PartFetch> fetches_;
  // The last version of a run that is over.
  SharedVersion last_;
  std::optional<Version> saved_;
  std::map<SessionId, SharedConnection> sessions_;
  Places registers_;
  Places exchanges_;
  Places reduces_;
  // By connection number: messages of its exchange stream since a gradient that
  // was not answered yet.
  std::map<int64_t, std::deque<Message>> held_;
};

}  // namespace cohort::sim
