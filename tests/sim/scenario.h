#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "common/model_layout.h"
#include "common/permutation.h"
#include "server/core/settings/options.h"
#include "server/core/settings/settings.h"

namespace cohort::sim {

// Which front-end states the workers send in their closings.
enum class FrontEndStates {
  kNone,
  kAlways,
  // In some steps the state does not change, and is left out.
  kSometimes,
};

// What a run may have besides the combinations of MakeRunSpec.
struct RunExtras {
  // Each process has a separate stream of batches. A run of own data always
  // has a limit of steps.
  bool own_data = false;
  // The run ends before its epochs do, unless pushes are dropped.
  bool few_steps = false;
  FrontEndStates states = FrontEndStates::kNone;
  // The server keeps moving averages.
  bool averages = false;
  // A model that four shards can share.
  bool wide = false;
  // Some elements are frozen.
  bool masked = false;
  // By norms over all shards: gradients are clipped, rates are adapted by this
  // optimizer. kAuto: by none.
  bool clipped = false;
  OptimizerKind adapted = OptimizerKind::kAuto;
  // Ranks leave out layers, and the order of the calls changes with the step.
  bool skips = false;
  // Some steps have several updates.
  bool updates = false;
  // Shares differ from the batch sizes, where the policy allows it.
  bool shares = false;
  // Pushes are made of local steps, where the policy allows it.
  bool local_steps = false;
  // Workers want the score of an epoch before they train the next one.
  bool scores = false;

  friend auto operator<=>(const RunExtras&, const RunExtras&) = default;
};

// Everything that decides the result of a run.
struct RunSpec {
  int32_t number = 0;
  RunExtras extras;
  CoordinatorOptions coordinator;
  ModelLayout layout;
  RunPlan plan;
  // By rank, including the ranks of a larger cohort.
  std::vector<int64_t> batch_sizes;

  // The most samples in a batch of `rank`.
  int64_t BatchMax(Rank rank) const {
    return (extras.shares ? 2 : 1) *
           batch_sizes[static_cast<size_t>(rank.value())];
  }
};

// The first that server process number `start` gives out.
inline Incarnation FirstIncarnation(int32_t start) {
  return Incarnation(int64_t{1000} * start);
}

// The largest size that a change gives a cohort.
inline constexpr int32_t kRanksMax = 7;
// The largest size of an elastic cohort.
inline constexpr int32_t kElasticRanksMax = 64;

inline constexpr int32_t kPolicyCount = 8;
inline constexpr int32_t kRunSpecCount = 5 * kPolicyCount * 2 * 3 * 2;

// `number` in [0, kRunSpecCount): all combinations of 1 to 5 workers, policy,
// reaction to losses, optimizer, and sizes that leave short ranges.
RunSpec MakeRunSpec(int32_t number, const RunExtras& extras = {});

enum class FaultKind {
  kBreakSession,
  kBreakExchange,
  kBreakReduce,
  // The process is gone, and its machine closes the streams.
  kKill,
  // The machine is gone: its streams are not closed.
  kVanish,
  // The process stops, and continues later.
  kFreeze,
  // The process does nothing any more, but its heartbeats continue. Only the
  // step deadline helps.
  kHang,
  kLeave,
  // The server is gone and comes back with its last checkpoint.
  kRestartServer,
  // In its next step, the process reports other batch-norm calls than it made.
  kMiscount,
  // A data shard is gone and comes back with nothing.
  kKillShard,
  // The connection between shard 0 and a data shard is lost.
  kBreakLink,
  // A data shard is asked to stop. It stays until shard 0 has disconnected.
  kLeaveShard,
  // The server is asked to stop, and comes back later. With data shards only.
  kStopServer,
};

// What a fault may follow.
enum class Moment {
  // The beginning of the simulation.
  kBegin,
  // The server waits for its data shards.
  kAwaiting,
  // It stores a state that the run waits for.
  kMilestone,
  // It writes the checkpoint before a data shard leaves.
  kLeaving,
  // The run is over.
  kEnd,
};

struct Fault {
  FaultKind kind = FaultKind::kKill;
  // Counts from the moment `after`, of which `skipped` pass before.
  absl::Duration at;
  Moment after = Moment::kBegin;
  int32_t skipped = 0;
  // The affected worker, unless the fault hits a server.
  Rank rank;
  // The data shard that is affected, or that a worker's broken stream goes to.
  int32_t shard = 0;
  // Time until the replacement, the thaw, or the server's return; for a broken
  // session or link, until the server or data shard notices.
  absl::Duration lasts;
  // A frozen process is replaced while it stands still.
  bool replaced = false;
};

// A change of the run's settings.
struct ChangeAt {
  absl::Duration at;
  SettingValues values;
};

// The disturbances of a run. Only changes of its settings may change its
// result.
struct Scenario {
  uint64_t seed = 0;
  RunSpec run;
  absl::Duration delay_max = absl::Milliseconds(1);
  // Probability that a push, or a contribution, is sent twice.
  double duplicates = 0;
  // Probability that a process lacks a state in its first step, and asks for
  // it, so that the step is repeated.
  double lacks = 0;
  // If true, workers send partitions in the given order; otherwise in any
  // order.
  bool in_order = true;
  std::vector<Fault> faults;
  std::vector<ChangeAt> changes;
  // Workers that start later than the first ones; by rank. Empty: all start at
  // the beginning.
  std::vector<absl::Duration> starts_at;
  // Messages come that none of the simulated workers sends, such as pushes of
  // an earlier incarnation.
  bool strangers = false;
};

Scenario MakeScenario(uint64_t seed);
// A synchronous run of two workers or more under global normalisation. One of
// them reports other batch-norm calls than it made in one step; faults hit the
// others.
Scenario MakeMiscount(uint64_t seed);
// A synchronous run whose ranks leave out layers, in an order that changes with
// the step.
Scenario MakeSkips(uint64_t seed);
// A longer run whose shares go by the speeds of its workers.
Scenario MakeEvenShares(uint64_t seed);
// A run of local steps; changes turn them on and off.
Scenario MakeLocalSteps(uint64_t seed);
// An elastic run of up to 64 ranks, with storms of losses and joins.
Scenario MakeElastic(uint64_t seed);
// The base scenario or an elastic one with two to four shards, which die, or
// lose each other.
Scenario MakeShards(uint64_t seed);
// The base scenario with two or three shards and room for the gradients of one
// push, or of as many as make a commit: a rank that is let in at one shard and
// not at another would wait for ever.
Scenario MakeTight(uint64_t seed);
// Several shards, with what happens at their stops and ends besides:
// data shards are asked to stop,
Scenario MakeLeaving(uint64_t seed);
// and the server is killed as it lets one go,
Scenario MakeKilledLeaving(uint64_t seed);
// the server is asked to stop while it waits for data shards,
Scenario MakeStopAwaiting(uint64_t seed);
// or while it stores a state that the run waits for,
Scenario MakeStopStoring(uint64_t seed);
// a data shard is lost at the end of the run.
Scenario MakeLostAtEnd(uint64_t seed);
// The run of `number` without any disturbance.
Scenario MakeUndisturbed(int32_t number, const RunExtras& extras = {});

std::string Describe(const Scenario& scenario);

// ---- for the functions above
inline int32_t Below(SplitMix64& random, int32_t bound) {
  return static_cast<int32_t>(random.Below(static_cast<uint64_t>(bound)));
}
// Adds to the model and its settings what `extras` says of them.
void Widen(const RunExtras& extras, RunSpec& run);
// `bytes`, or as many more whole pushes as the policy needs.
int64_t LeastLimit(const RunSpec& run, int64_t bytes);
// A limit of bytes in flight between one element and two models, or the
// original one.
int64_t MakeLimit(const RunSpec& run, SplitMix64& random);
absl::Duration FaultLength(FaultKind kind, SplitMix64& random);

}  // namespace cohort::sim
