#include "server/core/settings/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;

void ExpectRefused(const CoordinatorOptions& options, const std::string& part) {
  EXPECT_THAT(Validate(options), IsError(kInvalidArgument, part));
}

TEST(OptionsTest, DefaultsAreValid) {
  EXPECT_TRUE(Validate(CoordinatorOptions()).ok());
}

TEST(OptionsTest, SaysOptionSeenAndWanted) {
  ExpectRefused({.workers = 0}, "--workers: got 0, want 1 to 4096");
  ExpectRefused({.workers = 4097}, "--workers: got 4097, want 1 to 4096");
  ExpectRefused({.epochs = 0}, "--epochs: got 0, want 1 to 1048576");
  ExpectRefused({.partition_bytes = 3}, "--partition_bytes: got 3, want 4 to");
  ExpectRefused({.checkpoint_every = -1}, "--checkpoint_every: got -1");
  ExpectRefused({.lease = absl::ZeroDuration()},
                "--lease: got 0, want above 0");
  ExpectRefused({.reconnect_grace = absl::Seconds(-1)},
                "--reconnect_grace: got -1s");
  ExpectRefused({.step_deadline = absl::Seconds(-2)},
                "--step_deadline: got -2s");
  ExpectRefused({.replacement_deadline = absl::ZeroDuration()},
                "--replacement_deadline: got 0");
}

TEST(OptionsTest, AStepHasASampleForEachWorker) {
  ExpectRefused({.workers = 8, .policy = {.global_batch = 7}},
                "--global_batch: got 7, want sum, or at least 8");
  EXPECT_TRUE(Validate({.workers = 8, .policy = {.global_batch = 8}}).ok());
}

TEST(OptionsTest, SharesHaveAWeightForEachRank) {
  ExpectRefused({.workers = 3, .policy = {.shares = {.weights = {1, 3}}}},
                "--shares: got 1,3, want none, or 3 weights");
  EXPECT_TRUE(
      Validate({.workers = 2, .policy = {.shares = {.weights = {1, 3}}}}).ok());
  EXPECT_TRUE(
      Validate({.workers = 3, .policy = {.shares = {.automatic = true}}}).ok());
}

TEST(OptionsTest, SharesAreRefusedWhereResultsDependOnThem) {
  for (const auto& [policy, obstacle] :
       std::vector<std::pair<PolicyOptions, std::string>>{
           {{.aggregation = AggregationKind::kAsync}, "--aggregation=async"},
           {{.aggregation = AggregationKind::kBounded},
            "--aggregation=bounded"},
           {{.normalization = NormalizationKind::kLocal},
            "--normalization=local"},
           {{.normalization_group = 2}, "--normalization_group=2"},
           {{.pushes_min = 1}, "--min_pushes=1"},
           {{.mixture_variance = true}, "--bn_mixture_variance"},
           {{.statistics = {StatisticsKind::kSync, StatisticsKind::kChief}},
            "--bn_statistics=chief"}}) {
    PolicyOptions given = policy;
    given.shares.weights = {1, 3};
    ExpectRefused({.policy = given}, "none with " + obstacle);
    given.shares = {.automatic = true};
    ExpectRefused({.policy = given}, "--shares: got auto, want none");
  }
}

TEST(OptionsTest, LocalStepsAreRefusedWithWhatTakesThemForGradients) {
  const auto with = [](PolicyOptions policy, OptimizerOptions optimizer = {}) {
    policy.local_steps = 4;
    return CoordinatorOptions{.policy = policy, .optimizer = optimizer};
  };
  OptimizerOptions plain{.weight_decay = 0};
  EXPECT_TRUE(Validate(with({}, plain)).ok());
  EXPECT_TRUE(Validate(with({.pushes_min = 1}, plain)).ok());
  ExpectRefused(with({.aggregation = AggregationKind::kAsync}, plain),
                "--aggregation: got async, want sync");
  ExpectRefused(with({.aggregation = AggregationKind::kBounded}, plain),
                "--aggregation: got bounded, want sync");
  ExpectRefused(with({.normalization = NormalizationKind::kGlobal}, plain),
                "--normalization: got global");
  ExpectRefused(with({.normalization_group = 2}, plain),
                "--normalization_group: got 2");
  ExpectRefused(with({.statistics = {StatisticsKind::kChief}}, plain),
                "--bn_statistics: got chief");
  ExpectRefused(with({.shares = {.automatic = true}}, plain),
                "none with --local_steps=4");
  ExpectRefused(with({}), "--weight_decay: got 0.0005, want 0");
  ExpectRefused(with({}, {.weight_decay = 0, .clip_norm = 1}),
                "--clip_norm: got 1, want 0");
  for (const auto kind : {OptimizerKind::kLars, OptimizerKind::kLamb}) {
    ExpectRefused(with({}, {.kind = kind, .weight_decay = 0}),
                  "--optimizer: got la");
  }
  ExpectRefused(with({}, {.weight_decay = 0, .freeze = {"w[0]"}}),
                "--freeze: got w[0]");
}

TEST(OptionsTest, LocalStepsImplyTheNumbersOfAnOuterOptimizer) {
  CoordinatorOptions options{.policy = {.local_steps = 4}};
  options.given = {"momentum"};
  options.optimizer.numbers.momentum = 0.5;
  TakeOuterDefaults(options);
  EXPECT_EQ(options.optimizer.learning_rate, 0.7);
  EXPECT_EQ(options.optimizer.numbers.momentum, 0.5);
  EXPECT_EQ(options.optimizer.weight_decay, 0);
  EXPECT_EQ(Resolve(options.policy).normalization, NormalizationKind::kLocal);
  EXPECT_TRUE(Validate(options).ok());
}

TEST(OptionsTest, ACohortOfAnotherSizeForgetsAutomaticShares) {
  CoordinatorOptions options{
      .workers = 3,
      .policy = {.shares = {.automatic = true, .weights = {1, 3}}}};
  TakeImplied(options);
  EXPECT_EQ(options.policy.shares, ShareOptions{.automatic = true});
}

TEST(OptionsTest, RefusesNumbersThatTheOptimizerCannotUse) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  ExpectRefused({.optimizer = {.learning_rate = 0}},
                "--learning_rate: got 0, want above 0");
  ExpectRefused({.optimizer = {.learning_rate = nan}},
                "--learning_rate: got nan");
  ExpectRefused({.optimizer = {.learning_rate = 1e30}},
                "--learning_rate: got 1e+30");
  ExpectRefused({.optimizer = {.numbers = {.momentum = 1}}},
                "--momentum: got 1, want in [0, 1)");
  ExpectRefused({.optimizer = {.weight_decay = -1}},
                "--weight_decay: got -1, want 0");
  ExpectRefused({.optimizer = {.numbers = {.adam_beta1 = 1}}},
                "--adam_beta1: got 1, want in [0, 1)");
  ExpectRefused({.optimizer = {.numbers = {.adam_beta2 = -0.5}}},
                "--adam_beta2: got -0.5");
  ExpectRefused({.optimizer = {.numbers = {.adam_epsilon = 0}}},
                "--adam_epsilon: got 0, want 1e-30");
  ExpectRefused({.optimizer = {.numbers = {.lars_trust = nan}}},
                "--lars_trust: got nan");
  ExpectRefused({.optimizer = {.clip_norm = -1}},
                "--clip_norm: got -1, want 0 to 1e+30");
  ExpectRefused({.optimizer = {.freeze = {"w[0"}}}, "--freeze: got 'w[0'");
}

TEST(OptionsTest, RefusesSchedulesThatGoNowhere) {
  ExpectRefused({.optimizer = {.schedule = ScheduleKind::kStep}},
                "--step_epochs: got none");
  ExpectRefused({.optimizer = {.step_epochs = {30, 20}}},
                "--step_epochs: got 30,20");
  ExpectRefused({.optimizer = {.step_epochs = {0}}}, "--step_epochs: got 0,");
  ExpectRefused({.optimizer = {.step_gamma = 0}},
                "--step_gamma: got 0, want 1e-30");
  ExpectRefused({.optimizer = {.poly_power = -1}},
                "--poly_power: got -1, want 1e-30");
  ExpectRefused({.optimizer = {.warmup_epochs = -1}},
                "--warmup_epochs: got -1, want 0 or more");
  ExpectRefused({.optimizer = {.warmup_epochs = 2.5}, .epochs = 2},
                "--warmup_epochs: got 2.5, want 0 to 2");
  ExpectRefused({.optimizer = {.final_learning_rate = -1}},
                "--final_learning_rate: got -1");
}

TEST(OptionsTest, AsyncRefusesOnlyExplicitConflicts) {
  ExpectOk(Validate({.policy = {.aggregation = AggregationKind::kAsync}}));
  ExpectRefused({.policy = {.aggregation = AggregationKind::kAsync,
                            .normalization = NormalizationKind::kGlobal}},
                "--normalization: got global, want local or auto");
  ExpectRefused({.policy = {.aggregation = AggregationKind::kAsync,
                            .statistics = {StatisticsKind::kSync}}},
                "--bn_statistics: got sync, want async, chief, after");
}

TEST(OptionsTest, TheBatchesOwnStatisticsCannotBeExported) {
  ExpectRefused({.policy = {.statistics = {StatisticsKind::kBatch,
                                           StatisticsKind::kSync}}},
                "--bn_statistics: got batch,sync");
  ExpectOk(Validate({.policy = {.aggregation = AggregationKind::kAsync,
                                .statistics = {StatisticsKind::kAsync,
                                               StatisticsKind::kBatch}}}));
}

TEST(OptionsTest, GroupsNeedARendezvous) {
  ExpectOk(Validate({.workers = 4, .policy = {.normalization_group = 2}}));
  ExpectRefused({.policy = {.normalization_group = 1}},
                "--normalization_group: got 1, want 0");
  ExpectRefused({.policy = {.normalization_group = 3}},
                "--normalization_group: got 3, ");
  for (const PolicyOptions& local :
       {PolicyOptions{.normalization = NormalizationKind::kLocal,
       .normalization_group = 2},
        PolicyOptions{.aggregation = AggregationKind::kAsync,
        .normalization_group = 2}}) {
    ExpectRefused({.policy = local}, "--normalization_group: got 2, want 0");
  }
}

TEST(OptionsTest, RefusesToCollectNothing) {
  ExpectRefused({.policy = {.precise_batches = 0}},
                "--precise_batches: got 0, want 1 to");
}

TEST(OptionsTest, AutoFollowsTheAggregation) {
  const PolicyOptions sync = Resolve({});
  EXPECT_EQ(sync.normalization, NormalizationKind::kGlobal);
  EXPECT_THAT(sync.statistics, ElementsAre(StatisticsKind::kSync));
  const PolicyOptions async = Resolve({.aggregation = AggregationKind::kAsync});
  EXPECT_EQ(async.normalization, NormalizationKind::kLocal);
  EXPECT_THAT(async.statistics, ElementsAre(StatisticsKind::kAsync));
}

TEST(OptionsTest, ExplicitChoicesStay) {
  const PolicyOptions resolved =
      Resolve({.normalization = NormalizationKind::kLocal,
               .statistics = {StatisticsKind::kChief}});
  EXPECT_EQ(resolved.normalization, NormalizationKind::kLocal);
  EXPECT_THAT(resolved.statistics, ElementsAre(StatisticsKind::kChief));
}

TEST(OptionsTest, PolicyTextSaysWhatAutoMeans) {
  EXPECT_EQ(PolicyText({}), "sync, global normalisation, sync statistics");
  EXPECT_EQ(PolicyText({.aggregation = AggregationKind::kAsync}),
            "async, local normalisation, async statistics");
  EXPECT_EQ(PolicyText({.global_batch = 96}),
            "sync, 96 samples a step, global normalisation, sync statistics");
  EXPECT_EQ(
      PolicyText({.aggregation = AggregationKind::kAsync, .global_batch = 96}),
      "async, 96 samples in a push of each worker, local normalisation, "
      "async statistics");
  EXPECT_EQ(PolicyText({.normalization_group = 4}),
            "sync, global normalisation in groups of 4, sync statistics");
  EXPECT_EQ(PolicyText({.normalization = NormalizationKind::kLocal,
                        .statistics = {StatisticsKind::kChief}}),
            "sync, local normalisation, chief statistics");
  EXPECT_EQ(
      PolicyText({.statistics = {StatisticsKind::kSync, StatisticsKind::kAfter},
                  .mixture_variance = true}),
      "sync, global normalisation, sync and after statistics with mixture "
      "variance");
  EXPECT_EQ(PolicyText({.wire = ElementType::kBFloat16}),
            "sync, global normalisation, sync statistics, gradients and "
            "weights in bf16");
  EXPECT_EQ(PolicyText({.aggregation = AggregationKind::kAsync,
                        .wire = ElementType::kBFloat16}),
            "async, local normalisation, async statistics, gradients in bf16");
}

}  // namespace
}  // namespace cohort
