#include "server/core/policy/staleness_rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cohort {
namespace {

using testing::HasSubstr;

struct Row {
  StalenessOptions options;
  int64_t staleness;
  bool drop;
  double weight;
  bool compensate;
};

TEST(StalenessRuleTest, JudgesAsTheTableSays) {
  const StalenessOptions keep;
  const StalenessOptions drop{.rule = StalenessRule::kDrop, .versions_max = 3};
  // Four workers: three versions are free.
  const StalenessOptions scale{.rule = StalenessRule::kScale};
  const StalenessOptions strict{.rule = StalenessRule::kScale,
                                .versions_free = 0};
  const StalenessOptions compensate{.rule = StalenessRule::kCompensate};
  const std::vector<Row> table = {
      {keep, 0, false, 1, false},       {keep, 1000, false, 1, false},
      {drop, 3, false, 1, false},       {drop, 4, true, 1, false},
      {scale, 0, false, 1, false},      {scale, 3, false, 1, false},
      {scale, 4, false, 0.5, false},    {scale, 6, false, 0.25, false},
      {strict, 0, false, 1, false},     {strict, 1, false, 0.5, false},
      {compensate, 0, false, 1, false}, {compensate, 1, false, 1, true},
  };
  for (size_t i = 0; i < table.size(); ++i) {
    const Row& row = table[i];
    const StalenessDecision decision =
        DecideStaleness(row.options, row.staleness, 4);
    EXPECT_EQ(decision.drop, row.drop) << "row " << i;
    EXPECT_EQ(decision.weight, row.weight) << "row " << i;
    EXPECT_EQ(decision.compensate, row.compensate) << "row " << i;
    EXPECT_EQ(decision.reason.empty(), !row.drop) << "row " << i;
  }
}

TEST(StalenessRuleTest, ADropSaysHowStaleAndHowMuchIsAllowed) {
  EXPECT_THAT(
      DecideStaleness({.rule = StalenessRule::kDrop, .versions_max = 3}, 9, 2)
          .reason,
      HasSubstr("9 versions old, want at most 3"));
}

}  // namespace
}  // namespace cohort
