// The moving average of weights and statistics, against float64.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "server/core/model/model_snapshot.h"
#include "server/core/statistics/statistics_sets.h"
#include "tests/core/fake_cohort.h"
#include "tests/core/float_values.h"
#include "tests/core/small_run.h"
#include "tests/kernels/reference/optimizer_oracle.h"

namespace cohort {
namespace {

using testing::ElementsAre;

constexpr double kDecay = 0.8;

double DecayAt(int64_t step) {
  const auto n = static_cast<double>(step);
  return std::min(kDecay, (1 + n) / (10 + n));
}

// An independent implementation.
class AverageReference {
 public:
  explicit AverageReference(const SmallRun& run) { average_ = Doubles(run); }

  void Follow(const SmallRun& run, int64_t step) {
    const double decay = DecayAt(step);
    const std::vector<std::vector<double>> now = Doubles(run);
    for (size_t k = 0; k < now.size(); ++k) {
      for (size_t i = 0; i < now[k].size(); ++i) {
        average_[k][i] = decay * average_[k][i] + (1 - decay) * now[k][i];
      }
    }
  }

  void ExpectHeld(const SmallRun& run) const {
    const ParameterValues seen = run.slot(&Slots::average);
    for (size_t k = 0; k < seen.size(); ++k) {
      if (!run.layout().parameters[k].trainable) continue;
      ASSERT_EQ(seen[k].size(), average_[k].size());
      for (size_t i = 0; i < seen[k].size(); ++i) {
        ASSERT_NEAR(seen[k][i], average_[k][i],
                    1e-6 * (1 + std::abs(average_[k][i])));
      }
    }
  }

 private:
  static std::vector<std::vector<double>> Doubles(const SmallRun& run) {
    std::vector<std::vector<double>> values;
    for (const std::vector<float>& one : run.weights()) {
      values.emplace_back(one.begin(), one.end());
    }
    return values;
  }

  std::vector<std::vector<double>> average_;
};

TEST(AverageTest, FollowsTheWeightsOfEveryOptimizer) {
  for (const kernels::OptimizerCase& c : kernels::OptimizerCases()) {
    SCOPED_TRACE(c.name());
    OptimizerOptions options{.kind = c.kind,
                             .numbers = c.numbers,
                             .ema_decay = kDecay,
                             .freeze = {"*[0:1]"}};
    SmallRun run(options, kernels::CpuBackend());
    const ParameterValues first = run.weights();
    AverageReference reference(run);
    reference.ExpectHeld(run);
    for (int64_t step = 0; step < 50; ++step) {
      SmallRun::Step how{.learning_rate = c.rate()};
      // A step without gradients of one parameter, and one that teaches
      // nothing.
      if (step == 3) how.absent = {0};
      if (step == 5) how.loss_weight = 0;
      const ParameterValues gradient =
          RandomValues(run.layout(), static_cast<uint64_t>(step), 1);
      ASSERT_FALSE(run.Apply({gradient}, how).has_value());
      if (step != 5) reference.Follow(run, step);
      reference.ExpectHeld(run);
    }
    EXPECT_NE(run.weights()[0], first[0]);
    // Frozen: bitwise identical.
    EXPECT_EQ(run.slot(&Slots::average)[0][0], first[0][0]);
  }
}

TEST(AverageTest, ComesAndGoesWithItsSetting) {
  SmallRun run({.kind = OptimizerKind::kMomentum}, kernels::CpuBackend());
  EXPECT_EQ(AverageOf(*run.snapshot()), nullptr);
  ASSERT_FALSE(run.Apply({RandomValues(run.layout(), 1, 1)}, {}).has_value());
  run.Change({.kind = OptimizerKind::kMomentum, .ema_decay = kDecay});
  EXPECT_EQ(run.slot(&Slots::average)[0], run.weights()[0]);
  EXPECT_NE(run.slot(&Slots::velocity)[0][0], 0);
  run.Change({.kind = OptimizerKind::kMomentum});
  EXPECT_THAT(run.slot(&Slots::average)[0], ElementsAre());
}

TEST(AverageTest, OptimizersFollowEachOtherWithIt) {
  SmallRun run({.kind = OptimizerKind::kMomentum, .ema_decay = kDecay},
               kernels::CpuBackend());
  const std::vector<SlotKind> held = SlotsHeld(run.snapshot()->slots);
  EXPECT_EQ(held.size(), 2);
  EXPECT_TRUE(CheckSlots(held, OptimizerKind::kNesterov).ok());
  EXPECT_FALSE(CheckSlots(held, OptimizerKind::kAdam).ok());
}

TEST(AverageTest, StatisticsFollowTheFirstKind) {
  PolicyOptions policy;
  policy.statistics = {StatisticsKind::kSync, StatisticsKind::kChief};
  const OptimizerOptions optimizer{.ema_decay = kDecay};
  const KeptStatistics kept(policy, kDecay, {{.name = "bn", .channels = 1}});
  StatisticsSets sets =
      StartSets(KindsKept(policy, optimizer), {{.mean = {0}, .variance = {1}}});
  ASSERT_EQ(sets.back().kind, StatisticsKind::kAverage);
  double mean = 0;
  double variance = 1;
  for (int64_t step = 0; step < 40; ++step) {
    const Moments moments{.count = 4,
                          .first = {static_cast<double>(step)},
                          .second = {static_cast<double>(3 * step)}};
    const RankMoments rank{
        .rank = Rank(0),
        .samples = 4,
        .calls = {{.layer = 0, .call = 0, .moments = moments}}};
    if (step % 2 == 0) {
      kept.ApplyStep({rank}, 4, Version(step), sets);
    } else {
      kept.ApplyPush(rank, Rank(0), 4, Version(step), sets);
    }
    const double decay = DecayAt(step);
    mean = decay * mean + (1 - decay) * sets[0].layers[0].mean[0];
    variance = decay * variance + (1 - decay) * sets[0].layers[0].variance[0];
    EXPECT_NEAR(sets[2].layers[0].mean[0], mean, 1e-12 * (1 + mean));
    EXPECT_NEAR(sets[2].layers[0].variance[0], variance, 1e-12 * variance);
    EXPECT_EQ(sets[2].layers[0].num_batches_tracked,
              sets[0].layers[0].num_batches_tracked);
  }
}

// ---- in a run

std::vector<float> AverageWeights(const FakeCohort& cohort) {
  return ValuesOf(AverageOf(*cohort.snapshot())->weights[0]);
}

TEST(AverageTest, TurnedOnInARunItStartsFromTheWeightsOfThatVersion) {
  StartedCohort cohort(Long(SmallSetup()));
  cohort.PushBoth(PushOf(0), PushOf(1));
  cohort.PushBoth(PushOf(0), PushOf(1));
  const std::vector<float> before = cohort.weights(0);
  ASSERT_TRUE(cohort.Change({{"ema_decay", "0.5"}}).ok());
  // It takes effect after the step in progress.
  cohort.PushBoth(PushOf(0), PushOf(1));
  const std::vector<float> start = cohort.weights(0);
  EXPECT_NE(start, before);
  EXPECT_EQ(AverageWeights(cohort), start);

  cohort.PushBoth(PushOf(0), PushOf(1));
  const std::vector<float> now = cohort.weights(0);
  const std::vector<float> average = AverageWeights(cohort);
  // 4 / 13 at version 3.
  for (size_t i = 0; i < now.size(); ++i) {
    EXPECT_NEAR(average[i], start[i] * 4 / 13 + now[i] * 9 / 13, 1e-6);
  }
  ASSERT_TRUE(cohort.Change({{"ema_decay", "0"}}).ok());
  cohort.PushBoth(PushOf(0), PushOf(1));
  EXPECT_EQ(AverageOf(*cohort.snapshot()), nullptr);
}

TEST(AverageTest, IsEvaluatedBesideTheWeights) {
  FakeSetup setup = SmallSetup();
  setup.options.optimizer.ema_decay = kDecay;
  StartedCohort cohort(setup);
  while (cohort.told(kRank0).kind == AssignmentKind::kTrain)
    cohort.PushBoth(PushOf(0), PushOf(1));
  cohort.EvaluateAll();
  const auto evaluated = cohort.All<effect::Evaluated>();
  ASSERT_FALSE(evaluated.empty());
  std::vector<StatisticsKind> kinds;
  for (const auto& one : evaluated.back().record.results) {
    kinds.push_back(one.statistics);
  }
  EXPECT_THAT(kinds,
              ElementsAre(StatisticsKind::kSync, StatisticsKind::kAverage));
}

}  // namespace
}  // namespace cohort
