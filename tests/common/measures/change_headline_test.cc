#include "common/measures/change_headline.h"

#include <gtest/gtest.h>

namespace cohort {
namespace {

TEST(ChangeHeadlineTest, ThePolicyStandsFirstAndOldValuesBesideNewOnes) {
  EXPECT_EQ(ChangeHeadline({{"aggregation", "sync"},
                            {"bn_statistics", "auto"},
                            {"normalization", "auto"},
                            {"learning_rate", "0.1"}},
                           {{"bn_statistics", "async"},
                            {"aggregation", "async"},
                            {"normalization", "local"}}),
            "sync -> async, bn_statistics auto -> async, local normalisation");
  EXPECT_EQ(
      ChangeHeadline({{"learning_rate", "0.1"}}, {{"learning_rate", "0.01"}}),
      "learning_rate 0.1 -> 0.01");
}

TEST(ChangeHeadlineTest, NormalisationOnAutoFollowsTheAggregation) {
  EXPECT_EQ(ChangeHeadline({{"aggregation", "sync"}, {"normalization", "auto"}},
                           {{"aggregation", "async"}}),
            "sync -> async, local normalisation");
  EXPECT_EQ(
      ChangeHeadline({{"aggregation", "sync"}, {"normalization", "local"}},
                     {{"aggregation", "async"}}),
      "sync -> async");
  EXPECT_EQ(
      ChangeHeadline({{"aggregation", "async"}, {"normalization", "local"}},
                     {{"aggregation", "sync"}, {"normalization", "auto"}}),
      "async -> sync, global normalisation");
  EXPECT_EQ(
      ChangeHeadline({{"aggregation", "async"}, {"normalization", "auto"}},
                     {{"aggregation", "bounded"}}),
      "async -> bounded");
  EXPECT_EQ(ChangeHeadline({{"aggregation", "sync"}, {"normalization", "auto"}},
                           {{"normalization", "global"}}),
            "normalization auto -> global");
}

TEST(ChangeHeadlineTest, LocalNormalisationThatStaysUnderSyncIsNamed) {
  const std::map<std::string, std::string> before = {
      {"aggregation", "async"}, {"normalization", "local"}};
  EXPECT_EQ(ChangeHeadline(before, {{"aggregation", "sync"}}),
            "async -> sync, normalization stays local");
  EXPECT_EQ(ChangeHeadline(before, {{"aggregation", "bounded"}}),
            "async -> bounded");
  EXPECT_EQ(ChangeHeadline(before, {{"lease", "5s"}}), "lease (unset) -> 5s");
}

// The record was written by a release that did not have the setting.
TEST(ChangeHeadlineTest, AValueThatWasNotThereIsSaidToBeUnset) {
  EXPECT_EQ(ChangeHeadline({}, {{"lease", "5s"}}), "lease (unset) -> 5s");
}

}  // namespace
}  // namespace cohort
