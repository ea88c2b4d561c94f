#include "server/metrics/run_stats.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace cohort {
namespace {

class StoppedClock final : public Clock {
 public:
  Instant Now() const override { return now; }
  Instant now;
};

TEST(BucketCountsTest, CountsUpToEachBound) {
  BucketCounts counts({1, 2, 4});
  for (double value : {0.5, 1.0, 3.0, 9.0}) counts.Add(value);
  counts.Add(2, 10);
  const auto metric = counts.ToMetric();
  ASSERT_EQ(metric.bucket.size(), 4);
  EXPECT_EQ(metric.bucket[0].cumulative_count, 2);
  EXPECT_EQ(metric.bucket[1].cumulative_count, 12);
  EXPECT_EQ(metric.bucket[2].cumulative_count, 13);
  EXPECT_EQ(metric.bucket[3].cumulative_count, 14);
  EXPECT_EQ(metric.sample_count, 14);
  EXPECT_DOUBLE_EQ(metric.sample_sum, 33.5);
  EXPECT_EQ(BucketCounts({1}).mean(), 0);
}

TEST(RunStatsTest, AddsUpCommits) {
  StoppedClock clock;
  RunStats stats(clock);
  CommitObservation seen{
      .barrier_waits = {absl::Milliseconds(30), absl::ZeroDuration()},
      .last_arrival = Rank(1)};
  seen.forward = {.waits = {absl::Milliseconds(2)},
                  .last = {Rank(0), Rank(0), Rank(1)}};
  seen.drift = {{.layer = 3, .ratio = 0.5}};
  stats.Committed({.version = Version(1),
                   .samples = 4,
                   .commit_samples = 4,
                   .loss = 2,
                   .accuracy = 0.5,
                   .loss_weight = 4,
                   .labels = 4},
                  seen);
  seen.drift = {{.layer = 3, .ratio = 0.25}};
  stats.Committed({.version = Version(2),
                   .samples = 8,
                   .commit_samples = 4,
                   .gradient_norm = 3,
                   .skipped = true},
                  seen);
  const RunSums sums = stats.sums();
  EXPECT_EQ(sums.samples, 8);
  // A skipped commit has no loss.
  EXPECT_EQ(sums.train_loss, 2);
  EXPECT_EQ(sums.train_accuracy, 0.5);
  EXPECT_EQ(sums.gradient_norm, 3);
  EXPECT_EQ(sums.barrier_wait_seconds.count(), 4);
  EXPECT_DOUBLE_EQ(sums.barrier_wait_seconds.sum(), 0.06);
  EXPECT_EQ(sums.last_arrivals.at(Rank(1)), 2);
  EXPECT_EQ(sums.rendezvous_last_arrivals.at(Rank(0)), 4);
  EXPECT_EQ(sums.forward_wait_seconds.count(), 2);
  EXPECT_EQ(sums.drift.at(3), 0.25);
  EXPECT_EQ(sums.curve.Points().size(), 1);
}

TEST(RunStatsTest, GoesOnWhereEarlierProcessesWere) {
  StoppedClock clock;
  RunStats stats(clock);
  EvaluationPoint point{.version = 60, .seconds = 9, .statistics = "sync"};
  stats.Continue({.elapsed = absl::Seconds(12),
                  .training = {{.version = 50, .samples = 200, .seconds = 8},
                               {.version = 60, .samples = 240, .seconds = 10}},
                  .evaluations = {point},
                  .test = point});
  clock.now += absl::Seconds(3);
  stats.Committed({.version = Version(61), .samples = 244}, {});
  // Repeated, because it was not in the checkpoint.
  stats.Evaluated({.version = Version(60), .results = {EvaluationResult()}});
  const RunSums sums = stats.sums();
  const std::vector<TrainingPoint> points = sums.curve.Points();
  ASSERT_EQ(points.size(), 3u);
  EXPECT_EQ(points[0].version, 50);
  EXPECT_EQ(points[2].seconds, 15);
  ASSERT_EQ(sums.evaluations.size(), 1u);
  EXPECT_EQ(sums.evaluations[0].seconds, 15);
  // Counts this process only.
  EXPECT_EQ(stats.uptime(), absl::Seconds(3));
}

TEST(RunStatsTest, KeepsTheNewestEvents) {
  StoppedClock clock;
  RunStats stats(clock);
  for (size_t i = 0; i < kEventsMax + 2; ++i) {
    clock.now += absl::Seconds(1);
    stats.Happened({.text = absl::StrCat("event ", i)});
  }
  const RunSums sums = stats.sums();
  ASSERT_EQ(sums.events.size(), kEventsMax);
  EXPECT_EQ(sums.events.front().log.text, "event 2");
  EXPECT_EQ(sums.now - sums.events.front().at, absl::Seconds(63));
}

TEST(RunStatsTest, EventsOfTheServerBeforeKeepTheirTimes) {
  StoppedClock clock;
  clock.now = absl::Seconds(100);
  RunStats before(clock);
  clock.now = absl::Seconds(107);
  before.Happened({.text = "a shard is lost"});
  clock.now = absl::Seconds(110);
  RunStats stats(clock);
  stats.ContinueEvents(before.sums().events);
  clock.now = absl::Seconds(112);
  stats.Happened({.text = "it is back"});
  const RunSums sums = stats.sums();
  ASSERT_EQ(sums.events.size(), 2u);
  EXPECT_EQ(sums.events[0].log.text, "a shard is lost");
  EXPECT_EQ(sums.now - sums.events[0].at, absl::Seconds(5));
  EXPECT_EQ(sums.now - sums.events[1].at, absl::ZeroDuration());
}

TEST(RunStatsTest, KeepsTheNewestEvaluationOfAnEpochsEnd) {
  StoppedClock clock;
  RunStats stats(clock);
  EvaluationRecord record{.version = Version(10), .epochs = 1};
  record.results = {
      {.statistics = StatisticsKind::kSync,
       .sums = {.loss_sum = 6, .loss_weight = 4, .correct = 3, .labels = 4}},
      {.statistics = StatisticsKind::kChief}};
  clock.now = absl::Seconds(5);
  stats.Evaluated(record);
  record.on_request = true;
  record.version = Version(12);
  stats.Evaluated(record);
  const RunSums sums = stats.sums();
  ASSERT_TRUE(sums.test.has_value());
  EXPECT_EQ(sums.test->version, 10);
  EXPECT_EQ(sums.test->seconds, 5);
  EXPECT_EQ(sums.test->loss, 1.5);
  EXPECT_EQ(sums.test->accuracy, 0.75);
  EXPECT_EQ(sums.test->statistics, "sync");
  EXPECT_EQ(sums.evaluations.size(), 4);
}

}  // namespace
}  // namespace cohort
