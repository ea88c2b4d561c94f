#include "tests/sim/simulation.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "server/core/options.h"
#include "tests/sim/scenario.h"

namespace cohort::sim {
namespace {

// Seeds that a scenario runs: 10,000 of the base scenario and 1,000 of each
// further one, or COHORT_SIM_SEEDS for all of them.
constexpr uint64_t kBaseSeeds = 10000;
constexpr uint64_t kMiscountSeeds = 1000;
constexpr uint64_t kSkipsSeeds = 2000;
constexpr uint64_t kElasticSeeds = 1000;
constexpr uint64_t kShardsSeeds = 1000;
constexpr uint64_t kTightSeeds = 1000;

uint64_t SeedCount(uint64_t usual) {
  const char* wanted = std::getenv("COHORT_SIM_SEEDS");
  if (wanted == nullptr) return usual;
  uint64_t count = 0;
  EXPECT_TRUE(absl::SimpleAtoi(wanted, &count) && count > 0)
      << "COHORT_SIM_SEEDS: got \"" << wanted
      << "\", want a number of seeds, such as 1000";
  return count;
}

// The results of undisturbed runs, each computed once.
class References {
 public:
  SharedSnapshot Of(int32_t number, const RunExtras& extras) {
    SharedSnapshot& snapshot = snapshots_[{number, extras}];
    if (snapshot == nullptr) {
      const Scenario undisturbed = MakeUndisturbed(number, extras);
      const Outcome outcome = Simulation(undisturbed).Run();
      EXPECT_EQ(outcome.failure, "") << Describe(undisturbed);
      snapshot = outcome.snapshot;
    }
    return snapshot;
  }

 private:
  std::map<std::pair<int32_t, RunExtras>, SharedSnapshot> snapshots_;
};

// True if no event may have changed the result.
bool MustBeIdentical(const Scenario& scenario, const Outcome& outcome) {
  const CoordinatorOptions& o = scenario.run.coordinator;
  // Under other policies the order of arrival is part of the result.
  if (o.policy.aggregation != AggregationKind::kSync ||
      o.policy.pushes_min != 0 || !scenario.changes.empty() || o.elastic()) {
    return false;
  }
  // A rank that was lost while it registered was followed by the next.
  if (outcome.model_of != Rank(0)) return false;
  if (o.on_worker_loss == OnWorkerLoss::kContinue && outcome.workers_lost > 0) {
    return false;
  }
  // A replacement has other data, and the data of what a restart took back is
  // not used again.
  return !scenario.run.extras.own_data ||
         (outcome.processes == o.workers && outcome.restarts == 0 &&
          outcome.batches_given_up == 0);
}

// Returns a description of the failure; empty if there is none.
std::string RunScenario(const Scenario& scenario, References& references,
                        Outcome& outcome) {
  outcome = Simulation(scenario).Run();
  std::string failure = outcome.failure;
  if (failure.empty() && MustBeIdentical(scenario, outcome)) {
    failure =
        Differences(*outcome.snapshot,
                    *references.Of(scenario.run.number, scenario.run.extras));
  }
  if (failure.empty() && outcome.replay_mismatches > 0 &&
      scenario.changes.empty() &&
      scenario.run.coordinator.policy.aggregation == AggregationKind::kSync) {
    failure = "a replay differs from what it repeats";
  }
  if (failure.empty()) return "";
  return absl::StrCat("seed ", scenario.seed, ": ", failure, "\n",
                      Describe(scenario));
}

std::string RunSeed(uint64_t seed, References& references, Outcome& outcome) {
  std::string failure = RunScenario(MakeScenario(seed), references, outcome);
  if (failure.empty()) return "";
  return absl::StrCat(failure, "\nreplay: cohort_sim_test --seed=", seed);
}

TEST(SimulationTest, TheSameSeedGivesTheSameRunToTheBit) {
  for (uint64_t seed : {3u, 4u, 5u}) {
    const Outcome first = Simulation(MakeScenario(seed)).Run();
    const Outcome second = Simulation(MakeScenario(seed)).Run();
    ASSERT_EQ(first.failure, "");
    EXPECT_EQ(first.events, second.events);
    EXPECT_EQ(Differences(*first.snapshot, *second.snapshot), "");
  }
}

// Every combination of options, without any disturbance. The order in which
// messages arrive must not affect a synchronous run.
TEST(SimulationTest, UndisturbedRunsFinishAndDoNotDependOnDelays) {
  References references;
  for (int32_t number = 0; number < 2 * kRunSpecCount; ++number) {
    // Half of them with own data, and some of these with states.
    const RunExtras extras =
        number < kRunSpecCount
            ? RunExtras()
            : RunExtras{.own_data = true,
                        .states = static_cast<FrontEndStates>(number % 3)};
    Scenario other = MakeUndisturbed(number % kRunSpecCount, extras);
    other.seed += 1000000;
    other.delay_max = absl::Milliseconds(30);
    const Outcome outcome = Simulation(other).Run();
    ASSERT_EQ(outcome.failure, "") << Describe(other);
    EXPECT_EQ(outcome.workers_lost, 0);
    const SharedSnapshot reference =
        references.Of(number % kRunSpecCount, extras);
    if (MustBeIdentical(other, outcome)) {
      ASSERT_EQ(Differences(*outcome.snapshot, *reference), "")
          << Describe(other);
    }
  }
}

TEST(SimulationTest, EverySeedKeepsEveryInvariantAndResult) {
  References references;
  Outcome outcome;
  int failures = 0;
  int other_models = 0;
  Outcome sum;
  const uint64_t seeds = SeedCount(kBaseSeeds);
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    const std::string failure = RunSeed(seed, references, outcome);
    EXPECT_EQ(failure, "");
    if (!failure.empty() && ++failures == 5) break;
    sum.events += outcome.events;
    sum.commits += outcome.commits;
    sum.workers_lost += outcome.workers_lost;
    sum.steps_aborted += outcome.steps_aborted;
    sum.duplicates += outcome.duplicates;
    sum.restarts += outcome.restarts;
    sum.dropped += outcome.dropped;
    sum.policy_changes += outcome.policy_changes;
    sum.resizes += outcome.resizes;
    sum.batches_given_up += outcome.batches_given_up;
    sum.late_verdicts += outcome.late_verdicts;
    if (outcome.model_of != Rank(0)) ++other_models;
  }
  std::printf(
      "%lld seeds, %lld events, %lld commits, %lld workers lost, %lld steps "
      "aborted, %lld repeated messages, %lld server restarts, %lld pushes "
      "dropped, %lld policy changes, %lld of them of the number of workers, "
      "%lld batches given up, %lld late verdicts, %d models of another rank "
      "than 0\n",
      static_cast<long long>(seeds), static_cast<long long>(sum.events),
      static_cast<long long>(sum.commits),
      static_cast<long long>(sum.workers_lost),
      static_cast<long long>(sum.steps_aborted),
      static_cast<long long>(sum.duplicates),
      static_cast<long long>(sum.restarts), static_cast<long long>(sum.dropped),
      static_cast<long long>(sum.policy_changes),
      static_cast<long long>(sum.resizes),
      static_cast<long long>(sum.batches_given_up),
      static_cast<long long>(sum.late_verdicts), other_models);
  // Seeds without disturbances would prove nothing.
  const auto tenth = static_cast<int64_t>(seeds / 10);
  EXPECT_GT(sum.workers_lost, tenth);
  EXPECT_GT(sum.steps_aborted, tenth / 10);
  EXPECT_GT(sum.duplicates, tenth);
  EXPECT_GT(sum.restarts, tenth);
  EXPECT_GT(sum.dropped, tenth);
  EXPECT_GT(sum.policy_changes, 5 * tenth);
  EXPECT_GT(sum.resizes, tenth);
  EXPECT_GT(sum.batches_given_up, tenth / 10);
  EXPECT_GT(sum.late_verdicts, tenth / 10);
  EXPECT_GT(other_models, tenth / 100);
  EXPECT_LT(other_models, tenth);
}

// One worker reports other batch-norm calls than it made, once. It is fenced,
// and the result is that of an undisturbed run.
TEST(SimulationTest, AWorkerThatMiscountsItsCallsLeavesNoTrace) {
  References references;
  Outcome outcome;
  int64_t fenced = 0;
  const uint64_t seeds = SeedCount(kMiscountSeeds);
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    ASSERT_EQ(RunScenario(MakeMiscount(seed), references, outcome), "")
        << "replay: cohort_sim_test --miscount=" << seed;
    fenced += outcome.fenced;
  }
  std::printf("%lld workers fenced\n", static_cast<long long>(fenced));
  EXPECT_GT(fenced, static_cast<int64_t>(seeds / 2));
}

// Ranks leave out layers, in an order that changes with the step. Whatever
// happens meanwhile, the result is that of an undisturbed run.
TEST(SimulationTest, LayersThatRanksLeaveOutChangeNoBit) {
  References references;
  Outcome outcome;
  int64_t identical = 0;
  int64_t repeated = 0;
  const uint64_t seeds = SeedCount(kSkipsSeeds);
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    const Scenario scenario = MakeSkips(seed);
    ASSERT_EQ(RunScenario(scenario, references, outcome), "")
        << "replay: cohort_sim_test --skips=" << seed;
    identical += MustBeIdentical(scenario, outcome);
    repeated += outcome.repeated_for_order;
  }
  std::printf(
      "%lld of %lld runs had to have the bits of an undisturbed one; %lld "
      "attempts repeated for the order of calls\n",
      static_cast<long long>(identical), static_cast<long long>(seeds),
      static_cast<long long>(repeated));
  EXPECT_GT(identical, static_cast<int64_t>(seeds / 5));
  EXPECT_GT(repeated, static_cast<int64_t>(seeds / 10));
}

// Every sample counts once, whoever comes and goes, and no step is made by too
// few.
TEST(SimulationTest, ElasticCohortsLoseAndDoubleNothing) {
  References references;
  Outcome outcome;
  int64_t lost = 0;
  int64_t aborted = 0;
  int64_t resizes = 0;
  const uint64_t seeds = SeedCount(kElasticSeeds);
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    ASSERT_EQ(RunScenario(MakeElastic(seed), references, outcome), "")
        << "replay: cohort_sim_test --elastic=" << seed;
    lost += outcome.workers_lost;
    aborted += outcome.steps_aborted;
    resizes += outcome.resizes;
  }
  std::printf("%lld workers lost, %lld steps aborted, %lld resizes\n",
              static_cast<long long>(lost), static_cast<long long>(aborted),
              static_cast<long long>(resizes));
  EXPECT_GT(lost, static_cast<int64_t>(seeds));
  EXPECT_GT(aborted, static_cast<int64_t>(seeds / 20));
  EXPECT_GT(resizes, static_cast<int64_t>(seeds / 20));
}

// The weights are those of one server, whichever shard is lost and when.
TEST(SimulationTest, SeveralShardsMakeTheWeightsOfOneServer) {
  References references;
  Outcome outcome;
  Outcome sum;
  int64_t identical = 0;
  const uint64_t seeds = SeedCount(kShardsSeeds);
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    const Scenario scenario = MakeShards(seed);
    ASSERT_EQ(RunScenario(scenario, references, outcome), "")
        << "replay: cohort_sim_test --shards=" << seed;
    identical += MustBeIdentical(scenario, outcome);
    sum.commits += outcome.commits;
    sum.shards_lost += outcome.shards_lost;
    sum.results_lost += outcome.results_lost;
    sum.restarts += outcome.restarts;
    sum.policy_changes += outcome.policy_changes;
  }
  std::printf(
      "%lld of %lld runs had to have the weights of one server; %lld commits, "
      "%lld losses of a data shard, %lld of them after the end, %lld restarts "
      "of shard 0, %lld policy changes\n",
      static_cast<long long>(identical), static_cast<long long>(seeds),
      static_cast<long long>(sum.commits),
      static_cast<long long>(sum.shards_lost),
      static_cast<long long>(sum.results_lost),
      static_cast<long long>(sum.restarts),
      static_cast<long long>(sum.policy_changes));
  EXPECT_GT(identical, static_cast<int64_t>(seeds / 3));
  EXPECT_GT(sum.shards_lost, static_cast<int64_t>(seeds / 2));
  EXPECT_GE(sum.results_lost, static_cast<int64_t>(seeds / 1000));
  EXPECT_GT(sum.restarts - sum.shards_lost, static_cast<int64_t>(seeds / 4));
}

// Whoever is let in, at whichever shard, is let in for good.
TEST(SimulationTest, SeveralShardsWithRoomForOnePushNeverStall) {
  References references;
  Outcome outcome;
  int64_t identical = 0;
  Outcome sum;
  const uint64_t seeds = SeedCount(kTightSeeds);
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    const Scenario scenario = MakeTight(seed);
    ASSERT_EQ(RunScenario(scenario, references, outcome), "")
        << "replay: cohort_sim_test --tight=" << seed;
    identical += MustBeIdentical(scenario, outcome);
    sum.workers_lost += outcome.workers_lost;
    sum.shards_lost += outcome.shards_lost;
    sum.restarts += outcome.restarts;
  }
  std::printf(
      "%lld of %lld runs had to have the weights of one server; %lld workers "
      "lost, %lld losses of a data shard, %lld restarts of shard 0\n",
      static_cast<long long>(identical), static_cast<long long>(seeds),
      static_cast<long long>(sum.workers_lost),
      static_cast<long long>(sum.shards_lost),
      static_cast<long long>(sum.restarts));
  EXPECT_GT(identical, static_cast<int64_t>(seeds / 20));
  EXPECT_GT(sum.workers_lost, static_cast<int64_t>(seeds / 2));
  EXPECT_GT(sum.shards_lost, static_cast<int64_t>(seeds / 2));
}

// Runs one seed and prints the outcome. Returns the exit status.
int Replay(const Scenario& scenario) {
  References references;
  Outcome outcome;
  const std::string failure = RunScenario(scenario, references, outcome);
  std::printf("%s\nseed %llu: %s\n", Describe(scenario).c_str(),
              static_cast<unsigned long long>(scenario.seed),
              failure.empty() ? "every invariant held" : failure.c_str());
  return failure.empty() ? 0 : 1;
}

}  // namespace
}  // namespace cohort::sim

// With --NAME=SEED, replays one seed of a scenario instead of testing: seed is
// the base scenario, the others are named as their functions.
int main(int argc, char** argv) {
  using cohort::sim::Scenario;
  const std::map<std::string, Scenario (*)(uint64_t)> scenarios = {
      {"seed", cohort::sim::MakeScenario},
      {"miscount", cohort::sim::MakeMiscount},
      {"skips", cohort::sim::MakeSkips},
      {"elastic", cohort::sim::MakeElastic},
      {"shards", cohort::sim::MakeShards},
      {"tight", cohort::sim::MakeTight}};
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    for (const auto& [name, make] : scenarios) {
      absl::string_view text = argv[i];
      uint64_t seed = 0;
      if (absl::ConsumePrefix(&text, absl::StrCat("--", name, "=")) &&
          absl::SimpleAtoi(text, &seed)) {
        return cohort::sim::Replay(make(seed));
      }
    }
  }
  return RUN_ALL_TESTS();
}
