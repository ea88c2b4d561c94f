// Scenarios with several shards.

#include <array>

#include "common/permutation.h"
#include "server/core/ledger/gradient_budget.h"
#include "tests/sim/scenario.h"

namespace cohort::sim {
namespace {

// Settings that each shard has to follow at the same version.
SettingValues MakeSharedChange(SplitMix64& random) {
  switch (random.Below(4)) {
    case 0:
      return {{"freeze", random.Below(2) == 0 ? "none" : "head[1:3];tail"}};
    case 1:
      return {{"optimizer", "nesterov"}, {"momentum", "0.5"}};
    case 2:
      return {{"wire", random.Below(2) == 0 ? "bf16" : "float32"}};
    default:
      return {{"weight_decay", "0.02"}, {"learning_rate", "0.03"}};
  }
}

Fault MakeShardFault(int32_t shards, SplitMix64& random) {
  constexpr std::array kKinds = {FaultKind::kKillShard, FaultKind::kBreakLink,
                                 FaultKind::kRestartServer};
  Fault fault{.kind = kKinds[random.Below(kKinds.size())]};
  fault.shard = 1 + Below(random, shards - 1);
  fault.lasts = FaultLength(fault.kind, random);
  // Some are back before anything else has noticed.
  if (random.Below(3) == 0) fault.lasts = fault.lasts / 200;
  return fault;
}

// Whatever happens, it must end with the weights of one server.
bool IsExact(const Scenario& scenario) {
  const CoordinatorOptions& o = scenario.run.coordinator;
  return o.policy.aggregation == AggregationKind::kSync &&
         o.policy.pushes_min == 0 && o.on_worker_loss == OnWorkerLoss::kWait &&
         !scenario.run.extras.own_data;
}

// Half of all are exact, a tenth are elastic.
Scenario MakeBase(SplitMix64& random) {
  const uint64_t kind = random.Below(10);
  if (kind == 0) return MakeElastic(random.Next());
  Scenario scenario = MakeScenario(random.Next());
  if (kind < 5) return scenario;
  while (!IsExact(scenario)) scenario = MakeScenario(random.Next());
  scenario.changes.clear();
  return scenario;
}

// The time that the run may take.
absl::Duration SpanOf(const Scenario& scenario) {
  return scenario.delay_max * 20 *
         static_cast<double>(5 * scenario.run.coordinator.epochs);
}

// Some of the streams that break are those to data shards.
void AddShardFaults(Scenario& scenario, SplitMix64& random) {
  const CoordinatorOptions& o = scenario.run.coordinator;
  for (Fault& fault : scenario.faults) {
    if (fault.kind != FaultKind::kBreakExchange) continue;
    fault.shard = Below(random, o.shards);
  }
  const uint64_t count = random.Below(5);
  for (uint64_t i = 0; i < count; ++i) {
    Fault fault = MakeShardFault(o.shards, random);
    fault.at = SpanOf(scenario) * random.Uniform();
    scenario.faults.push_back(fault);
  }
}

// A scenario with several shards and one fault more, soon after a moment.
Scenario MakeEnding(uint64_t seed, uint64_t salt, FaultKind kind,
                    Moment after) {
  SplitMix64 random(MixSeed(seed, salt));
  Scenario scenario = MakeShards(random.Next());
  scenario.seed = seed;
  Fault fault = MakeShardFault(scenario.run.coordinator.shards, random);
  fault.kind = kind;
  fault.after = after;
  fault.at = scenario.delay_max * 3 * random.Uniform();
  // Some are of the second server, and most of the milestones of the end.
  fault.skipped = Below(random, 2);
  scenario.faults.push_back(fault);
  return scenario;
}

// Such a fault at any time, before the others.
void AddAnyTime(Scenario& scenario, FaultKind kind, uint64_t salt) {
  SplitMix64 random(MixSeed(scenario.seed, salt));
  Fault fault = MakeShardFault(scenario.run.coordinator.shards, random);
  fault.kind = kind;
  fault.at = SpanOf(scenario) * random.Uniform();
  scenario.faults.push_back(fault);
}

}  // namespace

void Widen(const RunExtras& extras, RunSpec& run) {
  if (extras.wide) {
    run.layout.parameters.push_back({.name = "tail", .shape = {9}});
  }
  if (extras.masked) {
    run.coordinator.optimizer.freeze = {"conv.bias", "head[-2:]"};
  }
  if (extras.clipped) run.coordinator.optimizer.clip_norm = 0.05;
  if (extras.adapted != OptimizerKind::kAuto) {
    run.coordinator.optimizer.kind = extras.adapted;
  }
}

Scenario MakeShards(uint64_t seed) {
  SplitMix64 random(MixSeed(seed, 6));
  Scenario scenario = MakeBase(random);
  scenario.seed = seed;
  RunSpec& run = scenario.run;
  CoordinatorOptions& o = run.coordinator;
  o.shards = 2 + Below(random, 3);
  run.extras.wide = true;
  run.extras.masked = random.Below(3) == 0;
  run.extras.clipped = random.Below(6) == 0;
  const uint64_t adapted = random.Below(6);
  if (adapted == 0) run.extras.adapted = OptimizerKind::kLars;
  if (adapted == 1) run.extras.adapted = OptimizerKind::kLamb;
  Widen(run.extras, run);
  // The limit of the base scenario may be too low for the larger model.
  o.inflight_bytes_max = CoordinatorOptions().inflight_bytes_max;
  o.inflight_bytes_max = MakeLimit(run, random);
  AddShardFaults(scenario, random);
  if (!scenario.changes.empty()) {
    scenario.changes.push_back({.at = SpanOf(scenario) * random.Uniform(),
                                .values = MakeSharedChange(random)});
  }
  run.extras.updates = o.policy.aggregation == AggregationKind::kSync &&
                       o.policy.pushes_min == 0 && scenario.changes.empty() &&
                       seed % 2 == 0;
  return scenario;
}

Scenario MakeTight(uint64_t seed) {
  SplitMix64 random(MixSeed(seed, 7));
  Scenario scenario = MakeScenario(random.Next());
  while (scenario.run.coordinator.workers == 1) {
    scenario = MakeScenario(random.Next());
  }
  scenario.seed = seed;
  RunSpec& run = scenario.run;
  run.coordinator.shards = 2 + Below(random, 2);
  run.extras.wide = true;
  Widen(run.extras, run);
  run.coordinator.inflight_bytes_max = LeastLimit(run, PushBytes(run.layout));
  AddShardFaults(scenario, random);
  return scenario;
}

Scenario MakeLeaving(uint64_t seed) {
  Scenario scenario =
      MakeEnding(seed, 21, FaultKind::kLeaveShard, Moment::kMilestone);
  AddAnyTime(scenario, FaultKind::kLeaveShard, 22);
  AddAnyTime(scenario, FaultKind::kLeaveShard, 23);
  return scenario;
}

Scenario MakeKilledLeaving(uint64_t seed) {
  Scenario scenario =
      MakeEnding(seed, 24, FaultKind::kRestartServer, Moment::kLeaving);
  scenario.faults.back().skipped = 0;
  AddAnyTime(scenario, FaultKind::kLeaveShard, 25);
  AddAnyTime(scenario, FaultKind::kLeaveShard, 26);
  return scenario;
}

Scenario MakeStopAwaiting(uint64_t seed) {
  Scenario scenario =
      MakeEnding(seed, 27, FaultKind::kStopServer, Moment::kAwaiting);
  AddAnyTime(scenario, FaultKind::kKillShard, 28);
  return scenario;
}

Scenario MakeStopStoring(uint64_t seed) {
  return MakeEnding(seed, 29, FaultKind::kStopServer, Moment::kMilestone);
}

Scenario MakeLostAtEnd(uint64_t seed) {
  return MakeEnding(seed, 30, FaultKind::kKillShard,
                    seed % 2 == 0 ? Moment::kEnd : Moment::kMilestone);
}

}  // namespace cohort::sim
