#include "server/core/policy/aggregation_policy.h"

#include <gtest/gtest.h>

#include <vector>

namespace cohort {
namespace {

using Action = Decision::Action;

struct Row {
  PolicyOptions policy;
  RoundView round;
  Action action;
  std::vector<Rank> members;
  std::vector<Rank> waiting_for;
};

PushView Complete(int32_t rank) { return {Rank(rank), true}; }
PushView Partial(int32_t rank) { return {Rank(rank), false}; }
std::vector<Rank> Ranks(const std::vector<int32_t>& numbers) {
  return {numbers.begin(), numbers.end()};
}

RoundView Fixed(std::vector<PushView> pushes) {
  return {.pushes = std::move(pushes)};
}
// Three candidates, and the ranks among them that claim to be members.
RoundView Open(const std::vector<int32_t>& claims) {
  return {.pushes = {Partial(0), Partial(1), Partial(2)},
          .fixed = false,
          .claims = Ranks(claims)};
}

void ExpectAsTheTableSays(const std::vector<Row>& table) {
  for (size_t i = 0; i < table.size(); ++i) {
    const Row& row = table[i];
    const auto policy = MakeAggregationPolicy(row.policy);
    // Twice, because the policy must not keep state.
    for (int times = 0; times < 2; ++times) {
      const Decision decision = policy->Decide(row.round);
      EXPECT_EQ(decision.action, row.action) << "row " << i;
      EXPECT_EQ(decision.members, row.members) << "row " << i;
      EXPECT_EQ(decision.waiting_for, row.waiting_for) << "row " << i;
    }
  }
}

TEST(AggregationPolicyTest, SyncWaitsForAllMembers) {
  const PolicyOptions sync;
  ExpectAsTheTableSays({
      {sync, Fixed({}), Action::kWait, {}, {}},
      {sync, Fixed({Partial(0)}), Action::kWait, {}, Ranks({0})},
      {sync, Fixed({Complete(0)}), Action::kApply, Ranks({0}), {}},
      {sync, Fixed({Complete(0), Partial(2)}), Action::kWait, {}, Ranks({2})},
      {sync,
       Fixed({Partial(0), Complete(1), Partial(2)}),
       Action::kWait,
       {},
       Ranks({0, 2})},
      {sync,
       Fixed({Complete(0), Complete(1)}),
       Action::kApply,
       Ranks({0, 1}),
       {}},
  });
}

TEST(AggregationPolicyTest, BackupWorkersFixTheFirstThatClaim) {
  const PolicyOptions two{.pushes_min = 2};
  ExpectAsTheTableSays({
      {two, Open({}), Action::kWait, {}, Ranks({0, 1, 2})},
      {two, Open({1}), Action::kWait, {}, Ranks({0, 2})},
      {two, Open({2, 0}), Action::kFix, Ranks({0, 2}), {}},
      {two, Open({2, 0, 1}), Action::kFix, Ranks({0, 2}), {}},
      // Once the members are fixed, all of them are needed.
      {two, Fixed({Complete(0), Partial(2)}), Action::kWait, {}, Ranks({2})},
      {two,
       Fixed({Complete(0), Complete(2)}),
       Action::kApply,
       Ranks({0, 2}),
       {}},
      // Fewer are left than the policy needs.
      {two,
       {.pushes = {Partial(1)}, .fixed = false, .claims = Ranks({1})},
       Action::kFix,
       Ranks({1}),
       {}},
      {two, {.fixed = false}, Action::kWait, {}, {}},
  });
}

TEST(AggregationPolicyTest, BoundedAndAsyncApplyTheFirstComplete) {
  for (AggregationKind kind :
       {AggregationKind::kBounded, AggregationKind::kAsync}) {
    const PolicyOptions policy{.aggregation = kind};
    ExpectAsTheTableSays({
        {policy, Fixed({}), Action::kWait, {}, {}},
        {policy, Fixed({Partial(1)}), Action::kWait, {}, {}},
        {policy,
         Fixed({Complete(3), Complete(0)}),
         Action::kApply,
         Ranks({3}),
         {}},
        {policy,
         Fixed({Partial(3), Complete(0)}),
         Action::kApply,
         Ranks({0}),
         {}},
    });
  }
}

}  // namespace
}  // namespace cohort
