#include "server/core/data/shard_commands.h"

#include <memory>
#include <utility>
#include <variant>

#include "server/core/data/shard_node.h"
#include "server/core/data/shard_place.h"

namespace cohort {

// Appends the commands that one effect means.
struct ShardCommands::Translator {
  ShardCommands& to;
  HeldVersions held;
  std::vector<Command>& commands;

  void Tell(int32_t shard, ShardCommand command) {
    if (shard == 0) return;
    commands.push_back({.shard = shard, .command = std::move(command)});
  }
  void TellAll(const ShardCommand& command) {
    for (int32_t shard = 1; shard < to.shards_; ++shard) Tell(shard, command);
  }
  void TellOwner(int32_t partition, ShardCommand command) {
    Tell(ShardPlace::OwnerOf(partition, to.shards_), std::move(command));
  }

  void operator()(const effect::InstallModel& install) {
    commands = to.Install(install.model, install.snapshot, install.settings);
  }
  void operator()(const effect::PolicyChanged& changed) {
    if (!to.installed_) return;
    TellAll(shard_command::Adopt{.changed = changed.record.changed});
  }
  void operator()(const effect::GradientTaken& taken) {
    TellOwner(taken.partition,
              shard_command::Take{.rank = taken.rank,
                                  .incarnation = taken.incarnation,
                                  .push = taken.push,
                                  .partition = taken.partition,
                                  .ticket = taken.ticket,
                                  .held = taken.held});
  }
  void operator()(const effect::DropGradients& drop) {
    TellAll(shard_command::Drop{.push = drop.push});
  }
  void operator()(const effect::Prepare& prepare) {
    TellAll(shard_command::Prepare{.plan = ShardPlanOf(prepare.plan)});
  }
  void operator()(const effect::Scale& scale) {
    TellAll(shard_command::Scale{.transaction = scale.transaction,
                                 .scales = scale.scales});
  }
  void operator()(const effect::Commit& commit) {
    TellAll(shard_command::Commit{.transaction = commit.transaction,
                                  .version = commit.version,
                                  .held = held()});
  }
  void operator()(const effect::Abort& abort) {
    TellAll(shard_command::Abort{.transaction = abort.transaction,
                                 .skipped = abort.skipped,
                                 .held = held()});
  }
  void operator()(const effect::SendWeights& weights) {
    TellOwner(weights.partition,
              shard_command::SendWeights{.rank = weights.rank,
                                         .incarnation = weights.incarnation,
                                         .key = weights.key,
                                         .partition = weights.partition,
                                         .version = weights.version,
                                         .takes_change = weights.takes_change});
  }
  template <typename Other>
  void operator()(const Other&) {}
};

std::vector<ShardCommands::Command> ShardCommands::Install(
    const SharedModel& model, const SharedSnapshot& snapshot,
    const SettingValues& settings) {
  std::vector<Command> commands;
  for (int32_t i = 1; i < shards_; ++i) {
    const ShardPlace place{.index = i, .count = shards_};
    SharedSnapshot part = PartOf(snapshot, place);
    if (part->slots.empty()) {
      auto fitted = std::make_shared<ModelSnapshot>(*part);
      fitted->slots.resize(part->weights.size());
      part = std::move(fitted);
    }
    commands.push_back(
        {.shard = i,
         .command = shard_command::Install{.place = place,
                                           .model = model,
                                           .snapshot = std::move(part),
                                           .settings = settings}});
  }
  installed_ = true;
  return commands;
}

std::vector<ShardCommands::Command> ShardCommands::Of(const Effect& effect,
                                                      HeldVersions held) {
  std::vector<Command> commands;
  if (shards_ == 1) return commands;
  std::visit(Translator{.to = *this, .held = held, .commands = commands},
             effect);
  return commands;
}

bool ShardCommands::IsElsewhere(const Effect& effect) const {
  if (const auto* weights = std::get_if<effect::SendWeights>(&effect)) {
    return ShardPlace::OwnerOf(weights->partition, shards_) != 0;
  }
  // GradientTaken has told the shard that has it.
  const auto* hold = std::get_if<effect::HoldGradient>(&effect);
  return hold != nullptr && hold->gradient.ticket != 0;
}

}  // namespace cohort
