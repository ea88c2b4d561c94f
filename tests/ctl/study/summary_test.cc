#include "server/ctl/study/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/ctl/study/example_study.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

std::vector<FinishedRun> TwoSeeds() {
  return {Finished({.seed = 1, .measure = {{"sync", 90}, {"chief", 80}}}),
          Finished({.seed = 2, .measure = {{"sync", 92}, {"chief", 70}}})};
}

TEST(SummariseTest, ACellHoldsAllSeedsOfAPolicyAndKind) {
  const StudySummary summary = Summarise(TwoSeeds(), std::nullopt);
  ASSERT_EQ(summary.cells.size(), 3U);
  EXPECT_EQ(summary.measure, "accuracy");
  EXPECT_EQ(summary.cells[0].Text(), "sync, global, sync statistics");
  EXPECT_THAT(summary.cells[0].measure, ElementsAre(Pair(1, 90), Pair(2, 92)));
  EXPECT_THAT(summary.cells[1].gap, ElementsAre(Pair(1, 15), Pair(2, 25)));
  EXPECT_EQ(summary.cells[2].kind, kOwnBatch);
}

TEST(SummariseTest, TheTargetIsNineTenthsOfTheBestMean) {
  // The batch's own statistics, at 95, are no candidate.
  EXPECT_THAT(Summarise(TwoSeeds(), std::nullopt).target,
              ElementsAre(Pair("shuffled", 0.9 * 91)));
  EXPECT_THAT(Summarise(TwoSeeds(), 50).target,
              ElementsAre(Pair("shuffled", 50)));
}

TEST(SummariseTest, TimeToTheTargetNeedsAllSeeds) {
  const StudySummary summary = Summarise(TwoSeeds(), 75);
  EXPECT_THAT(summary.cells[0].seconds_to_target,
              ElementsAre(Pair(1, 10), Pair(2, 10)));
  // Seed 2 ends at 70.
  EXPECT_THAT(summary.cells[1].seconds_to_target, IsEmpty());
}

TEST(SummariseTest, StalenessOfSeedsAddsUp) {
  std::vector<FinishedRun> runs = TwoSeeds();
  runs[0].result.staleness = {{0, 1}, {3, 5}};
  runs[1].result.staleness = {{3, 2}};
  const StudySummary summary = Summarise(runs, std::nullopt);
  ASSERT_EQ(summary.staleness.size(), 1U);
  EXPECT_THAT(summary.staleness.begin()->second,
              ElementsAre(Pair(0, 1), Pair(3, 7)));
}

TEST(ByConditionTest, CellsOfOneConditionStandTogether) {
  const std::vector<FinishedRun> runs = {
      Finished({.batch_size = 1, .measure = {{"sync", 90}}}),
      Finished({.batch_size = 4, .measure = {{"sync", 91}}}),
      Finished({.normalization = "local",
                .batch_size = 1,
                .measure = {{"sync", 70}}})};
  const StudySummary summary = Summarise(runs, std::nullopt);
  const std::vector<ConditionCells> groups = ByCondition(summary);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].cells.size(), 4U);
  EXPECT_EQ(groups[1].condition.batch_size, 4);
}

}  // namespace
}  // namespace cohort
