#include "server/ctl/study/recommendation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "tests/ctl/study/example_study.h"

namespace cohort {
namespace {

using testing::HasSubstr;

struct Advised {
  StudySummary summary;
  Recommendation recommendation;
  std::string words;

  explicit Advised(const std::vector<FinishedRun>& runs)
      : summary(Summarise(runs, std::nullopt)),
        recommendation(Recommend(summary)),
        words(absl::StrJoin(InWords(summary, recommendation), "\n")) {}

  const Advice& first() const { return recommendation.by_condition.front(); }
};

TEST(RecommendTest, TheBestOfOneRunIsTakenIfOthersAreWorse) {
  const Advised advised(
      {Finished({.seed = 1, .measure = {{"sync", 80}, {"after", 90}}}),
       Finished({.seed = 2, .measure = {{"sync", 81}, {"after", 91.5}}}),
       Finished({.seed = 3, .measure = {{"sync", 82}, {"after", 92}}})});
  EXPECT_EQ(advised.first().chosen->kind, "after");
  EXPECT_THAT(advised.words,
              HasSubstr("Worse than the best: sync, global, sync "
                        "statistics (10.2 ± 0.7 points)"));
}

TEST(RecommendTest, EqualKindsOfOneRunAreChosenByTheirNeeds) {
  // Chief is best by a small difference that the seeds do not agree on.
  const Advised advised(
      {Finished(
           {.seed = 1,
            .measure = {{"chief", 90.3}, {"after", 90.2}, {"sync", 90.0}}}),
       Finished(
           {.seed = 2,
            .measure = {{"chief", 90.0}, {"after", 90.1}, {"sync", 90.1}}})});
  EXPECT_EQ(advised.first().best->kind, "chief");
  EXPECT_EQ(advised.first().chosen->kind, "sync");
  // Sync is also the overall choice, although chief is closer to the best.
  EXPECT_EQ(advised.recommendation.overall.front().kind, "sync");
  EXPECT_THAT(advised.words, HasSubstr("as good as the best mean, sync, global "
                                       "normalisation, chief statistics"));
  EXPECT_THAT(advised.words,
              HasSubstr("Tied with the best: sync, global, after statistics"));
}

TEST(RecommendTest, TheEncodingIsNamed) {
  FinishedRun run = Finished({.measure = {{"sync", 90.0}}});
  run.run.policy.wire = "bf16";
  const Advised advised({run});
  EXPECT_THAT(advised.words,
              HasSubstr("sync, global normalisation, sync statistics, bf16"));
}

TEST(RecommendTest, AmongEqualPoliciesTheFasterIsTaken) {
  const Advised advised(
      {Finished({.seed = 1, .seconds = 20, .measure = {{"sync", 90.0}}}),
       Finished({.seed = 2, .seconds = 20, .measure = {{"sync", 90.4}}}),
       Finished({.normalization = "local",
                 .seed = 1,
                 .seconds = 8,
                 .measure = {{"sync", 90.2}}}),
       Finished({.normalization = "local",
                 .seed = 2,
                 .seconds = 8,
                 .measure = {{"sync", 89.9}}})});
  EXPECT_EQ(advised.first().best->policy.normalization, "global");
  EXPECT_EQ(advised.first().chosen->policy.normalization, "local");
  EXPECT_EQ(advised.recommendation.overall.front().as_good, 1);
}

TEST(RecommendTest, NoiseIsNoExcuseForMoreThanAPoint) {
  const Advised advised(
      {Finished({.seed = 1, .seconds = 20, .measure = {{"sync", 90}}}),
       Finished({.seed = 2, .seconds = 20, .measure = {{"sync", 90}}}),
       Finished({.normalization = "local",
                 .seed = 1,
                 .seconds = 8,
                 .measure = {{"sync", 89}}}),
       Finished({.normalization = "local",
                 .seed = 2,
                 .seconds = 8,
                 .measure = {{"sync", 80}}})});
  EXPECT_EQ(advised.first().chosen->policy.normalization, "global");
  EXPECT_THAT(advised.words,
              HasSubstr("more seeds would decide): sync, local"));
}

TEST(RecommendTest, OneSeedHasNoIntervalAndSaysSo) {
  const Advised advised({Finished({.measure = {{"sync", 90}, {"chief", 60}}})});
  EXPECT_EQ(advised.first().chosen->kind, "sync");
  EXPECT_THAT(advised.words, HasSubstr("(30.0 points (one seed))"));
}

TEST(RecommendTest, TheOverallChoiceIsGoodUnderMostConditions) {
  const Advised advised(
      {Finished({.batch_size = 1, .measure = {{"sync", 90}, {"after", 80}}}),
       Finished({.batch_size = 4, .measure = {{"sync", 90}, {"after", 80}}}),
       Finished({.batch_size = 16, .measure = {{"sync", 80}, {"after", 90}}}),
       // Run under one condition only, so it is no candidate over all
       // conditions.
       Finished({.normalization = "local",
                 .batch_size = 1,
                 .measure = {{"sync", 99}}})});
  const std::vector<OverallStanding>& overall = advised.recommendation.overall;
  ASSERT_EQ(overall.size(), 2U);
  EXPECT_EQ(overall[0].kind, "sync");
  EXPECT_EQ(overall[0].conditions, 3);
  EXPECT_EQ(overall[0].as_good, 1);
  EXPECT_NEAR(overall[0].mean_deficit, (9.0 + 0 + 10) / 3, 1e-9);
  EXPECT_THAT(advised.words,
              HasSubstr("Over all: sync, global normalisation, sync "
                        "statistics. It is as good as the best under 1 of 3"));
}

}  // namespace
}  // namespace cohort
