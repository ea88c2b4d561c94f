#include "tests/sim/simulation.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "server/core/settings/options.h"
#include "tests/sim/scenario.h"

namespace cohort::sim {
namespace {

// Seeds that a scenario runs: the usual number, or COHORT_SIM_SEEDS for all of
// them.
int64_t SeedCount(int64_t usual) {
  const char* wanted = std::getenv("COHORT_SIM_SEEDS");
  if (wanted == nullptr) return usual;
  int64_t count = 0;
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
      o.policy.pushes_min != 0 || !scenario.changes.empty() || o.elastic() ||
      o.policy.shares.automatic) {
    return false;
  }
  // A rank that was lost while it registered was followed by the next.
  if (outcome.model_of != Rank(0)) return false;
  if (o.on_worker_loss == OnWorkerLoss::kContinue &&
      (outcome.workers_lost > 0 || outcome.started_short)) {
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

// What the runs of some seeds came to.
struct Totals : Outcome {
  int64_t seeds = 0;
  // Runs that had to have the bits of an undisturbed one.
  int64_t identical = 0;
  // Those with the initial values of another rank than 0.
  int64_t other_models = 0;
  // Those that followed no loss of a data shard.
  int64_t other_restarts = 0;
};

// The counters that are summed and printed, by name.
constexpr std::pair<const char*, int64_t Outcome::*> kCounters[] = {
    {"events", &Outcome::events},
    {"commits", &Outcome::commits},
    {"workers lost", &Outcome::workers_lost},
    {"workers fenced", &Outcome::fenced},
    {"steps aborted", &Outcome::steps_aborted},
    {"steps repeated for the order of calls", &Outcome::repeated_for_order},
    {"repeated messages", &Outcome::duplicates},
    {"pushes dropped", &Outcome::dropped},
    {"policy changes", &Outcome::policy_changes},
    {"resizes", &Outcome::resizes},
    {"batches given up", &Outcome::batches_given_up},
    {"late verdicts", &Outcome::late_verdicts},
    {"losses of a data shard", &Outcome::shards_lost},
    {"of them after its checkpoint", &Outcome::shards_left},
    {"stops of a server", &Outcome::stops},
    {"restarts of a server", &Outcome::restarts},
};

// A scenario, replayed as --NAME=SEED, and how often what it is about has to
// happen: in one of so many seeds.
struct Case {
  const char* name;
  Scenario (*make)(uint64_t);
  std::vector<std::pair<int64_t Totals::*, int64_t>> one_of;
  int64_t seeds = 1000;
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

Totals RunAll(const Case& c) {
  References references;
  Totals sum;
  Outcome outcome;
  sum.seeds = SeedCount(c.seeds);
  for (int64_t seed = 1; seed <= sum.seeds; ++seed) {
    const Scenario scenario = c.make(static_cast<uint64_t>(seed));
    const std::string failure = RunScenario(scenario, references, outcome);
    EXPECT_EQ(failure, "") << "replay: cohort_sim_test --" << c.name << "="
                           << seed;
    if (!failure.empty()) break;
    sum.identical += MustBeIdentical(scenario, outcome);
    sum.other_models += outcome.model_of != Rank(0);
    sum.other_restarts += outcome.restarts - outcome.shards_lost;
    for (const auto& [name, counter] : kCounters) {
      sum.*counter += outcome.*counter;
    }
  }
  std::string text = absl::StrCat(
      sum.seeds, " seeds, ", sum.identical, " runs that had to be identical, ",
      sum.other_models, " models of another rank than 0");
  for (const auto& [name, counter] : kCounters) {
    absl::StrAppend(&text, ", ", sum.*counter, " ", name);
  }
  std::puts(text.c_str());
  // Seeds without disturbances would prove nothing.
  for (const auto& [counter, part] : c.one_of) {
    EXPECT_GT(sum.*counter, sum.seeds / part);
  }
  return sum;
}

Case BaseCase() {
  using T = Totals;
  return {"seed",
          MakeScenario,
          {{&T::workers_lost, 10},
           {&T::steps_aborted, 100},
           {&T::duplicates, 10},
           {&T::restarts, 10},
           {&T::dropped, 10},
           {&T::policy_changes, 2},
           {&T::resizes, 10},
           {&T::batches_given_up, 100},
           {&T::late_verdicts, 100},
           {&T::other_models, 1000}},
          10000};
}

TEST(SimulationTest, EverySeedKeepsEveryInvariantAndResult) {
  const Totals sum = RunAll(BaseCase());
  EXPECT_LT(sum.other_models, sum.seeds / 10);
}

std::vector<Case> Cases() {
  using T = Totals;
  return {
      // One worker reports other batch-norm calls than it made, once. It is
      // fenced, and the result is that of an undisturbed run.
      {"miscount", MakeMiscount, {{&T::fenced, 2}}},
      // Ranks leave out layers, in an order that changes with the step.
      // Whatever happens, the result is that of an undisturbed run.
      {"skips",
       MakeSkips,
       {{&T::identical, 5}, {&T::repeated_for_order, 10}},
       2000},
      // Every sample counts once, however the server divides a step.
      {"even_shares",
       MakeEvenShares,
       {{&T::policy_changes, 2}, {&T::workers_lost, 4}}},
      // A push of several cuts counts like any other.
      {"local_steps",
       MakeLocalSteps,
       {{&T::identical, 7}, {&T::policy_changes, 4}, {&T::workers_lost, 4}}},
      // Every sample counts once, as ranks come and go, and no step is made
      // by too few.
      {"elastic",
       MakeElastic,
       {{&T::workers_lost, 1}, {&T::steps_aborted, 20}, {&T::resizes, 20}}},
      // The weights are those of one server, whichever shard is lost and when.
      {"shards",
       MakeShards,
       {{&T::identical, 3}, {&T::shards_lost, 2}, {&T::other_restarts, 4}}},
      // Room for one push: a rank that is let in at one shard is let in for
      // good.
      {"tight",
       MakeTight,
       {{&T::identical, 20}, {&T::workers_lost, 4}, {&T::shards_lost, 2}}},
      // Nothing is repeated since the checkpoint of a data shard that is
      // stopped.
      {"leaving", MakeLeaving, {{&T::identical, 3}, {&T::shards_left, 2}}},
      // The server dies as a data shard leaves.
      {"killed_leaving",
       MakeKilledLeaving,
       {{&T::identical, 3}, {&T::other_restarts, 2}}},
      // It is stopped while it waits for data shards, or stores a milestone.
      {"stop_awaiting", MakeStopAwaiting, {{&T::identical, 3}, {&T::stops, 2}}},
      {"stop_storing", MakeStopStoring, {{&T::identical, 3}, {&T::stops, 2}}},
      // A data shard that is lost at the end costs no result.
      {"lost_at_end",
       MakeLostAtEnd,
       {{&T::identical, 4}, {&T::shards_lost, 2}}}};
}

class ScenarioTest : public testing::TestWithParam<Case> {};

TEST_P(ScenarioTest, EverySeedKeepsEveryInvariantAndResult) {
  RunAll(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Scenarios, ScenarioTest, testing::ValuesIn(Cases()),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

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
  std::vector<cohort::sim::Case> scenarios = cohort::sim::Cases();
  scenarios.push_back(cohort::sim::BaseCase());
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    for (const cohort::sim::Case& c : scenarios) {
      absl::string_view text = argv[i];
      uint64_t seed = 0;
      if (absl::ConsumePrefix(&text, absl::StrCat("--", c.name, "=")) &&
          absl::SimpleAtoi(text, &seed)) {
        return cohort::sim::Replay(c.make(seed));
      }
    }
  }
  return RUN_ALL_TESTS();
}
