#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/assignment.h"
#include "common/ids.h"
#include "common/moments.h"
#include "common/push.h"
#include "server/core/coordinator.h"
#include "server/core/events/effects.h"
#include "tests/sim/network.h"
#include "tests/sim/scheduler.h"
#include "tests/sim/shard_network.h"
#include "tests/sim/sim_model.h"
#include "tests/sim/sim_server.h"

namespace cohort::sim {

// One worker process: client and trainer as a state machine. Behaves like
// worker/client: if any stream breaks, all are closed, and it joins again as
// the same incarnation, or as a new one if that has ended.
class SimWorker {
 public:
  // `process`: how many processes had this rank before.
  SimWorker(World world, Rank rank, int64_t process)
      : world_(world),
        rank_(rank),
        own_{.rank = rank,
             .process = process,
             .batch_size =
                 world.scenario.run
                     .batch_sizes[static_cast<size_t>(rank.value())]} {}
  SimWorker(const SimWorker&) = delete;
  SimWorker& operator=(const SimWorker&) = delete;

  Rank rank() const { return rank_; }
  bool alive() const { return !dead_; }
  bool frozen() const { return frozen_; }
  bool hung() const { return hung_; }
  bool finished() const { return finished_; }
  bool awaits_verdict() const {
    return step_ != nullptr && step_->phase == Phase::kAwaitingVerdict;
  }
  // Null while it is not connected.
  const SharedConnection& connection() const { return connection_; }
  // Batches that may have counted, and were not used again for that reason.
  int64_t batches_given_up() const { return batches_given_up_; }
  // Pushes that it learned of only when it asked again.
  int64_t late_verdicts() const { return late_verdicts_; }

  void Start() { Connect(); }
  // Runs `event` in this process: never if it is dead, later if it is frozen.
  void Do(Scheduler::Event event);

  // ---- faults of a process
  void Kill();
  void Vanish();
  void Leave();
  void Freeze() { frozen_ = true; }
  void Thaw();
  void Hang();
  void Miscount() { miscounts_ = true; }

  // ---- messages from the network
  void OnBroken();
  void OnRefused(const absl::Status& status);
  void OnJoined(Rank rank, Incarnation incarnation);
  void OnRegisterAnswered(const RegisterAnswer& answer);
  void OnAssignment(const Assignment& assignment);
  void OnStepAborted(Version step, Attempt attempt);
  void OnReduced(const ReduceKey& key, const Moments& moments);
  void OnReduceAborted(const ReduceKey& key);
  void OnWeights(const WeightsMessage& weights);
  void OnVerdict(const effect::SendVerdict& verdict);

 private:
  enum class Phase { kComputing, kReducing, kAwaitingUpdate, kAwaitingVerdict };
  // How what it reports of its batch-norm calls differs from what it does.
  enum class Miscounts {
    kNothing,
    // It reports one call more than it made, or one fewer.
    kOneMore,
    kOneFewer,
    // It takes part in no rendezvous, and reports that it did.
    kNoRendezvous,
  };

  // A training assignment in progress.
  struct Step {
    Assignment assignment;
    PushKey key;
    StepInput input;
    Phase phase = Phase::kComputing;
    Miscounts miscounts = Miscounts::kNothing;
    // Set when the step became void; acted on where the client would notice.
    bool aborted = false;
    ReduceKey reduce;
    // Indices into CallsOf. What follows is by position in it.
    std::vector<size_t> calls;
    // The moments of this batch, and the combined ones.
    std::vector<Moments> local;
    std::vector<Moments> forward;
    std::vector<std::optional<Moments>> backward;
    // The sums of a pass of the training program.
    std::vector<std::optional<Moments>> passes;
    // Calls whose backward pass is not done yet, the last one first.
    size_t backward_left = 0;
    // Trainable partitions whose gradient is not sent yet, in random order.
    std::vector<int32_t> unsent;
    PushOpening opening;
    std::vector<ReceivedGradient> sent;
    PushClosing closing;
    // After this step.
    FrontEndState state;
    std::vector<std::optional<WeightsMessage>> received;
    std::optional<effect::SendVerdict> verdict;
  };

  // A push of own data that was closed, and whose verdict was lost with the
  // connection. Its batch must not be used before it is known whether the push
  // counts.
  struct Unanswered {
    PushKey key;
    PushClosing closing;
    int32_t server_incarnation = 0;
    // The closing was sent again on the present connection.
    bool repeated = false;
  };

  void After(absl::Duration delay, Scheduler::Event event);
  void Connect();
  void Close();
  void Beat();
  void Register();
  void OnRegistered();
  Sender Identity() const;
  const ModelLayout& layout() const { return world_.scenario.run.layout; }

  void Offer(const Assignment& assignment);
  bool StepEnded(const Assignment& assignment) const;
  // Takes the next assignment, if there is one.
  void Proceed();
  // Gives up the current assignment; the next one will come.
  void Abandon();

  // ---- own data
  bool HasOwnData() const { return world_.scenario.run.extras.own_data; }
  void NoteUnanswered();
  // Sends an unanswered closing again before `next`. Returns false if the
  // verdict has to be awaited.
  bool SettleUnanswered(const Assignment& next);
  void TakeLateVerdict(const effect::SendVerdict& verdict);
  // The batch of `push` counts if it was applied, and is used again otherwise.
  void SettleBatch(const PushVerdict& verdict);
  void GiveUpBatch();

  // ---- reading
  using MaybeSnapshot = ShardNetwork::MaybeSnapshot;
  using OnRead = std::function<void(SimWorker&, MaybeSnapshot)>;
  struct Gathered;

  // Reads a version, or the newest, from all shards.
  void Read(std::optional<Version> version, OnRead done);
  void Gather(Gathered& gathered, const MaybeSnapshot& part);

  // Uses a snapshot that was read.
  using WithSnapshot = std::function<void(SimWorker&, const ModelSnapshot&)>;

  // Reads the version that the assignment pins, and continues after a while.
  void ReadPinned(const Assignment& assignment, WithSnapshot then);
  void Evaluate(const Assignment& assignment);
  void Report(const Assignment& assignment);
  void Collect(const Assignment& assignment);
  void ReportMoments(const Assignment& assignment,
                     const std::vector<SharedFloats>& weights);
  void Train(const Assignment& assignment);
  // If its workers want them, a step of all has the newest.
  void CheckScore(const Assignment& assignment);
  void Pull(const Assignment& assignment, std::optional<Version> version);
  void Compute(const Assignment& assignment);
  void Forward();
  void Contribute(ReducePhase phase, const std::vector<int32_t>& path,
                  const Moments& moments);
  void OpenPush();
  void Backward();
  // Sends gradients whose batch-norm call is done; `all` of them or some.
  void SendGradients(bool all);
  void SendGradient(int32_t partition);
  // To the shard that owns the partition.
  void Send(const SharedConnection& connection, const Sender& sender,
            const PushKey& key, const ReceivedGradient& message);
  void CheckChange(const WeightsMessage& weights);
  bool MeetsOthers() const {
    return step_->assignment.global_normalization &&
           step_->miscounts != Miscounts::kNoRendezvous;
  }
  // Begins the next update once the weights of this one are here.
  void EndUpdateIfComplete();
  void RepeatGradients();
  void ClosePush();
  void CloseLocalSteps();
  void MiscountClosing();
  void RepeatPush();
  void FinishIfComplete();

  World world_;
  const Rank rank_;
  bool dead_ = false;
  bool frozen_ = false;
  bool hung_ = false;
  // It has asked for the state that it lacked, if it did.
  bool has_state_ = false;
  bool finished_ = false;
  bool miscounts_ = false;
  std::vector<Scheduler::Event> deferred_;

  SharedConnection connection_;
  bool joined_ = false;
  Incarnation incarnation_;
  Incarnation registered_;
  std::vector<Partition> partitions_;

  // Incremented whenever planned events become void.
  int64_t task_ = 0;
  bool busy_ = false;
  std::optional<Assignment> work_;
  bool taken_ = false;
  std::optional<std::pair<Version, Attempt>> ended_step_;
  std::unique_ptr<Step> step_;
  // The newest weights that it has, and the state that belongs to them.
  Version version_;
  std::vector<SharedFloats> weights_;
  FrontEndState state_;

  const OwnStream own_;
  // The batch that is used until it counts.
  int64_t batch_ = 0;
  int64_t batches_given_up_ = 0;
  int64_t late_verdicts_ = 0;
  std::optional<Unanswered> unanswered_;
};

}  // namespace cohort::sim
