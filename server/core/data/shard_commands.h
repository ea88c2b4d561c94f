#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/ids.h"
#include "server/core/data/shard_messages.h"
#include "server/core/effects.h"
#include "server/core/model/model_snapshot.h"
#include "server/core/settings.h"

namespace cohort {

// What shard 0 tells the data shards: translates the core's effects into
// commands. Pass every effect, in order, before it is carried out, and send its
// commands afterwards.
//
// Thread safety: none.
class ShardCommands {
 public:
  struct Command {
    // From 1 on.
    int32_t shard = 0;
    ShardCommand command;
  };
  // Coordinator::HeldVersions.
  using HeldVersions = absl::FunctionRef<std::vector<Version>()>;

  // `shards`: including shard 0.
  explicit ShardCommands(int32_t shards) : shards_(shards) {}

  // The run continues from this version, which has all partitions.
  std::vector<Command> Install(const SharedModel& model,
                               const SharedSnapshot& snapshot,
                               const SettingValues& settings);
  // Empty for most effects, and always with one shard. `held` is called at most
  // once.
  std::vector<Command> Of(const Effect& effect, HeldVersions held);
  // True for effects that the data shards carry out in place of shard 0.
  bool IsElsewhere(const Effect& effect) const;

 private:
  struct Translator;

  const int32_t shards_;
  // The data shards have a model. What changes before that is part of it.
  bool installed_ = false;
};

}  // namespace cohort
