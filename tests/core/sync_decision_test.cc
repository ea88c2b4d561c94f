#include "server/core/policy/sync_decision.h"

#include <gtest/gtest.h>

#include <vector>

namespace cohort {
namespace {

using Action = Decision::Action;

struct Row {
  int32_t pushes_min = 0;
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
    const Decision decision = DecideSync(row.round, row.pushes_min);
    EXPECT_EQ(decision.action, row.action) << "row " << i;
    EXPECT_EQ(decision.members, row.members) << "row " << i;
    EXPECT_EQ(decision.waiting_for, row.waiting_for) << "row " << i;
  }
}

TEST(SyncDecisionTest, WaitsForAllMembers) {
  constexpr int32_t kAll = 0;
  ExpectAsTheTableSays({
      {kAll, Fixed({}), Action::kWait, {}, {}},
      {kAll, Fixed({Partial(0)}), Action::kWait, {}, Ranks({0})},
      {kAll, Fixed({Complete(0)}), Action::kApply, Ranks({0}), {}},
      {kAll, Fixed({Complete(0), Partial(2)}), Action::kWait, {}, Ranks({2})},
      {kAll,
       Fixed({Partial(0), Complete(1), Partial(2)}),
       Action::kWait,
       {},
       Ranks({0, 2})},
      {kAll,
       Fixed({Complete(0), Complete(1)}),
       Action::kApply,
       Ranks({0, 1}),
       {}},
  });
}

TEST(SyncDecisionTest, BackupWorkersDropAllAfterTheFirstThatClaim) {
  constexpr int32_t kTwo = 2;
  ExpectAsTheTableSays({
      {kTwo, Open({}), Action::kWait, {}, Ranks({0, 1, 2})},
      {kTwo, Open({1}), Action::kWait, {}, Ranks({0, 2})},
      {kTwo, Open({2, 0}), Action::kDropOthers, Ranks({0, 2}), {}},
      {kTwo, Open({2, 0, 1}), Action::kDropOthers, Ranks({0, 2}), {}},
      // Once the members are fixed, all of them are needed.
      {kTwo, Fixed({Complete(0), Partial(2)}), Action::kWait, {}, Ranks({2})},
      {kTwo,
       Fixed({Complete(0), Complete(2)}),
       Action::kApply,
       Ranks({0, 2}),
       {}},
      // Fewer are left than the policy needs.
      {kTwo,
       {.pushes = {Partial(1)}, .fixed = false, .claims = Ranks({1})},
       Action::kDropOthers,
       Ranks({1}),
       {}},
      {kTwo, {.fixed = false}, Action::kWait, {}, {}},
  });
}

}  // namespace
}  // namespace cohort
