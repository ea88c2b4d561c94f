#include "tests/sim/scenario.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "common/permutation.h"
#include "server/core/ledger/gradient_budget.h"

namespace cohort::sim {
namespace {

constexpr std::array<const char*, 14> kFaultNames = {
    "break session",  "break exchange", "break reduce", "kill",
    "vanish",         "freeze",         "hang",         "leave",
    "restart server", "miscount",       "kill shard",   "break link",
    "leave shard",    "stop server"};
constexpr std::array<const char*, 5> kMomentNames = {
    "", " after awaiting", " after milestone", " after leaving", " after end"};
constexpr std::array<const char*, 3> kStatesNames = {"", ", with states",
                                                     ", with some states"};
// The faults that any run must survive without an effect on its result.
constexpr uint64_t kHarmlessFaults = 9;

absl::Duration Between(SplitMix64& random, absl::Duration low,
                       absl::Duration high) {
  return low + (high - low) * random.Uniform();
}

OptimizerOptions MakeOptimizer(int32_t choice) {
  switch (choice) {
    case 0:
      return {.kind = OptimizerKind::kSgd,
              .learning_rate = 0.05,
              .weight_decay = 0,
              .schedule = ScheduleKind::kConstant};
    case 1:
      return {.kind = OptimizerKind::kMomentum, .learning_rate = 0.05};
    default:
      return {.kind = OptimizerKind::kNesterov,
              .learning_rate = 0.02,
              .numbers = {.momentum = 0.5},
              .weight_decay = 0.01,
              .decay_everything = true};
  }
}

PolicyOptions MakeAggregation(int32_t choice, int32_t variant) {
  const bool first = variant == 0;
  switch (choice) {
    case 0:
      return {.normalization_group = first ? 0 : 2,
              .statistics = {first ? StatisticsKind::kSync
                                   : StatisticsKind::kChief}};
    case 1:
      return {.normalization = NormalizationKind::kLocal,
              .statistics = {first ? StatisticsKind::kAfter
                                   : StatisticsKind::kAsync,
                             StatisticsKind::kSync},
              .precise_batches = 3};
    case 2:
      return {.pushes_min = 2 - variant};
    case 3:
      return {.pushes_min = 1 + variant,
              .normalization = NormalizationKind::kLocal};
    case 4:
      return {.aggregation = AggregationKind::kBounded,
              .lead_max = 1 + 2 * variant};
    case 5:
      return {.aggregation = AggregationKind::kAsync,
              .staleness = {.rule = StalenessRule::kDrop,
                            .versions_max = int64_t{2} * variant}};
    case 6:
      return {.aggregation =
                  first ? AggregationKind::kAsync : AggregationKind::kBounded,
              .staleness = {.rule = first ? StalenessRule::kScale
                                          : StalenessRule::kCompensate}};
    default:
      return {.aggregation = AggregationKind::kAsync};
  }
}

// Half of all policies take gradients in bfloat16.
PolicyOptions MakePolicy(int32_t choice, int32_t variant) {
  PolicyOptions policy = MakeAggregation(choice, variant);
  if ((choice + variant) % 2 == 1) policy.wire = ElementType::kBFloat16;
  return policy;
}

// Limits a policy to what a small cohort can satisfy.
void FitTo(int32_t workers, PolicyOptions& policy) {
  policy.pushes_min = std::min(policy.pushes_min, workers);
  if (policy.normalization_group > workers) policy.normalization_group = 0;
}

ModelLayout MakeLayout(int32_t variant) {
  ModelLayout layout{
      .parameters = {{.name = "conv.weight", .shape = {3}},
                     {.name = "conv.bias", .shape = {1}, .decay_exempt = true},
                     {.name = "frozen", .shape = {2}, .trainable = false},
                     {.name = "head", .shape = {5}}},
      .batch_norms = {{.name = "bn0", .channels = 2}}};
  if (variant == 1) {
    layout.batch_norms.push_back({.name = "bn1",
                                  .channels = 1,
                                  .momentum = std::nullopt,
                                  .convention = StatisticsConvention::kKeras});
  }
  return layout;
}

// Larger or smaller, down to one.
SettingValues MakeResize(SplitMix64& random) {
  SettingValues values = {
      {"workers", absl::StrCat(1 + random.Below(kRanksMax))}};
  // Otherwise a policy that counts ranks may refuse to shrink.
  if (random.Below(2) == 0) {
    values["min_pushes"] = "0";
    values["normalization_group"] = "0";
  }
  return values;
}

// From a sample for each of `workers` to several batches of all.
int64_t GlobalBatchFor(int32_t workers, SplitMix64& random) {
  return workers + Below(random, 4 * workers);
}

// Any policy may follow any other.
SettingValues MakeChange(const CoordinatorOptions& run, SplitMix64& random) {
  switch (random.Below(10)) {
    case 0:
      return {{"on_worker_loss", random.Below(2) == 0 ? "wait" : "continue"}};
    case 1:
      return {{"lease", random.Below(2) == 0 ? "700ms" : "2s"}};
    case 2:
      return {{"learning_rate", "0.01"},
              {"schedule", "constant"},
              {"ema_decay", run.optimizer.ema_decay > 0 ? "0" : "0.99"}};
    case 3:
    case 4:
      return MakeResize(random);
    default:
      break;
  }
  CoordinatorOptions target = run;
  target.policy = MakePolicy(static_cast<int32_t>(random.Below(kPolicyCount)),
                             static_cast<int32_t>(random.Below(2)));
  FitTo(run.workers, target.policy);
  // Settings that it does not change stay as they were before the last change.
  SettingValues values = SettingsOf(target);
  std::erase_if(values, [](const auto& value) {
    static const std::set<std::string> kOfPolicy = {
        "aggregation",   "min_pushes",    "max_lead",
        "staleness",     "max_staleness", "staleness_free",
        "normalization", "bn_statistics", "normalization_group",
        "wire"};
    return !kOfPolicy.contains(value.first);
  });
  return values;
}

// Weights that differ from rank to rank, if this run may have some.
void GiveShares(RunSpec& spec) {
  ShareOptions& shares = spec.coordinator.policy.shares;
  shares = {};
  if (!spec.extras.shares || spec.extras.own_data) return;
  for (int32_t rank = 0; rank < spec.coordinator.workers; ++rank) {
    shares.weights.push_back(1 + (3 * rank + spec.number) % 5);
  }
  if (!Validate(spec.coordinator).ok()) shares = {};
}

// Shares change too, but are not in the way of another policy or size; some of
// the changes are refused.
void ChangeShares(Scenario& scenario, SplitMix64& random) {
  if (!scenario.run.extras.shares) return;
  CoordinatorOptions& o = scenario.run.coordinator;
  for (ChangeAt& change : scenario.changes) {
    std::vector<int64_t> weights;
    for (int32_t rank = 0; rank < o.workers; ++rank) {
      weights.push_back(1 + Below(random, 9));
    }
    const bool other = change.values.contains("aggregation") ||
                       change.values.contains("workers");
    change.values["shares"] =
        other || random.Below(4) == 0 ? "none" : absl::StrJoin(weights, ",");
  }
  if (random.Below(3) == 0 && o.policy.shares.given()) {
    o.policy.shares = {.automatic = true};
  }
}

// One to four of them, if the policy allows any.
void GiveLocalSteps(RunSpec& spec) {
  PolicyOptions& policy = spec.coordinator.policy;
  if (!spec.extras.local_steps ||
      policy.aggregation != AggregationKind::kSync) {
    return;
  }
  policy.local_steps = 1 + spec.number % 4;
  policy.normalization_group = 0;
  policy.statistics = {StatisticsKind::kSync};
  spec.coordinator.optimizer.weight_decay = 0;
}

void AddExtras(const RunExtras& extras, RunSpec& spec) {
  spec.extras = extras;
  spec.plan.awaits_scores = extras.scores;
  Widen(extras, spec);
  GiveLocalSteps(spec);
  CoordinatorOptions& o = spec.coordinator;
  // A version of each rank's push where pushes are applied one by one.
  const int64_t versions =
      o.policy.aggregation == AggregationKind::kSync ? 1 : o.workers;
  if (extras.averages) o.optimizer.ema_decay = 0.9;
  if (extras.few_steps) o.max_steps = (3 * o.epochs + 1) * versions;
  GiveShares(spec);
  if (!extras.own_data) return;
  if (!extras.few_steps) o.max_steps = 5 * o.epochs * versions;
  spec.plan.dataset = "own";
  spec.plan.train_samples = 0;
  spec.plan.test_samples = 0;
  spec.plan.own_data = true;
  // The server cannot name batches to collect statistics from.
  std::erase(o.policy.statistics, StatisticsKind::kAfter);
}

// From a separate generator, so that the other choices of a seed do not
// depend on it.
RunExtras MakeExtras(uint64_t seed) {
  SplitMix64 random(MixSeed(seed, 4));
  RunExtras extras;
  extras.own_data = random.Below(3) == 0;
  extras.few_steps = random.Below(4) == 0;
  extras.states = static_cast<FrontEndStates>(random.Below(3));
  extras.averages = random.Below(3) == 0;
  extras.shares = random.Below(3) == 0;
  extras.scores = random.Below(3) == 0;
  return extras;
}

// The worker is any of them.
void AddFault(FaultKind kind, absl::Duration at, Scenario& scenario,
              SplitMix64& random) {
  Fault fault{.kind = kind, .at = at};
  fault.rank = Rank(Below(random, scenario.run.coordinator.workers));
  fault.lasts = FaultLength(kind, random);
  fault.replaced = random.Below(2) == 0;
  scenario.faults.push_back(fault);
}

}  // namespace

int64_t LeastLimit(const RunSpec& run, int64_t bytes) {
  CoordinatorOptions limited = run.coordinator;
  limited.inflight_bytes_max = bytes;
  while (!CheckInflight(limited, run.layout).ok()) {
    limited.inflight_bytes_max += PushBytes(run.layout);
  }
  return limited.inflight_bytes_max;
}

int64_t MakeLimit(const RunSpec& run, SplitMix64& random) {
  if (random.Below(3) == 0) return run.coordinator.inflight_bytes_max;
  const auto models = static_cast<uint64_t>(2 * PushBytes(run.layout));
  return LeastLimit(run, 1 + static_cast<int64_t>(random.Below(models)));
}

absl::Duration FaultLength(FaultKind kind, SplitMix64& random) {
  switch (kind) {
    case FaultKind::kBreakSession:
      // Sometimes the server notices only after the lease has expired.
      return random.Below(5) == 0 ? absl::Seconds(5)
                                  : Between(random, absl::ZeroDuration(),
                                            absl::Milliseconds(100));
    case FaultKind::kFreeze:
      return Between(random, absl::Milliseconds(50), absl::Seconds(3));
    default:
      return Between(random, absl::Milliseconds(1), absl::Seconds(2));
  }
}

RunSpec MakeRunSpec(int32_t number, const RunExtras& extras) {
  int32_t rest = number;
  const auto digit = [&rest](int32_t base) {
    const int32_t value = rest % base;
    rest /= base;
    return value;
  };
  RunSpec spec{.number = number};
  CoordinatorOptions& o = spec.coordinator;
  o.workers = digit(5) + 1;
  const int32_t policy = digit(kPolicyCount);
  o.on_worker_loss =
      digit(2) == 0 ? OnWorkerLoss::kWait : OnWorkerLoss::kContinue;
  o.optimizer = MakeOptimizer(digit(3));
  const int32_t variant = digit(2);
  o.policy = MakePolicy(policy, variant);
  FitTo(o.workers, o.policy);
  o.run_id = "simulated";
  o.epochs = 2 + variant;
  o.seed = 7;
  o.lease = absl::Seconds(1);
  o.reconnect_grace = absl::Milliseconds(300);
  // Out of reach: a deadline must not hide a wait without end.
  o.step_deadline = absl::Hours(10);
  o.replacement_deadline = absl::Hours(10);
  o.partition_bytes = 16;
  o.checkpoint_every = 2 + variant;

  spec.layout = MakeLayout(variant);
  for (int32_t rank = 0; rank < kRanksMax; ++rank) {
    spec.batch_sizes.push_back(1 + (2 * rank + variant) % 3);
  }
  const int64_t step =
      std::accumulate(spec.batch_sizes.begin(),
                      spec.batch_sizes.begin() + o.workers, int64_t{0});
  spec.plan = {.dataset = "numbers",
               .dataset_digest = "0123",
               // The last step of an epoch has one sample too many or too few.
               .train_samples = 4 * step + (variant == 0 ? 1 : -1),
               .test_samples = 3,
               .loss_reference = static_cast<double>(step)};
  AddExtras(extras, spec);
  return spec;
}

Scenario MakeScenario(uint64_t seed) {
  SplitMix64 random(MixSeed(seed, 1));
  Scenario scenario{
      .seed = seed,
      .run = MakeRunSpec(Below(random, kRunSpecCount), MakeExtras(seed))};
  constexpr std::array<int64_t, 3> kDelaysMs = {1, 5, 30};
  scenario.delay_max = absl::Milliseconds(kDelaysMs[random.Below(3)]);
  if (random.Below(2) == 0) scenario.duplicates = 0.3 * random.Uniform();
  // Approximate duration of an undisturbed run, so that faults are spread over
  // all of it.
  const double hops_a_step =
      scenario.run.coordinator.policy.normalization == NormalizationKind::kAuto
          ? 14
          : 7;
  const absl::Duration span =
      scenario.delay_max * hops_a_step *
      static_cast<double>(5 * scenario.run.coordinator.epochs);
  scenario.in_order = random.Below(2) == 0;
  const PolicyOptions& policy = scenario.run.coordinator.policy;
  if (seed % 4 == 1 && policy.aggregation == AggregationKind::kSync &&
      policy.pushes_min == 0) {
    scenario.lacks = 0.5;
  }
  // Moments that complete together are folded by jobs, which take time.
  if (seed % 3 == 0) scenario.run.coordinator.moments_inline_max = 1;
  scenario.run.coordinator.inflight_bytes_max = MakeLimit(scenario.run, random);
  const auto count = random.Below(8);
  for (uint64_t i = 0; i < count; ++i) {
    const auto kind = static_cast<FaultKind>(random.Below(kHarmlessFaults));
    const absl::Duration at = span * random.Uniform();
    AddFault(kind, at, scenario, random);
    if (kind == FaultKind::kHang) {
      scenario.run.coordinator.step_deadline = absl::Seconds(3);
    }
  }
  if (random.Below(2) == 0) return scenario;
  const uint64_t changes = 1 + random.Below(4);
  for (uint64_t i = 0; i < changes; ++i) {
    // Some changes come while the workers still join.
    const absl::Duration within =
        random.Below(4) == 0 ? scenario.delay_max * 4 : span;
    scenario.changes.push_back(
        {.at = within * random.Uniform(),
         .values = MakeChange(scenario.run.coordinator, random)});
  }
  ChangeShares(scenario, random);
  return scenario;
}

Scenario MakeMiscount(uint64_t seed) {
  SplitMix64 random(MixSeed(seed, 3));
  Scenario scenario;
  do {
    scenario = MakeScenario(random.Next());
  } while (scenario.run.coordinator.workers < 2 ||
           Resolve(scenario.run.coordinator.policy).normalization !=
               NormalizationKind::kGlobal);
  scenario.seed = seed;
  scenario.changes.clear();
  const Rank rank(Below(random, scenario.run.coordinator.workers));
  // Wrong gradients that a replacement would have to repeat are not tested
  // here.
  std::erase_if(scenario.faults, [rank](const Fault& fault) {
    return fault.kind != FaultKind::kRestartServer && fault.rank == rank;
  });
  scenario.faults.push_back({.kind = FaultKind::kMiscount,
                             .at = scenario.delay_max * 60 * random.Uniform(),
                             .rank = rank});
  return scenario;
}

Scenario MakeSkips(uint64_t seed) {
  SplitMix64 random(MixSeed(seed, 11));
  Scenario scenario;
  do {
    scenario = MakeScenario(random.Next());
  } while (scenario.run.coordinator.policy.aggregation !=
           AggregationKind::kSync);
  scenario.seed = seed;
  // Policies under which ranks do not meet would refuse nothing.
  scenario.changes.clear();
  scenario.run.extras.skips = true;
  scenario.run.extras.updates =
      scenario.run.coordinator.policy.pushes_min == 0 && random.Below(2) == 0;
  return scenario;
}

Scenario MakeEvenShares(uint64_t seed) {
  SplitMix64 random(MixSeed(seed, 13));
  Scenario scenario;
  CoordinatorOptions& o = scenario.run.coordinator;
  do {
    scenario = MakeScenario(random.Next());
    o.policy.shares = {.automatic = true};
  } while (o.workers < 2 || scenario.run.extras.own_data || !Validate(o).ok());
  scenario.seed = seed;
  scenario.run.extras.shares = true;
  scenario.changes.clear();
  o.epochs *= 4;
  if (o.max_steps > 0) o.max_steps *= 4;
  return scenario;
}

Scenario MakeLocalSteps(uint64_t seed) {
  SplitMix64 random(MixSeed(seed, 17));
  Scenario scenario;
  RunSpec& run = scenario.run;
  do {
    scenario = MakeScenario(random.Next());
    run.extras.local_steps = true;
    GiveLocalSteps(run);
    run.coordinator.policy.shares = {};
  } while (run.coordinator.policy.local_steps == 0);
  scenario.seed = seed;
  run.extras.shares = false;
  // Without a rendezvous a commit may need more room.
  run.coordinator.inflight_bytes_max =
      LeastLimit(run, run.coordinator.inflight_bytes_max);
  for (ChangeAt& change : scenario.changes) {
    change.values.erase("shares");
    const auto aggregation = change.values.find("aggregation");
    if (aggregation == change.values.end()) continue;
    const bool local = aggregation->second == "sync" && random.Below(3) > 0;
    change.values["local_steps"] =
        absl::StrCat(local ? 1 + random.Below(4) : 0);
    change.values["learning_rate"] = "0.01";
    change.values["weight_decay"] = "0";
    if (!local) continue;
    change.values["normalization"] = "auto";
    change.values["normalization_group"] = "0";
    change.values["bn_statistics"] = "sync";
  }
  return scenario;
}

Scenario MakeElastic(uint64_t seed) {
  SplitMix64 random(MixSeed(seed, 5));
  Scenario scenario = MakeScenario(random.Next());
  scenario.seed = seed;
  RunSpec& run = scenario.run;
  CoordinatorOptions& o = run.coordinator;
  const int32_t most = random.Below(10) == 0 ? kElasticRanksMax : kRanksMax;
  o.workers = 1 + Below(random, most);
  o.workers_min = 1 + Below(random, std::min(o.workers, 4));
  o.on_worker_loss = OnWorkerLoss::kContinue;
  FitTo(o.workers, o.policy);
  GiveShares(run);
  while (static_cast<int32_t>(run.batch_sizes.size()) < o.workers) {
    run.batch_sizes.push_back(1 + Below(random, 3));
  }
  if (!run.extras.own_data) {
    const int64_t step =
        std::accumulate(run.batch_sizes.begin(),
                        run.batch_sizes.begin() + o.workers, int64_t{0});
    run.plan.train_samples = 6 * step + 1;
  }
  const absl::Duration span = scenario.delay_max * 200;
  for (int32_t rank = 0; rank < o.workers; ++rank) {
    scenario.starts_at.push_back(random.Below(2) == 0
                                     ? scenario.delay_max * random.Uniform()
                                     : span * random.Uniform());
  }
  if (!run.extras.own_data && random.Below(2) == 0) {
    o.policy.global_batch = GlobalBatchFor(o.workers, random);
  }
  // The limit of the base scenario may be too low for more workers.
  o.inflight_bytes_max = CoordinatorOptions().inflight_bytes_max;
  o.inflight_bytes_max = MakeLimit(run, random);
  const uint64_t storms = random.Below(4);
  for (uint64_t storm = 0; storm < storms; ++storm) {
    const absl::Duration at = span * random.Uniform();
    const int32_t losses = 1 + Below(random, o.workers);
    for (int32_t i = 0; i < losses; ++i) {
      constexpr std::array kKinds = {FaultKind::kKill, FaultKind::kVanish,
                                     FaultKind::kLeave, FaultKind::kFreeze};
      const FaultKind kind = kKinds[random.Below(4)];
      const absl::Duration when =
          at + scenario.delay_max * 4 * random.Uniform();
      AddFault(kind, when, scenario, random);
    }
  }
  // A size of another kind may follow, or another number of samples.
  for (ChangeAt& change : scenario.changes) {
    if (random.Below(4) == 0) {
      change.values["global_batch"] =
          random.Below(3) == 0
              ? "sum"
              : absl::StrCat(GlobalBatchFor(o.workers, random));
    }
    const auto workers = change.values.find("workers");
    if (workers == change.values.end() || random.Below(4) == 0) continue;
    workers->second =
        absl::StrCat(1 + random.Below(2), ":", 2 + random.Below(kRanksMax - 1));
  }
  return scenario;
}

Scenario MakeUndisturbed(int32_t number, const RunExtras& extras) {
  return {.seed = static_cast<uint64_t>(number),
          .run = MakeRunSpec(number, extras)};
}

std::string Describe(const Scenario& scenario) {
  const CoordinatorOptions& o = scenario.run.coordinator;
  std::string text = absl::StrCat(
      "run ", scenario.run.number, ": ", WorkersText(o),
      " workers with batches ",
      absl::StrJoin(absl::MakeConstSpan(scenario.run.batch_sizes)
                        .first(static_cast<size_t>(o.workers)),
                    ","),
      ", ", PolicyText(o.policy), ", on loss ",
      o.on_worker_loss == OnWorkerLoss::kWait ? "wait" : "continue", ", ",
      o.epochs, " epochs of ", scenario.run.plan.train_samples,
      " samples, checkpoint every ", o.checkpoint_every, ", delays to ",
      absl::FormatDuration(scenario.delay_max), ", duplicates ",
      scenario.duplicates, ", room for ", o.inflight_bytes_max, " bytes",
      o.shards > 1 ? absl::StrCat(", ", o.shards, " shards") : "",
      scenario.run.extras.masked ? ", masked" : "",
      scenario.run.extras.clipped ? ", clipped" : "", ", optimizer ",
      OptimizerName(o.optimizer.kind),
      scenario.run.extras.skips ? ", skips" : "",
      scenario.run.extras.updates ? ", updates" : "",
      scenario.run.extras.shares ? ", shares" : "",
      scenario.run.extras.scores ? ", scores" : "",
      scenario.in_order ? " in order" : "",
      scenario.run.extras.own_data ? ", own data" : "",
      o.max_steps > 0 ? absl::StrCat(", at most ", o.max_steps, " steps") : "",
      kStatesNames[static_cast<size_t>(scenario.run.extras.states)]);
  for (const Fault& fault : scenario.faults) {
    absl::StrAppend(
        &text, "\n  ", absl::FormatDuration(fault.at),
        kMomentNames[static_cast<size_t>(fault.after)], " (", fault.skipped,
        " skipped): ", kFaultNames[static_cast<size_t>(fault.kind)], " rank ",
        fault.rank.value(), " shard ", fault.shard, " for ",
        absl::FormatDuration(fault.lasts), fault.replaced ? ", replaced" : "");
  }
  for (const ChangeAt& change : scenario.changes) {
    absl::StrAppend(
        &text, "\n  ", absl::FormatDuration(change.at), ": change ",
        absl::StrJoin(change.values, ", ", absl::PairFormatter("=")));
  }
  return text;
}

}  // namespace cohort::sim
