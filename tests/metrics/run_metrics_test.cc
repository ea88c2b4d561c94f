#include "server/metrics/run_metrics.h"

#include <string>

#include "common/ops/metrics_page.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/metrics/made_up_figures.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string PageOf(const RunFigures& figures) {
  return MetricsPage({[&figures] { return RunFamilies(figures); }});
}

// Rates and alerts need the zero before the first event.
TEST(RunMetricsTest, KnownLabelsAreThereFromTheStart) {
  const std::string page = PageOf(EmptyFigures(2));
  for (const char* line :
       {"cohort_run_active{run=\"run1\"} 1\n",
        "cohort_pushes_total{result=\"applied\"} 0\n",
        "cohort_pushes_total{result=\"fenced\"} 0\n",
        "cohort_worker_evictions_total{reason=\"lease\"} 0\n",
        "cohort_checkpoint_failures_total{reason=\"disk_full\"} 0\n",
        "cohort_bn_statistics_total{action=\"damped\"} 0\n",
        "cohort_barrier_last_arrival_total{worker=\"1\"} 0\n",
        "cohort_workers{state=\"vacant\"} 2\n",
        "cohort_workers{state=\"computing\"} 0\n",
        "cohort_barrier_wait_seconds_count 0\n",
        "cohort_staleness_bound_versions 0\n",
        "cohort_policy_info{run=\"run1\",policy=\"sync\",normalization="
        "\"global\",bn_statistics=\"sync\",staleness_rule=\"keep\"} 1\n"}) {
    EXPECT_THAT(page, HasSubstr(line));
  }
  // Unknown values are absent rather than wrong.
  for (const char* name : {"cohort_mean_iou_ratio", "cohort_gradient_norm",
                           "cohort_loss", "cohort_storage_free_bytes"}) {
    EXPECT_THAT(page, Not(HasSubstr(name)));
  }
}

TEST(RunMetricsTest, NumbersAreThoseOfTheFigures) {
  const std::string page = PageOf(BusyFigures(2));
  for (const char* line :
       {"cohort_model_version{run=\"run1\"} 40\n",
        // 12 applied; 2 of them were damped.
        "cohort_pushes_total{result=\"applied\"} 10\n",
        "cohort_pushes_total{result=\"damped\"} 2\n",
        "cohort_push_staleness_versions_bucket{le=\"1\"} 9\n",
        "cohort_push_staleness_versions_sum 13\n",
        "cohort_barrier_last_arrival_total{worker=\"1\"} 9\n",
        "cohort_worker_last_seen_timestamp_seconds{worker=\"0\"} 999.5\n",
        "cohort_bn_drift_ratio{layer=\"bn1\"} 0.125\n",
        "cohort_barrier_wait_seconds_bucket{le=\"0.002\"} 0\n",
        "cohort_barrier_wait_seconds_bucket{le=\"0.004\"} 1\n",
        "cohort_loss{split=\"train\"} 0.5\n",
        "cohort_accuracy_ratio{split=\"test\"} 0.75\n"}) {
    EXPECT_THAT(page, HasSubstr(line));
  }
}

TEST(RunMetricsTest, OnlyTheFirstRanksHaveSeries) {
  const std::string page = PageOf(BusyFigures(1000));
  EXPECT_THAT(page, HasSubstr("cohort_worker_lag_versions{worker=\"255\"}"));
  EXPECT_THAT(page, Not(HasSubstr("{worker=\"256\"}")));
  EXPECT_THAT(page, HasSubstr("cohort_workers_expected 1000\n"));
}

TEST(RunMetricsTest, ShardsHaveSeriesOnlyWhereThereAreSeveral) {
  RunFigures figures = BusyFigures(2);
  std::string page = PageOf(figures);
  EXPECT_THAT(page, HasSubstr("cohort_shards 1\n"));
  EXPECT_THAT(page, Not(HasSubstr("shard=")));
  figures.shards = {{.shard = 0, .partitions = 2, .weights_bytes = 80},
                    {.shard = 1,
                     .connected = false,
                     .losses = 2,
                     .generation = 9,
                     .prepare_seconds = 0.5,
                     .prepare_seconds_total = 4,
                     .holdup_seconds_total = 3}};
  page = PageOf(figures);
  for (const char* line :
       {"cohort_shards 2\n", "cohort_shard_connected{shard=\"0\"} 1\n",
        "cohort_shard_connected{shard=\"1\"} 0\n",
        "cohort_shard_losses_total{shard=\"0\"} 0\n",
        "cohort_shard_losses_total{shard=\"1\"} 2\n",
        "cohort_shard_generation{shard=\"1\"} 9\n",
        "cohort_shard_partitions{shard=\"0\"} 2\n",
        "cohort_shard_weights_bytes{shard=\"0\"} 80\n",
        "cohort_shard_prepare_seconds{shard=\"1\"} 0.5\n",
        "cohort_shard_prepare_seconds_total{shard=\"1\"} 4\n",
        "cohort_shard_holdup_seconds_total{shard=\"1\"} 3\n"}) {
    EXPECT_THAT(page, HasSubstr(line));
  }
  EXPECT_THAT(page,
              Not(HasSubstr("cohort_shard_prepare_seconds{shard=\"0\"}")));
}

TEST(RunMetricsTest, TheBoundFollowsTheRule) {
  RunFigures figures = BusyFigures(3);
  figures.policy_options.aggregation = AggregationKind::kAsync;
  EXPECT_EQ(StalenessBound(figures), std::nullopt);
  figures.policy_options.staleness.rule = StalenessRule::kDrop;
  EXPECT_EQ(StalenessBound(figures), 16);
  figures.policy_options.staleness.rule = StalenessRule::kScale;
  EXPECT_EQ(StalenessBound(figures), 2);
}

}  // namespace
}  // namespace cohort
