#include "server/core/policy/aggregation_policy.h"

#include <gtest/gtest.h>

#include <vector>

namespace cohort {
namespace {

using Action = Decision::Action;

struct Row {
  AggregationKind kind;
  std::vector<PushView> pushes;
  Action action;
  std::vector<Rank> members;
  std::vector<Rank> waiting_for;
};

PushView Complete(int32_t rank) { return {Rank(rank), true}; }
PushView Partial(int32_t rank) { return {Rank(rank), false}; }

TEST(AggregationPolicyTest, DecidesAsTheTableSays) {
  constexpr AggregationKind kSync = AggregationKind::kSync;
  constexpr AggregationKind kAsync = AggregationKind::kAsync;
  const std::vector<Row> table = {
      {kSync, {}, Action::kWait, {}, {}},
      {kSync, {Partial(0)}, Action::kWait, {}, {Rank(0)}},
      {kSync, {Complete(0)}, Action::kApply, {Rank(0)}, {}},
      {kSync, {Complete(0), Partial(2)}, Action::kWait, {}, {Rank(2)}},
      {kSync,
       {Partial(0), Complete(1), Partial(2)},
       Action::kWait,
       {},
       {Rank(0), Rank(2)}},
      {kSync,
       {Complete(0), Complete(1)},
       Action::kApply,
       {Rank(0), Rank(1)},
       {}},
      {kAsync, {}, Action::kWait, {}, {}},
      {kAsync, {Partial(1)}, Action::kWait, {}, {}},
      {kAsync, {Complete(3), Complete(0)}, Action::kApply, {Rank(3)}, {}},
      {kAsync, {Partial(3), Complete(0)}, Action::kApply, {Rank(0)}, {}},
  };
  for (size_t i = 0; i < table.size(); ++i) {
    const Row& row = table[i];
    const auto policy = MakeAggregationPolicy(row.kind);
    const Decision decision = policy->Decide({.pushes = row.pushes});
    EXPECT_EQ(decision.action, row.action) << "row " << i;
    EXPECT_EQ(decision.members, row.members) << "row " << i;
    EXPECT_EQ(decision.waiting_for, row.waiting_for) << "row " << i;
    // Idempotent: it remembers nothing.
    EXPECT_EQ(policy->Decide({.pushes = row.pushes}).members, row.members);
  }
}

}  // namespace
}  // namespace cohort
