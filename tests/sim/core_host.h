#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "common/clock.h"
#include "common/float_buffer.h"
#include "kernels/backend.h"
#include "server/core/coordinator.h"
#include "server/core/data/data_shard.h"
#include "server/core/data/shard_commands.h"
#include "server/core/effects.h"
#include "tests/kernels/reference/reference_backend.h"
#include "tests/sim/checker.h"
#include "tests/sim/scenario.h"

namespace cohort::sim {

// Those of the server process number `incarnation` of a run. Each restart uses
// new incarnations, and continues with the settings of its checkpoint.
CoordinatorOptions OptionsOf(const RunSpec& run, int32_t incarnation,
                             const RunState* restored);

// A server core and its data shard, with a checker that compares what they do
// with what they may do. `Self` derives from it, and has these functions:
//
//   On(e)       for every effect that this class does not carry out itself:
//               those that reach clients
//   SendTo(shard, command)  to a data shard of another process
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
    const int32_t shards = run.coordinator.shards;
    data_ = std::make_unique<DataShard>(ShardPlace{.count = shards});
    commands_ = std::make_unique<ShardCommands>(shards);
    generation_ = incarnation;
  }
  void SendAll(std::vector<ShardCommands::Command> commands) {
    for (ShardCommands::Command& to : commands) {
      self().SendTo(to.shard, std::move(to.command));
    }
  }

  // Calls the core with the list for its effects, hands these to the checker,
  // and carries them out.
  template <typename Call>
  auto Handle(Call call) {
    Effects out;
    const auto finish = [this, &out] {
      checker_.OnEffects(out, *core_);
      for (const Effect& effect : out) {
        std::vector<ShardCommands::Command> commands =
            commands_->Of(effect, [this] { return core_->HeldVersions(); });
        if (!commands_->IsElsewhere(effect)) {
          std::visit([this](const auto& e) { this->CarryOut(e); }, effect);
        }
        SendAll(std::move(commands));
      }
    };
    if constexpr (std::is_void_v<decltype(call(out))>) {
      call(out);
      finish();
    } else {
      auto answer = call(out);
      finish();
      return answer;
    }
  }

  // The work of a pool, in place.
  FoldResult Fold(const FoldJob& job) {
    return RunFold(job, kernels::ReferenceBackend(), pool_);
  }
  void Done(FoldResult result, Instant now) {
    PassOn(data_->FoldDone(std::move(result)), now);
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
  std::unique_ptr<ShardCommands> commands_;

 private:
  Self& self() { return static_cast<Self&>(*this); }

  void BeginAll(const std::vector<FoldJob>& folds) {
    for (const FoldJob& job : folds) {
      checker_.OnFold({.generation = generation_}, job);
      self().Begin(job);
    }
  }

  void CarryOut(const effect::HoldGradient& e) {
    BeginAll(data_->Hold(e.gradient));
  }
  void CarryOut(const effect::DropGradients& e) { data_->Drop(e.push); }
  void CarryOut(const effect::Prepare& e) { BeginAll(data_->Prepare(e.plan)); }
  void CarryOut(const effect::Scale& e) { BeginAll(data_->Scale(e.scales)); }
  void CarryOut(const effect::Commit& e) { data_->Commit(e.transaction); }
  void CarryOut(const effect::Abort& e) { data_->Abort(e.transaction); }
  void CarryOut(const effect::FoldMoments& e) { self().Begin(e.job); }
  void CarryOut(const effect::UpdateStatistics& e) { self().Begin(e.job); }
  template <typename Other>
  void CarryOut(const Other& e) {
    self().On(e);
  }

  int32_t generation_ = 0;
  std::unique_ptr<DataShard> data_;
  FloatBufferPool pool_;
};

}  // namespace cohort::sim
