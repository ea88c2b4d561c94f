#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/float_buffer.h"
#include "server/core/coordinator.h"
#include "server/core/events/effects.h"
#include "server/core/run_state.h"
#include "server/partitions/partitions.h"
#include "server/partitions/partitions_host.h"
#include "server/streams/streams.h"
#include "tests/kernels/reference/reference_backend.h"
#include "tests/sim/checker.h"
#include "tests/sim/scenario.h"

namespace cohort::sim {

// Those of the server process number `incarnation` of a run. Each restart uses
// new incarnations, and continues with the settings of its checkpoint.
CoordinatorOptions OptionsOf(const RunSpec& run, int32_t incarnation,
                             const RunState* restored);

// A server core and the shard of its process, with a checker that compares what
// they do with what they may do. `Self` derives from it, and has these
// functions:
//
//   On(e)       for every effect that this class does not carry out itself:
//               those that reach clients
//   OnTaken(ticket)         a gradient that was staged is answered
//   OnWeights(to, message)  weights for a worker
//   InstallAt(installation), SendTo(shard, command)  to a data shard of another
//               process
//   OnCheckpoint(e, pin)    with data shards, which have the other partitions;
//               `pin` makes them keep the version
//   Begin(job)  for a FoldJob, MomentsFold or StatisticsUpdate. Some time later
//               Self runs the job and passes the result to Done
template <typename Self>
class CoreHost {
 protected:
  explicit CoreHost(Checker& checker) : checker_(checker) {}

  // A new server process; whatever the earlier one had is gone.
  void StartCore(const RunSpec& run, int32_t incarnation,
                 const RunState* restored) {
    core_ = std::make_unique<Coordinator>(OptionsOf(run, incarnation, restored),
                                          restored);
    generation_ = incarnation;
    shards_ = run.coordinator.shards;
    node_.reset();
    staged_.clear();
    if (restored == nullptr) return;
    Install(0, restored->model, restored->snapshot);
  }
  // Gives a shard its partitions of `whole`.
  void Install(int32_t shard, const SharedModel& model,
               const SharedSnapshot& whole) {
    const Installation installation = InstallationOf(
        {.index = shard, .count = shards_}, model, whole, core_->options());
    if (shard != 0) return self().InstallAt(installation);
    absl::StatusOr<Partitions> node = Partitions::Install(installation);
    COHORT_CHECK(node.ok(), node.status().ToString());
    node_ = *std::move(node);
  }

  // Keeps a gradient until the core has answered. Returns its ticket.
  int64_t Stage(const ReceivedGradient& gradient) {
    staged_[next_ticket_] = {.partition = gradient.about.partition,
                             .gradient = gradient.bytes,
                             .type = gradient.about.type,
                             .absent_slices = gradient.about.absent_slices};
    return next_ticket_++;
  }
  void Refuse(int64_t ticket) { staged_.erase(ticket); }

  absl::StatusOr<RegisterAnswer> FinishRegister(
      const Sender& sender, const ModelLayout& layout, const RunPlan& plan,
      std::vector<SharedFloats> values, Instant now) {
    values_ = std::move(values);
    return Handle([&](Effects& out) {
      return core_->FinishRegister(sender, layout, plan, {}, now, out);
    });
  }

  // With the weights that are here. Not what keeps the version alive.
  std::shared_ptr<ModelSnapshot> WithWeights(const ModelVersion& version) {
    auto whole = std::make_shared<ModelSnapshot>();
    static_cast<ModelVersion&>(*whole) = version;
    const SharedSnapshot held = node_->Read(version.version);
    COHORT_CHECK(held != nullptr, "the version is not here");
    whole->weights = held->weights;
    whole->slots = held->slots;
    return whole;
  }

  // `state` with the weights that are here.
  RunState WithWeights(RunState state) {
    state.snapshot = WithWeights(*state.snapshot);
    return FittedToSettings(std::move(state));
  }

  // Calls the core with the list for its effects, hands these to the checker,
  // and carries them out.
  template <typename Call>
  auto Handle(Call call) {
    Effects out;
    const absl::Cleanup finish = [this, &out] {
      checker_.OnEffects(out, *core_);
      for (const Effect& effect : out) {
        std::visit([this](const auto& e) { this->CarryOut(e); }, effect);
      }
    };
    return call(out);
  }

  // The work of a pool, in place.
  FoldResult Fold(const FoldJob& job) {
    return RunFold(job, kernels::ReferenceBackend(), pool_);
  }
  void Done(FoldResult result, Instant now) {
    PassOn(node_->FoldDone(std::move(result)), now);
  }
  // A fold has ended, of whichever shard.
  void PassOn(FoldReport report, Instant now) {
    Handle([&](Effects& out) { core_->Folded(std::move(report), now, out); });
  }
  void Done(MomentsFold done, Instant now) {
    Handle(
        [&](Effects& out) { core_->MomentsFolded(std::move(done), now, out); });
  }
  void Done(StatisticsUpdate done, Instant now) {
    Handle([&](Effects& out) {
      core_->StatisticsUpdated(std::move(done), now, out);
    });
  }

  Checker& checker_;
  std::unique_ptr<Coordinator> core_;

 private:
  Self& self() { return static_cast<Self&>(*this); }

  void BeginAll(const std::vector<FoldJob>& folds) {
    for (const FoldJob& job : folds) {
      checker_.OnFold({.generation = generation_}, job);
      self().Begin(job);
    }
  }

  void CarryOut(const effect::InstallModel& e) {
    auto whole = std::make_shared<ModelSnapshot>();
    whole->weights = values_;
    for (int32_t i = 0; i < shards_; ++i) Install(i, e.model, whole);
  }
  void CarryOut(const effect::FoldMoments& e) { self().Begin(e.job); }
  void CarryOut(const effect::UpdateStatistics& e) { self().Begin(e.job); }
  void CarryOut(effect::WriteCheckpoint e) {
    const SharedVersion pin = e.state.snapshot->pin;
    e.state = WithWeights(std::move(e.state));
    if (shards_ > 1) return self().OnCheckpoint(e, pin);
    checker_.OnCheckpointBegun(true);
    checker_.OnCheckpointWritten(std::move(e.state));
  }
  void CarryOut(const effect::RunEnded& e) {
    if (shards_ > 1) return self().On(e);
    checker_.OnResults(e.version == nullptr ? nullptr
                                            : WithWeights(*e.version));
  }
  template <typename E>
  void CarryOut(const E& e) {
    if constexpr (std::is_constructible_v<ShardCommand, const E&>) {
      for (int32_t shard : ShardsOf(e, shards_)) {
        if (shard == 0) {
          CarryOutHere(e);
        } else {
          self().SendTo(shard, e);
        }
      }
    } else {
      self().On(e);
    }
  }

  void CarryOutHere(const command::Take& take) {
    auto staged = staged_.extract(take.ticket);
    if (take.held) {
      staged.mapped().push = take.push;
      BeginAll(*node_->Hold(std::move(staged.mapped())));
    }
    self().OnTaken(take.ticket);
  }
  template <typename Command>
  void CarryOutHere(const Command& command) {
    absl::StatusOr<Partitions::Consequences> led_to = node_->Carry(command);
    COHORT_CHECK(led_to.ok(), led_to.status().ToString());
    BeginAll(led_to->folds);
    if constexpr (std::is_same_v<Command, command::SendWeights>) {
      self().OnWeights(command, {.key = command.key,
                                 .partition = command.partition,
                                 .version = command.version,
                                 .weights = led_to->weights->weights,
                                 .change = led_to->weights->change});
    }
  }

  int32_t generation_ = 0;
  int32_t shards_ = 1;
  std::optional<Partitions> node_;
  // Of the registration that was finished last.
  std::vector<SharedFloats> values_;
  int64_t next_ticket_ = 1;
  std::map<int64_t, HeldGradient> staged_;
  FloatBufferPool pool_;
};

}  // namespace cohort::sim
