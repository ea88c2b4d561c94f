#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"
#include "common/push.h"
#include "server/core/data/commit_plan.h"
#include "server/core/data/data_shard.h"
#include "server/core/model/model_snapshot.h"
#include "server/core/optimizer/fold_job.h"
#include "server/core/requests.h"
#include "server/core/settings.h"

// The messages between shard 0, which decides, and a data shard in another
// process. They pass in order, and each is delivered once or the connection is
// over, and with it everything that the data shard holds.
namespace cohort {

// A CommitPlan for a shard that has the model and its versions.
struct ShardPlan {
  int64_t transaction = 0;
  Version base;
  std::vector<PushId> contributors;
  double learning_rate = 0;
  std::vector<double> group_rates;
  double loss_weight = 0;
  std::optional<Version> read;
  double compensation = 0;
  bool adaptive = false;
  double weight = 1;

  friend bool operator==(const ShardPlan&, const ShardPlan&) = default;
};
ShardPlan ShardPlanOf(const CommitPlan& plan);

// From shard 0.
namespace shard_command {

// The model, and a version with weights and slots of the shard's partitions.
// Slots that the settings want and that are missing start anew.
struct Install {
  ShardPlace place;
  SharedModel model;
  SharedSnapshot snapshot;
  // All of them.
  SettingValues settings;
};
// Settings that have changed between two commits.
struct Adopt {
  SettingValues changed;
};
// Answers a RemoteGradient. If `held`, the gradient is kept until it is folded
// or dropped; otherwise it is a repetition.
struct Take {
  Rank rank;
  Incarnation incarnation;
  PushId push;
  int32_t partition = 0;
  int64_t ticket = 0;
  bool held = false;
};
// Answers a RemoteGradient: its sender's stream ends with this status.
struct Refuse {
  int64_t ticket = 0;
  absl::Status status;
};
struct Drop {
  PushId push;
};
struct Prepare {
  ShardPlan plan;
};
// Makes `version` of what was prepared. Only it and `held` may still be read.
struct Commit {
  int64_t transaction = 0;
  Version version;
  std::vector<Version> held;
};
struct Abort {
  int64_t transaction = 0;
  // A new version with the weights of the one before.
  std::optional<Version> skipped;
  std::vector<Version> held;
};
// Sends one partition of a version, or what is prepared of it, to a worker.
struct SendWeights {
  Rank rank;
  Incarnation incarnation;
  PushKey key;
  int32_t partition = 0;
  Version version;
  // As the change from the version before, where there is one.
  bool takes_change = false;
};
// The first pass of a transaction has ended at all shards, so the second may
// begin. May come after the transaction's end.
struct Scale {
  int64_t transaction = 0;
  GradientScales scales;
};
// The run is over, and nothing more comes.
struct EndRun {};

}  // namespace shard_command

using ShardCommand = std::variant<
    shard_command::Install, shard_command::Adopt, shard_command::Take,
    shard_command::Refuse, shard_command::Drop, shard_command::Prepare,
    shard_command::Commit, shard_command::Abort, shard_command::SendWeights,
    shard_command::Scale, shard_command::EndRun>;

// To shard 0: a worker has sent a gradient, which waits for Take or Refuse.
struct RemoteGradient {
  Sender sender;
  PushKey key;
  // With its ticket and size, without its bytes.
  GradientMessage message;
};

}  // namespace cohort
