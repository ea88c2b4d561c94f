#include "server/core/settings/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using testing::HasSubstr;

std::string Refusal(const CoordinatorOptions& options) {
  return std::string(Validate(options).message());
}

TEST(OptionsTest, DefaultsAreValid) {
  EXPECT_TRUE(Validate(CoordinatorOptions()).ok());
}

TEST(OptionsTest, SaysOptionSeenAndWanted) {
  EXPECT_EQ(Refusal({.workers = 0}), "--workers: got 0, want 1 to 4096");
  EXPECT_EQ(Refusal({.workers = 4097}), "--workers: got 4097, want 1 to 4096");
  EXPECT_EQ(Refusal({.epochs = 0}), "--epochs: got 0, want 1 to 1048576");
  EXPECT_EQ(Refusal({.partition_bytes = 3}),
            "--partition_bytes: got 3, want 4 to 1073741824");
  EXPECT_EQ(Refusal({.checkpoint_every = -1}),
            "--checkpoint_every: got -1, want 0 or more");
  EXPECT_EQ(Refusal({.lease = absl::ZeroDuration()}),
            "--lease: got 0, want above 0");
  EXPECT_EQ(Refusal({.reconnect_grace = absl::Seconds(-1)}),
            "--reconnect_grace: got -1s, want 0 or more");
  EXPECT_EQ(Refusal({.step_deadline = absl::Seconds(-2)}),
            "--step_deadline: got -2s, want above 0");
  EXPECT_EQ(Refusal({.replacement_deadline = absl::ZeroDuration()}),
            "--replacement_deadline: got 0, want above 0");
}

TEST(OptionsTest, AStepHasASampleForEachWorker) {
  EXPECT_EQ(Refusal({.workers = 8, .policy = {.global_batch = 7}}),
            "--global_batch: got 7, want sum, or at least 8: a sample for each "
            "worker (--workers)");
  EXPECT_TRUE(Validate({.workers = 8, .policy = {.global_batch = 8}}).ok());
}

TEST(OptionsTest, RefusesNumbersThatTheOptimizerCannotUse) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(Refusal({.optimizer = {.learning_rate = 0}}),
            "--learning_rate: got 0, want above 0, up to 1000");
  EXPECT_EQ(Refusal({.optimizer = {.learning_rate = nan}}),
            "--learning_rate: got nan, want above 0, up to 1000");
  EXPECT_EQ(Refusal({.optimizer = {.learning_rate = 1e30}}),
            "--learning_rate: got 1e+30, want above 0, up to 1000");
  EXPECT_EQ(Refusal({.optimizer = {.numbers = {.momentum = 1}}}),
            "--momentum: got 1, want in [0, 1)");
  EXPECT_EQ(Refusal({.optimizer = {.weight_decay = -1}}),
            "--weight_decay: got -1, want 0 to 1000000");
  EXPECT_EQ(Refusal({.optimizer = {.numbers = {.adam_beta1 = 1}}}),
            "--adam_beta1: got 1, want in [0, 1)");
  EXPECT_EQ(Refusal({.optimizer = {.numbers = {.adam_beta2 = -0.5}}}),
            "--adam_beta2: got -0.5, want in [0, 1)");
  EXPECT_EQ(Refusal({.optimizer = {.numbers = {.adam_epsilon = 0}}}),
            "--adam_epsilon: got 0, want 1e-30 to 1e+30");
  EXPECT_EQ(Refusal({.optimizer = {.numbers = {.lars_trust = nan}}}),
            "--lars_trust: got nan, want 1e-30 to 1000000");
  EXPECT_EQ(Refusal({.optimizer = {.clip_norm = -1}}),
            "--clip_norm: got -1, want 0 to 1e+30");
  EXPECT_THAT(Refusal({.optimizer = {.freeze = {"w[0"}}}),
              HasSubstr("--freeze: got 'w[0'"));
}

TEST(OptionsTest, RefusesSchedulesThatGoNowhere) {
  EXPECT_EQ(Refusal({.optimizer = {.schedule = ScheduleKind::kStep}}),
            "--step_epochs: got none, want at least one milestone with "
            "--schedule=step");
  EXPECT_EQ(Refusal({.optimizer = {.step_epochs = {30, 20}}}),
            "--step_epochs: got 30,20, want epochs above 0 in ascending order");
  EXPECT_THAT(Refusal({.optimizer = {.step_epochs = {0}}}),
              HasSubstr("--step_epochs: got 0,"));
  EXPECT_EQ(Refusal({.optimizer = {.step_gamma = 0}}),
            "--step_gamma: got 0, want 1e-30 to 1000000");
  EXPECT_EQ(Refusal({.optimizer = {.poly_power = -1}}),
            "--poly_power: got -1, want 1e-30 to 1000000");
  EXPECT_EQ(Refusal({.optimizer = {.warmup_epochs = -1}}),
            "--warmup_epochs: got -1, want 0 or more");
  EXPECT_EQ(Refusal({.optimizer = {.warmup_epochs = 2.5}, .epochs = 2}),
            "--warmup_epochs: got 2.5, want 0 to 2 (--epochs)");
  EXPECT_EQ(Refusal({.optimizer = {.final_learning_rate = -1}}),
            "--final_learning_rate: got -1, want 0 to 1000");
}

TEST(OptionsTest, AsyncRefusesOnlyExplicitConflicts) {
  ExpectOk(Validate({.policy = {.aggregation = AggregationKind::kAsync}}));
  EXPECT_THAT(
      Refusal({.policy = {.aggregation = AggregationKind::kAsync,
                          .normalization = NormalizationKind::kGlobal}}),
      HasSubstr("--normalization: got global, want local or auto with "
                "--aggregation=async"));
  EXPECT_THAT(Refusal({.policy = {.aggregation = AggregationKind::kAsync,
                                  .statistics = {StatisticsKind::kSync}}}),
              HasSubstr("--bn_statistics: got sync, want async, chief, after "
                        "or auto with --aggregation=async"));
}

TEST(OptionsTest, TheBatchesOwnStatisticsCannotBeExported) {
  EXPECT_THAT(Refusal({.policy = {.statistics = {StatisticsKind::kBatch,
                                                 StatisticsKind::kSync}}}),
              HasSubstr("--bn_statistics: got batch,sync, want another kind "
                        "first"));
  ExpectOk(Validate({.policy = {.aggregation = AggregationKind::kAsync,
                                .statistics = {StatisticsKind::kAsync,
                                               StatisticsKind::kBatch}}}));
}

TEST(OptionsTest, GroupsNeedARendezvous) {
  ExpectOk(Validate({.workers = 4, .policy = {.normalization_group = 2}}));
  EXPECT_THAT(Refusal({.policy = {.normalization_group = 1}}),
              HasSubstr("--normalization_group: got 1, want 0 (all workers) or "
                        "2 to 2 (--workers)"));
  EXPECT_THAT(Refusal({.policy = {.normalization_group = 3}}),
              HasSubstr("--normalization_group: got 3, "));
  for (const PolicyOptions& local :
       {PolicyOptions{.normalization = NormalizationKind::kLocal,
       .normalization_group = 2},
        PolicyOptions{.aggregation = AggregationKind::kAsync,
        .normalization_group = 2}}) {
    EXPECT_THAT(Refusal({.policy = local}),
                HasSubstr("--normalization_group: got 2, want 0 with local "
                          "normalisation"));
  }
}

TEST(OptionsTest, RefusesToCollectNothing) {
  EXPECT_EQ(Refusal({.policy = {.precise_batches = 0}}),
            "--precise_batches: got 0, want 1 to 262144");
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
