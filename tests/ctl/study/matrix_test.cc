#include "server/ctl/study/matrix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

StudyAxes OneOfEach() {
  return {.aggregation = {"sync"},
          .normalization = {"global"},
          .kinds = {"sync", "chief"},
          .staleness = {"keep"},
          .order = {"shuffled"},
          .batch_size = {2},
          .workers = {4},
          .seed = {1}};
}

std::vector<std::string> NamesOf(const StudyPlan& plan) {
  std::vector<std::string> names;
  for (const StudyRun& run : plan.runs) names.push_back(run.Name());
  return names;
}

TEST(PlanStudyTest, KindsOfStatisticsShareARun) {
  const StudyPlan plan = PlanStudy(OneOfEach());
  ASSERT_THAT(NamesOf(plan), ElementsAre("sync-global-shuffled-w4-b2-s1"));
  EXPECT_THAT(plan.runs[0].kinds, ElementsAre("sync", "chief"));
  EXPECT_TRUE(plan.left_out.empty());
}

TEST(PlanStudyTest, GoesSeedBySeed) {
  StudyAxes axes = OneOfEach();
  axes.seed = {7, 3};
  axes.batch_size = {1, 16};
  EXPECT_THAT(NamesOf(PlanStudy(axes)),
              ElementsAre("sync-global-shuffled-w4-b1-s7",
                          "sync-global-shuffled-w4-b16-s7",
                          "sync-global-shuffled-w4-b1-s3",
                          "sync-global-shuffled-w4-b16-s3"));
}

TEST(PlanStudyTest, EncodingsAreCompared) {
  StudyAxes axes = OneOfEach();
  axes.wire = {"float32", "bf16"};
  const StudyPlan plan = PlanStudy(axes);
  ASSERT_THAT(NamesOf(plan), ElementsAre("sync-global-shuffled-w4-b2-s1",
                                         "sync-global-bf16-shuffled-w4-b2-s1"));
  EXPECT_EQ(plan.runs[0].policy.Text(), "sync, global");
  EXPECT_EQ(plan.runs[1].policy.Text(), "sync, global, bf16");
}

TEST(PlanStudyTest, WhatNeedsStepsIsLeftOutWithoutThem) {
  StudyAxes axes = OneOfEach();
  axes.aggregation = {"async"};
  axes.normalization = {"global", "local"};
  const StudyPlan plan = PlanStudy(axes);
  ASSERT_THAT(NamesOf(plan), ElementsAre("async-keep-local-shuffled-w4-b2-s1"));
  EXPECT_THAT(plan.runs[0].kinds, ElementsAre("chief"));
  EXPECT_THAT(plan.left_out,
              ElementsAre(HasSubstr("global normalisation with async"),
                          HasSubstr("sync statistics with async")));
}

TEST(PlanStudyTest, ARunWithoutStatisticsIsNone) {
  StudyAxes axes = OneOfEach();
  axes.aggregation = {"bounded"};
  axes.normalization = {"local"};
  axes.kinds = {"sync"};
  const StudyPlan plan = PlanStudy(axes);
  EXPECT_TRUE(plan.runs.empty());
  EXPECT_EQ(plan.left_out.size(), 1U);
}

TEST(PlanStudyTest, StalenessRulesMeanNothingUnderSync) {
  StudyAxes axes = OneOfEach();
  axes.aggregation = {"sync", "async"};
  axes.normalization = {"local"};
  axes.staleness = {"keep", "scale"};
  EXPECT_THAT(NamesOf(PlanStudy(axes)),
              ElementsAre("sync-local-shuffled-w4-b2-s1",
                          "async-keep-local-shuffled-w4-b2-s1",
                          "async-scale-local-shuffled-w4-b2-s1"));
}

TEST(PlanStudyTest, OneWorkerNormalisesAloneEitherWay) {
  StudyAxes axes = OneOfEach();
  axes.normalization = {"global", "local"};
  axes.workers = {1};
  const StudyPlan plan = PlanStudy(axes);
  EXPECT_THAT(NamesOf(plan), ElementsAre("sync-local-shuffled-w1-b2-s1"));
  EXPECT_THAT(plan.left_out, ElementsAre(HasSubstr("one worker")));
}

// The issue's own matrix.
TEST(PlanStudyTest, NamesTellRunsApart) {
  StudyAxes axes;
  axes.order = {"shuffled", "sorted"};
  const std::vector<std::string> names = NamesOf(PlanStudy(axes));
  // Three policies, four batch sizes, two orders, three seeds.
  EXPECT_EQ(names.size(), 72U);
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), 72U);
}

TEST(ParseTest, ListsAreReadInTheirOrder) {
  EXPECT_THAT(*ParseNumbers("batch_size", "4,1"), ElementsAre(4, 1));
  EXPECT_THAT(*ParseWords("order", "sorted,shuffled", {"shuffled", "sorted"}),
              ElementsAre("sorted", "shuffled"));
}

TEST(ParseTest, WhatIsWrongIsNamed) {
  for (const char* text : {"", "0", "1,", "1,1", "-2", "1.5", "x"}) {
    EXPECT_THAT(ParseNumbers("seed", text),
                IsError(kInvalidArgument, "--seed: got '"));
  }
  EXPECT_THAT(ParseWords("order", "sortd", {"shuffled", "sorted"}),
              IsError(kInvalidArgument, "--order: got 'sortd'"));
  EXPECT_FALSE(ParseWords("order", "sorted,sorted", {"sorted"}).ok());
}

}  // namespace
}  // namespace cohort
