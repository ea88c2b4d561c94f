#include "server/core/ledger/share_proposal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <optional>
#include <vector>

#include "common/permutation.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::Optional;

TEST(SpeedMeterTest, GivesTheLowerQuartileOfEnoughReports) {
  SpeedMeter meter;
  meter.Note(Rank(0), 0);
  for (int i = 1; i < 15; ++i) meter.Note(Rank(0), 15 - i);
  EXPECT_EQ(meter.Take({Rank(0)}), std::nullopt);
  meter.Note(Rank(0), 1000);
  EXPECT_EQ(meter.Take({Rank(0), Rank(1)}), std::nullopt);
  EXPECT_THAT(meter.Take({Rank(0)}), Optional(ElementsAre(4)));
  // They are used up, and none is ignored now.
  EXPECT_EQ(meter.Take({Rank(0)}), std::nullopt);
  for (int i = 0; i < 15; ++i) meter.Note(Rank(0), 5);
  EXPECT_THAT(meter.Take({Rank(0)}), Optional(ElementsAre(5)));
}

TEST(SpeedMeterTest, IsSlowerOnceMostReportsAre) {
  for (const int slow : {11, 12}) {
    SpeedMeter meter;
    for (int i = 0; i < 16; ++i) meter.Note(Rank(0), i <= slow ? 3 : 1);
    EXPECT_THAT(meter.Take({Rank(0)}),
                Optional(ElementsAre(slow < 12 ? 1 : 3)));
  }
}

TEST(EvenSharesTest, GoByTheSpeeds) {
  EXPECT_THAT(EvenShares({8, 8}, 0, {.batch_sizes_max = {16, 16}}, {1, 3}),
              Optional(ElementsAre(12, 4)));
}

TEST(EvenSharesTest, StayWithinTheWorkersMost) {
  EXPECT_THAT(EvenShares({8, 8}, 0, {.batch_sizes_max = {10, 16}}, {1, 3}),
              Optional(ElementsAre(10, 6)));
}

TEST(EvenSharesTest, LeaveAloneWhatIsNearlyEven) {
  EXPECT_EQ(EvenShares({64, 64}, 0, {.batch_sizes_max = {128, 128}}, {1, 1.2}),
            std::nullopt);
  EXPECT_NE(EvenShares({64, 64}, 0, {.batch_sizes_max = {128, 128}}, {1, 1.3}),
            std::nullopt);
  // One sample each cannot be divided.
  EXPECT_EQ(EvenShares({1, 1}, 0, {.batch_sizes_max = {2, 2}}, {1, 3}),
            std::nullopt);
}

TEST(EvenSharesTest, NeedEveryWorkersTime) {
  EXPECT_EQ(EvenShares({8, 8}, 0, {.batch_sizes_max = {16, 16}}, {1, 0}),
            std::nullopt);
}

// A cohort whose workers have a time a sample, a time a step, and noise.
class SimulatedCohort {
 public:
  explicit SimulatedCohort(uint64_t seed) : random_(seed) {
    const uint64_t workers = 2 + random_.Below(7);
    for (uint64_t i = 0; i < workers; ++i) {
      batch_sizes_.push_back(static_cast<int64_t>(8 + random_.Below(57)));
      rule_.batch_sizes_max.push_back(4 * batch_sizes_.back());
      a_sample_.push_back(1 + 2 * random_.Uniform());
      a_step_.push_back(4 * random_.Uniform());
    }
  }
  // All the same, but one worker that is slower by a factor.
  SimulatedCohort(uint64_t seed, size_t workers, double slower)
      : random_(seed),
        batch_sizes_(workers, 32),
        a_sample_(workers, 1),
        a_step_(workers, 0) {
    rule_.batch_sizes_max.assign(workers, 128);
    a_sample_.back() = slower;
  }

  void SlowDown(double factor) { a_sample_[0] *= factor; }

  // The time of a step without noise.
  double StepTime() const {
    const std::vector<double> seconds = Times();
    return *std::max_element(seconds.begin(), seconds.end());
  }
  // That of shares that are exactly even.
  double IdealTime() const {
    double low = 0;
    double high = StepTime();
    const int64_t samples =
        std::accumulate(batch_sizes_.begin(), batch_sizes_.end(), int64_t{0});
    for (int i = 0; i < 60; ++i) {
      const double time = (low + high) / 2;
      double done = 0;
      for (size_t k = 0; k < a_sample_.size(); ++k) {
        done += std::clamp((time - a_step_[k]) / a_sample_[k], 1.0,
                           static_cast<double>(rule_.batch_sizes_max[k]));
      }
      (done < static_cast<double>(samples) ? low : high) = time;
    }
    return high;
  }

  // Reports until a decision. True if the shares changed.
  bool Decide() {
    std::vector<Rank> ranks;
    for (size_t i = 0; i < batch_sizes_.size(); ++i) {
      ranks.emplace_back(static_cast<int32_t>(i));
    }
    std::optional<std::vector<double>> reported;
    while (!(reported = meter_.Take(ranks)).has_value()) {
      const std::vector<double> seconds = Times();
      for (size_t i = 0; i < seconds.size(); ++i) {
        meter_.Note(ranks[i], seconds[i] * Noise());
      }
    }
    const std::optional<std::vector<int64_t>> even =
        EvenShares(batch_sizes_, 0, rule_, *reported);
    if (!even.has_value()) return false;
    EXPECT_EQ(
        std::accumulate(even->begin(), even->end(), int64_t{0}),
        std::accumulate(batch_sizes_.begin(), batch_sizes_.end(), int64_t{0}));
    rule_.weights = *even;
    meter_.Reset();
    return true;
  }

 private:
  std::vector<double> Times() const {
    const std::vector<int64_t> samples =
        ShareStep(batch_sizes_, 0, rule_).samples;
    std::vector<double> seconds;
    for (size_t i = 0; i < samples.size(); ++i) {
      seconds.push_back(a_step_[i] +
                        a_sample_[i] * static_cast<double>(samples[i]));
    }
    return seconds;
  }
  // 3 % on the mean of a heartbeat, and a slow moment in 10.
  double Noise() {
    const double radius = std::sqrt(-2 * std::log(1 - random_.Uniform()));
    const double normal =
        radius * std::cos(2 * std::numbers::pi * random_.Uniform());
    return std::exp(0.03 * normal) * (random_.Below(10) == 0 ? 3 : 1);
  }

  SplitMix64 random_;
  SpeedMeter meter_;
  std::vector<int64_t> batch_sizes_;
  ShareRule rule_;
  std::vector<double> a_sample_;
  std::vector<double> a_step_;
};

// With one of two workers slowed down three times, even shares take half the
// time of equal ones. One change gets there, and at most one corrects it.
TEST(EvenSharesTest, OneSlowWorkerOfTwoSettlesAtHalfTheStep) {
  for (uint64_t seed = 1; seed <= 10000; ++seed) {
    SimulatedCohort cohort(seed, 2, 3);
    const double equal = cohort.StepTime();
    int changes = 0;
    for (int i = 0; i < 30; ++i) changes += cohort.Decide() ? 1 : 0;
    ASSERT_LE(cohort.StepTime(), 0.6 * equal) << seed;
    ASSERT_LE(changes, 2) << seed;
  }
}

// Any cohort settles near its ideal, and again after one worker's speed has
// changed. It does not oscillate: each change makes the step shorter, and there
// are at most three in 15 decisions.
TEST(EvenSharesTest, AnyCohortSettlesAndStays) {
  for (uint64_t seed = 1; seed <= 10000; ++seed) {
    SimulatedCohort cohort(seed);
    for (const double factor : {1.0, 3.0, 1.0 / 3}) {
      cohort.SlowDown(factor);
      int changes = 0;
      for (int i = 0; i < 15; ++i) {
        const double before = cohort.StepTime();
        if (!cohort.Decide()) continue;
        ASSERT_LT(cohort.StepTime(), before) << seed;
        ++changes;
      }
      ASSERT_LE(cohort.StepTime(), 1.3 * cohort.IdealTime()) << seed;
      ASSERT_LE(changes, 3) << seed;
    }
  }
}

}  // namespace
}  // namespace cohort
