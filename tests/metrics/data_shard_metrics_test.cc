#include "server/metrics/data_shard_metrics.h"

#include <string>

#include "common/ops/metrics_page.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string PageOf(const DataShardFigures& figures) {
  return MetricsPage({[&figures] { return DataShardFamilies(figures); }});
}

TEST(DataShardMetricsTest, WithoutARunThereIsNeitherRunNorVersion) {
  const std::string page = PageOf({});
  EXPECT_THAT(page, HasSubstr("cohort_data_shard_connected 0\n"));
  EXPECT_THAT(page, HasSubstr("cohort_data_shard_connections_total 0\n"));
  EXPECT_THAT(page, HasSubstr("cohort_apply_duration_seconds_count 0\n"));
  EXPECT_THAT(page, Not(HasSubstr("cohort_data_shard_info")));
  EXPECT_THAT(page, Not(HasSubstr("cohort_data_shard_version")));
}

TEST(DataShardMetricsTest, NumbersAreThoseOfTheFigures) {
  DataShardFigures figures;
  figures.run_id = "3f2a";
  figures.run_name = "nightly";
  figures.shard = 2;
  figures.connected = true;
  figures.generation = 9;
  figures.connections = 3;
  figures.version = 40;
  figures.partitions = 5;
  figures.weights_bytes = 4000;
  figures.optimizer_bytes = 8000;
  figures.service.inflight_bytes = 64;
  figures.service.push_bytes_bfloat16 = 32;
  figures.service.pull_bytes_float32 = 128;
  figures.fold_seconds.Add(0.25);
  figures.memory_limit_bytes = 1 << 20;
  const std::string page = PageOf(figures);
  for (const char* line :
       {"cohort_data_shard_info{run=\"3f2a\",run_name=\"nightly\",shard=\"2\"} "
        "1\n",
        "cohort_data_shard_connected 1\n",
        "cohort_data_shard_connections_total 3\n",
        "cohort_data_shard_generation 9\n", "cohort_data_shard_version 40\n",
        "cohort_data_shard_partitions 5\n",
        "cohort_state_bytes{kind=\"weights\"} 4000\n",
        "cohort_state_bytes{kind=\"optimizer\"} 8000\n",
        "cohort_inflight_bytes 64\n",
        "cohort_push_bytes_total{encoding=\"float32\"} 0\n",
        "cohort_push_bytes_total{encoding=\"bfloat16\"} 32\n",
        "cohort_pull_bytes_total{encoding=\"float32\"} 128\n",
        "cohort_apply_duration_seconds_sum 0.25\n",
        "cohort_memory_limit_bytes 1048576\n"}) {
    EXPECT_THAT(page, HasSubstr(line));
  }
}

}  // namespace
}  // namespace cohort
