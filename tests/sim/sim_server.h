#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ids.h"
#include "server/core/coordinator.h"
#include "server/core/model/commands.h"
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
    // A data shard is lost, and with it the rest of this process's life.
    std::function<void()> on_shard_lost;
  };

  SimServer(World world, int32_t incarnation, const RunState* restored,
            Reactions reactions);
  // Attaches the data shards, if there are any, and then starts.
  void Start();

  Coordinator& core() { return *core_; }
  bool started() const { return started_; }
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
  absl::StatusOr<Assignment> ReportMoments(const Sender& sender,
                                           Sequence sequence,
                                           std::vector<CallMoments> calls);
  absl::StatusOr<Assignment> Report(const Sender& sender, Sequence sequence,
                                    const EvaluationSums& sums);

  void Tick();

  // ---- data shards
  void OnAttached(const SharedLink& link);
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
  void OnTaken(int64_t ticket);
  void OnWeights(const command::SendWeights& to, const WeightsMessage& message);
  // Handles the answer to a data message as the service does.
  void Accept(const absl::Status& status, const SharedConnection& connection,
              StreamKind kind, const Sender& sender);
  // True if `message` waits because its stream is paused.
  bool IsHeld(const SharedConnection& connection, Message message);
  void Resume(const SharedConnection& connection);
  void EndData(Places& places, StreamKind kind, Rank rank, Incarnation below);

  // ---- data shards; see sim_server_shards.cc
  using OnWhole = std::function<void(SimServer&, ShardNetwork::MaybeSnapshot)>;

  bool IsShared() const { return world_.shards.shards() > 1; }
  void AttachNext();
  void Begin();
  void InstallAt(const Installation& installation);
  void SendTo(int32_t shard, const ShardCommand& command);
  // Passes gradients that wait for the rank's opening, or for room, to the
  // core.
  void Offer(Rank rank);
  // Adds the partitions of the data shards from `shard` on. `keep` keeps the
  // version alive until then.
  void Complete(std::shared_ptr<ModelSnapshot> whole, int32_t shard,
                SharedVersion keep, OnWhole done);
  // `write` has all partitions and is on disk.
  void OnWritten(effect::WriteCheckpoint write);

  World world_;
  const int32_t incarnation_;
  const Reactions reactions_;
  // By shard, from 1 on. Until it has started, the last one is not attached.
  std::vector<SharedLink> links_;
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
  bool shard_lost_ = false;
  bool writes_checkpoint_ = false;
  // Is written after that one.
  std::optional<std::pair<effect::WriteCheckpoint, SharedVersion>> awaited_;
  std::map<SessionId, SharedConnection> sessions_;
  Places registers_;
  Places exchanges_;
  Places reduces_;
  // By connection number: messages of its exchange stream since a gradient that
  // was not answered yet.
  std::map<int64_t, std::deque<Message>> held_;
};

}  // namespace cohort::sim
