#include "tests/sim/simulation.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "server/core/options.h"
#include "tests/sim/scenario.h"

namespace cohort::sim {
namespace {

constexpr uint64_t kSeeds = 10000;

// The results of undisturbed runs, each computed once.
class References {
 public:
  SharedSnapshot Of(int32_t number) {
    SharedSnapshot& snapshot = snapshots_[static_cast<size_t>(number)];
    if (snapshot == nullptr) {
      const Outcome outcome = Simulation(MakeUndisturbed(number)).Run();
      EXPECT_EQ(outcome.failure, "") << Describe(MakeUndisturbed(number));
      snapshot = outcome.snapshot;
    }
    return snapshot;
  }

 private:
  std::array<SharedSnapshot, kRunSpecCount> snapshots_;
};

// True if nothing that happened may have changed the result.
bool MustBeIdentical(const Scenario& scenario, const Outcome& outcome) {
  const CoordinatorOptions& o = scenario.run.coordinator;
  // Elsewhere the order of arrival is part of the result.
  if (o.policy.aggregation != AggregationKind::kSync ||
      o.policy.pushes_min != 0 || !scenario.changes.empty()) {
    return false;
  }
  // A rank that was lost while it registered was followed by the next.
  if (outcome.model_of != Rank(0)) return false;
  return o.on_worker_loss == OnWorkerLoss::kWait || outcome.workers_lost == 0;
}

// Returns what went wrong; empty if nothing did.
std::string RunSeed(uint64_t seed, References& references, Outcome& outcome) {
  const Scenario scenario = MakeScenario(seed);
  outcome = Simulation(scenario).Run();
  std::string failure = outcome.failure;
  if (failure.empty() && MustBeIdentical(scenario, outcome)) {
    failure =
        Differences(*outcome.snapshot, *references.Of(scenario.run.number));
  }
  if (failure.empty() && outcome.replay_mismatches > 0 &&
      scenario.changes.empty() &&
      scenario.run.coordinator.policy.aggregation == AggregationKind::kSync) {
    failure = "a replay differs from what it repeats";
  }
  if (failure.empty()) return "";
  return absl::StrCat("seed ", seed, ": ", failure, "\n", Describe(scenario),
                      "\nreplay: cohort_sim_test --seed=", seed);
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

// Every combination of options, without any disturbance; the order in which
// messages arrive does not show in a synchronous run.
TEST(SimulationTest, UndisturbedRunsFinishAndDoNotDependOnDelays) {
  References references;
  for (int32_t number = 0; number < kRunSpecCount; ++number) {
    Scenario other = MakeUndisturbed(number);
    other.seed += 1000000;
    other.delay_max = absl::Milliseconds(30);
    const Outcome outcome = Simulation(other).Run();
    ASSERT_EQ(outcome.failure, "") << Describe(other);
    EXPECT_EQ(outcome.workers_lost, 0);
    const SharedSnapshot reference = references.Of(number);
    if (MustBeIdentical(other, outcome)) {
      ASSERT_EQ(Differences(*outcome.snapshot, *reference), "")
          << Describe(other);
    }
  }
}

TEST(SimulationTest, TenThousandSeedsKeepEveryInvariantAndResult) {
  References references;
  Outcome outcome;
  int failures = 0;
  int other_models = 0;
  Outcome sum;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
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
    if (outcome.model_of != Rank(0)) ++other_models;
  }
  std::printf(
      "%lld events, %lld commits, %lld workers lost, %lld steps "
      "aborted, %lld repeated messages, %lld server restarts, %lld pushes "
      "dropped, %lld policy changes, %lld of them of the number of workers, "
      "%d models of another rank than 0\n",
      static_cast<long long>(sum.events), static_cast<long long>(sum.commits),
      static_cast<long long>(sum.workers_lost),
      static_cast<long long>(sum.steps_aborted),
      static_cast<long long>(sum.duplicates),
      static_cast<long long>(sum.restarts), static_cast<long long>(sum.dropped),
      static_cast<long long>(sum.policy_changes),
      static_cast<long long>(sum.resizes), other_models);
  // Seeds that disturb nothing would prove nothing.
  EXPECT_GT(sum.workers_lost, 1000);
  EXPECT_GT(sum.steps_aborted, 100);
  EXPECT_GT(sum.duplicates, 1000);
  EXPECT_GT(sum.restarts, 1000);
  EXPECT_GT(sum.dropped, 1000);
  EXPECT_GT(sum.policy_changes, 5000);
  EXPECT_GT(sum.resizes, 1000);
  EXPECT_GT(other_models, 10);
  EXPECT_LT(other_models, 1000);
}

// Runs one seed and says how it went. Returns the exit status.
int Replay(uint64_t seed) {
  References references;
  Outcome outcome;
  const std::string failure = RunSeed(seed, references, outcome);
  std::printf("%s\nseed %llu: %s\n", Describe(MakeScenario(seed)).c_str(),
              static_cast<unsigned long long>(seed),
              failure.empty() ? "every invariant held" : failure.c_str());
  return failure.empty() ? 0 : 1;
}

}  // namespace
}  // namespace cohort::sim

// With --seed=N replays one seed of the ten thousand instead of testing.
int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    absl::string_view text = argv[i];
    uint64_t seed = 0;
    if (absl::ConsumePrefix(&text, "--seed=") &&
        absl::SimpleAtoi(text, &seed)) {
      return cohort::sim::Replay(seed);
    }
  }
  return RUN_ALL_TESTS();
}
