#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"
#include "common/push.h"
#include "server/core/model/shard_place.h"
#include "server/core/optimizer/fold_report.h"
#include "server/core/settings/settings.h"

// Commands of the core to the shards, which have the gradients and the weights.
// A command is a call to the shard of the first server, and a message to those
// in other processes (rpc/data_messages.h). Commands arrive in order, and each
// is carried out once; otherwise the connection is over, and the data shard
// discards everything.
namespace cohort {

// Names the gradients of one push.
struct PushId {
  Rank rank;
  PushKey key;

  friend auto operator<=>(const PushId&, const PushId&) = default;
};

// One commit: whose gradients go into it, and how. Settings are not part of it:
// they are those that were adopted before.
struct CommitPlan {
  // Distinguishes this one from those that were given up. Rises.
  int64_t transaction = 0;
  // The version that is changed: the newest.
  Version base;
  // In rank order.
  std::vector<PushId> contributors;
  double learning_rate = 0;
  // Where the workers send them, in place of it and of
  // ParameterSpec::rate_multiplier: by rate group.
  std::vector<double> group_rates;
  // Numbers of the optimizer that the workers have changed.
  std::vector<GroupNumber> numbers;
  // Sum of the contributors' PushOpening::GradientWeight. 0: there was nothing
  // to learn from, and weights and slots stay as they are, as where no
  // contributor has a gradient.
  double loss_weight = 0;
  // Delay compensation with the weights of this version; absent: none.
  std::optional<Version> read;
  double compensation = 0;
  bool adaptive = false;
  // In (0, 1]: damps the mean gradient, after compensation and clipping. The
  // gradient and not the rate: under momentum a gradient acts through the
  // velocity for many commits, each with its rate, and what it does
  // in all is damped by exactly this.
  double weight = 1;
  // Above 0: it changes what the open transaction, of the update before, has
  // prepared, and takes its place. See PushOpening.
  int32_t update = 0;
  bool continues = false;

  friend bool operator==(const CommitPlan&, const CommitPlan&) = default;
};

namespace command {

// Settings that have changed between two commits.
struct Adopt {
  SettingValues changed;
};
// The gradient of this ticket is accepted. If `held`, it is kept until it is
// folded or dropped; otherwise it is a repetition.
struct Take {
  Rank rank;
  Incarnation incarnation;
  PushId push;
  int32_t partition = 0;
  int64_t ticket = 0;
  bool held = false;
};
// It is not: its sender's stream ends with this status.
struct Refuse {
  int64_t ticket = 0;
  absl::Status status;
};
// The gradients of a push go into nothing.
struct Drop {
  PushId push;
};
// Folds what the plan names, as soon as it is there.
struct Prepare {
  CommitPlan plan;
};
// A pass that gives norms has ended at all shards, so the next may begin.
struct Scale {
  int64_t transaction = 0;
  GradientScales scales;
};
// Makes `version` of what was prepared. Only it and `held` may still be read.
struct Commit {
  int64_t transaction = 0;
  Version version;
  std::vector<Version> held;
};
struct Abort {
  int64_t transaction = 0;
  // There is a new version all the same, with the weights of the one before.
  std::optional<Version> skipped;
  std::vector<Version> held;
};
// Sends one partition of a version, or what is prepared of it, to a worker. It
// is tentative until the verdict of `key`.
struct SendWeights {
  Rank rank;
  Incarnation incarnation;
  PushKey key;
  int32_t partition = 0;
  Version version;
  // As the change from the version before, which the rank holds, where there is
  // one.
  bool takes_change = false;
};
// The run is over, and nothing more comes.
struct EndRun {};

}  // namespace command

using ShardCommand =
    std::variant<command::Adopt, command::Take, command::Refuse, command::Drop,
                 command::Prepare, command::Scale, command::Commit,
                 command::Abort, command::SendWeights, command::EndRun>;

// The shards that `command` is for: all, or those that have what it names.
template <typename Command>
std::vector<int32_t> ShardsOf(const Command& command, int32_t shards) {
  if constexpr (requires { command.partition; }) {
    return {ShardPlace::OwnerOf(command.partition, shards)};
  } else {
    std::vector<int32_t> all(static_cast<size_t>(shards));
    for (int32_t i = 0; i < shards; ++i) all[static_cast<size_t>(i)] = i;
    return all;
  }
}

}  // namespace cohort
