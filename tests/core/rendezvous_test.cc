#include "server/core/rendezvous.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/moments_fold.h"

namespace cohort {
namespace {

constexpr Rank kA(0);
constexpr Rank kB(2);
constexpr Rank kC(5);

ReduceKey Key(int32_t layer, int32_t call,
              ReducePhase phase = ReducePhase::kForward) {
  return {.step = Version(3), .layer = layer, .call = call, .phase = phase};
}

Moments One(int64_t count, double first, double second) {
  return {.count = count, .first = {first}, .second = {second}};
}

TEST(RendezvousTest, AnswersEveryoneOnceTheLastHasContributed) {
  RendezvousTable table({kA, kB});
  const auto waiting = table.Contribute(Key(0, 0), kB, One(1, 4, 0));
  EXPECT_EQ(waiting.result, nullptr);
  EXPECT_TRUE(waiting.answer.empty());
  EXPECT_TRUE(table.Waits(kB));
  EXPECT_EQ(table.Missing(), std::vector<Rank>{kA});

  const auto done = table.Contribute(Key(0, 0), kA, One(3, 0, 6));
  ASSERT_NE(done.result, nullptr);
  EXPECT_EQ(done.answer, (std::vector<Rank>{kA, kB}));
  // 3 values around 0 and one at 4: mean 1, M2 = 6 + 16 * 3 / 4.
  EXPECT_EQ(done.result->count, 4);
  EXPECT_DOUBLE_EQ(done.result->first[0], 1);
  EXPECT_DOUBLE_EQ(done.result->second[0], 18);
  EXPECT_FALSE(table.Waits(kB));
  EXPECT_TRUE(table.Missing().empty());
}

// 0.1, 0.2 and 0.3 sum to other bits in another order.
TEST(RendezvousTest, FoldsInRankOrderWhateverTheOrderOfArrival) {
  const std::vector<std::vector<Rank>> orders = {{kA, kB, kC}, {kC, kB, kA}};
  std::vector<double> sums;
  for (const std::vector<Rank>& order : orders) {
    RendezvousTable table({kA, kB, kC});
    RendezvousTable::Outcome last;
    for (Rank rank : order) {
      const double value = rank == kA ? 0.1 : rank == kB ? 0.2 : 0.3;
      last = table.Contribute(Key(0, 0, ReducePhase::kBackward), rank,
                              One(1, value, 0));
    }
    sums.push_back(last.result->first[0]);
  }
  EXPECT_EQ(sums[0], (0.1 + 0.2) + 0.3);
  EXPECT_EQ(sums[0], sums[1]);
}

TEST(RendezvousTest, LayersCallsAndPhasesAreSeparate) {
  RendezvousTable table({kA, kB});
  table.Contribute(Key(0, 0), kA, One(1, 1, 0));
  table.Contribute(Key(0, 1), kA, One(1, 2, 0));
  table.Contribute(Key(0, 0, ReducePhase::kBackward), kA, One(1, 3, 0));
  EXPECT_EQ(table.AllPending().size(), 3);
  const auto done = table.Contribute(Key(0, 1), kB, One(1, 4, 0));
  EXPECT_DOUBLE_EQ(done.result->first[0], 3);
  EXPECT_EQ(table.AllPending().size(), 2);
}

TEST(RendezvousTest, ARepetitionGetsTheSameResultAlone) {
  RendezvousTable table({kA, kB});
  table.Contribute(Key(0, 0), kA, One(1, 1, 0));
  const auto early = table.Contribute(Key(0, 0), kA, One(1, 1, 0));
  EXPECT_TRUE(early.repeated);
  EXPECT_FALSE(early.mismatch);
  EXPECT_TRUE(early.answer.empty());
  const auto done = table.Contribute(Key(0, 0), kB, One(1, 3, 0));
  const auto late = table.Contribute(Key(0, 0), kA, One(1, 1, 0));
  EXPECT_TRUE(late.repeated);
  EXPECT_EQ(late.answer, std::vector<Rank>{kA});
  EXPECT_EQ(late.result, done.result);
}

TEST(RendezvousTest, OtherContentIsAMismatchAndDoesNotCount) {
  RendezvousTable table({kA, kB});
  table.Contribute(Key(0, 0), kA, One(1, 1, 0));
  const auto other = table.Contribute(Key(0, 0), kA, One(1, 9, 0));
  EXPECT_TRUE(other.mismatch);
  const auto done = table.Contribute(Key(0, 0), kB, One(1, 3, 0));
  EXPECT_DOUBLE_EQ(done.result->first[0], 2);
}

TEST(RendezvousTest, ALostIncarnationIsNotAnsweredButItsContributionStays) {
  RendezvousTable table({kA, kB});
  table.Contribute(Key(0, 0), kA, One(1, 1, 0));
  table.Forget(kA);
  EXPECT_FALSE(table.Waits(kA));
  EXPECT_TRUE(table.AllPending().empty());
  const auto done = table.Contribute(Key(0, 0), kB, One(1, 3, 0));
  EXPECT_EQ(done.answer, std::vector<Rank>{kB});
  EXPECT_DOUBLE_EQ(done.result->first[0], 2);
}

TEST(RendezvousTest, TellsWhenTheCombinedMomentsAreNotFinite) {
  RendezvousTable table({kA, kB});
  table.Contribute(Key(0, 0), kA, One(1, 1e200, 0));
  // Both are finite; the square of their distance is not.
  EXPECT_TRUE(table.Contribute(Key(0, 0), kB, One(1, -1e200, 0)).nonfinite);
}

// Early contributions are folded early, but always in rank order.
TEST(RendezvousTest, AnyOrderOfArrivalGivesTheBitsOfAFoldInRankOrder) {
  const std::vector<Rank> ranks = {Rank(0), Rank(1), Rank(2), Rank(5)};
  const std::vector<Moments> moments = {One(3, 0.1, 0.7), One(0, 8, 0),
                                        One(7, -1e-3, 1.0 / 3), One(5, 1e9, 2)};
  std::vector<const Moments*> parts;
  for (const Moments& part : moments) parts.push_back(&part);
  const Moments forward = kernels::FoldForward(parts);
  const Moments backward = kernels::FoldBackward(parts);
  std::vector<size_t> order = {0, 1, 2, 3};
  do {
    RendezvousTable table(ranks);
    for (ReducePhase phase : {ReducePhase::kForward, ReducePhase::kBackward}) {
      RendezvousTable::Outcome outcome;
      for (size_t i : order) {
        EXPECT_EQ(outcome.result, nullptr);
        outcome = table.Contribute(Key(0, 0, phase), ranks[i], moments[i]);
      }
      const Moments& want = phase == ReducePhase::kForward ? forward : backward;
      ASSERT_NE(outcome.result, nullptr);
      EXPECT_EQ(outcome.result->count, want.count);
      EXPECT_EQ(outcome.result->first, want.first);
      EXPECT_EQ(outcome.result->second, want.second);
    }
    EXPECT_EQ(table.open_count(), 0);
    EXPECT_EQ(table.waiting_count(), 0);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(RendezvousTest, CountsWhoWaitsAndWhatIsOpen) {
  RendezvousTable table({kA, kB});
  table.Contribute(Key(0, 0), kA, One(1, 1, 0));
  table.Contribute(Key(1, 0), kA, One(1, 1, 0));
  EXPECT_EQ(table.waiting_count(), 1);
  EXPECT_EQ(table.open_count(), 2);
  EXPECT_EQ(table.WaitsOf(kA).size(), 2);
  EXPECT_EQ(table.LackedBy(kB),
            (std::vector<CallPlace>{{.layer = 0}, {.layer = 1}}));
  table.Contribute(Key(0, 0), kB, One(1, 1, 0));
  EXPECT_TRUE(table.Waits(kA));
  EXPECT_EQ(table.open_count(), 1);
  table.Forget(kA);
  EXPECT_FALSE(table.Waits(kA));
  EXPECT_EQ(table.waiting_count(), 0);
  // The call's moments are held nevertheless.
  EXPECT_EQ(table.open_count(), 1);
}

TEST(RendezvousTest, TakeForwardHandsOverForwardMomentsOfEachMemberInOrder) {
  RendezvousTable table({kA, kB});
  table.Contribute(Key(1, 0), kA, One(1, 30, 0));
  table.Contribute(Key(0, 1), kA, One(1, 20, 0));
  table.Contribute(Key(0, 0), kA, One(1, 10, 0));
  table.Contribute(Key(0, 0, ReducePhase::kBackward), kA, One(1, 5, 0));
  table.Contribute(Key(0, 0), kB, One(1, 99, 0));
  const auto members = MomentsByMember(table.TakeForward());
  ASSERT_EQ(members.size(), 2);
  ASSERT_EQ(members[1].size(), 1);
  EXPECT_DOUBLE_EQ(members[1][0].moments.first[0], 99);
  const std::vector<CallMoments>& calls = members[0];
  ASSERT_EQ(calls.size(), 3);
  EXPECT_DOUBLE_EQ(calls[0].moments.first[0], 10);
  EXPECT_DOUBLE_EQ(calls[1].moments.first[0], 20);
  EXPECT_EQ(calls[1].call, 1);
  EXPECT_DOUBLE_EQ(calls[2].moments.first[0], 30);
  EXPECT_EQ(calls[2].layer, 1);
}

TEST(RendezvousTest, MomentsThatAreNotKeptAreGivenUpOnceTheyAreFolded) {
  using Keep = RendezvousTable::Keep;
  const std::vector<std::pair<Keep, std::vector<size_t>>> kept = {
      {Keep::kNone, {0, 0}}, {Keep::kFirst, {1, 0}}, {Keep::kAll, {1, 1}}};
  for (const auto& [keep, calls] : kept) {
    RendezvousTable table({kA, kB}, {.keep = keep});
    table.Contribute(Key(0, 0), kB, One(1, 4, 0));
    EXPECT_GT(table.HeldOf(kB).bytes, 0);
    table.Contribute(Key(0, 0), kA, One(3, 0, 6));
    // All received bytes count, kept or not.
    EXPECT_EQ(table.HeldOf(kB).bytes, 16);
    const auto members = MomentsByMember(table.TakeForward());
    EXPECT_EQ(members[0].size(), calls[0]);
    EXPECT_EQ(members[1].size(), calls[1]);
    // Repetitions are recognised nevertheless.
    const auto same = table.Contribute(Key(0, 0), kA, One(3, 0, 6));
    EXPECT_TRUE(same.repeated && !same.mismatch);
    ASSERT_NE(same.result, nullptr);
    EXPECT_EQ(same.result->count, 4);
    EXPECT_TRUE(table.Contribute(Key(0, 0), kA, One(3, 0, 7)).mismatch);
  }
}

TEST(RendezvousTest, ALongFoldIsAJobAndHasTheBitsOfAShortOne) {
  RendezvousTable inline_table({kA, kB, kC});
  RendezvousTable table({kA, kB, kC}, {.inline_max = 2});
  const std::vector<std::pair<Rank, Moments>> contributions = {
      {kC, One(1, 0.3, 0)}, {kB, One(2, 0.2, 1)}, {kA, One(3, 0.1, 2)}};
  RendezvousTable::Outcome outcome;
  RendezvousTable::Outcome wanted;
  for (const auto& [rank, moments] : contributions) {
    wanted = inline_table.Contribute(Key(0, 0), rank, moments);
    outcome = table.Contribute(Key(0, 0), rank, moments);
  }
  ASSERT_TRUE(outcome.fold.has_value());
  EXPECT_EQ(outcome.result, nullptr);
  EXPECT_TRUE(table.Waits(kA));
  EXPECT_TRUE(table.Missing().empty());
  // A repetition does not start another one.
  EXPECT_FALSE(table.Contribute(Key(0, 0), kA, One(3, 0.1, 2)).fold);
  const auto done = table.Folded(RunMomentsFold(*std::move(outcome.fold)));
  ASSERT_NE(done.result, nullptr);
  EXPECT_EQ(done.answer, (std::vector<Rank>{kA, kB, kC}));
  ASSERT_NE(wanted.result, nullptr);
  EXPECT_EQ(done.result->count, wanted.result->count);
  EXPECT_EQ(done.result->first, wanted.result->first);
  EXPECT_EQ(done.result->second, wanted.result->second);
  EXPECT_EQ(MomentsByMember(table.TakeForward())[1].size(), 1);
}

TEST(RendezvousTest, WhatComesWhileAFoldRunsIsFoldedAfterIt) {
  RendezvousTable table({kA, kB, kC}, {.inline_max = 1});
  table.Contribute(Key(0, 0), kB, One(1, 4, 0));
  auto outcome = table.Contribute(Key(0, 0), kA, One(3, 0, 6));
  ASSERT_TRUE(outcome.fold.has_value());
  EXPECT_FALSE(table.Contribute(Key(0, 0), kC, One(4, 1, 0)).fold);
  // A single contribution is folded at once.
  const auto done = table.Folded(RunMomentsFold(*std::move(outcome.fold)));
  ASSERT_NE(done.result, nullptr);
  EXPECT_EQ(done.result->count, 8);
}

TEST(RendezvousTest, AFoldOfAnotherAttemptIsIgnored) {
  RendezvousTable over({kA, kB}, {.inline_max = 1});
  over.Contribute(Key(0, 0), kB, One(1, 4, 0));
  auto outcome = over.Contribute(Key(0, 0), kA, One(3, 0, 6));
  RendezvousTable table({kA, kB}, {.inline_max = 1});
  ReduceKey key = Key(0, 0);
  key.attempt = Attempt(1);
  table.Contribute(key, kB, One(1, 4, 0));
  EXPECT_EQ(table.Folded(RunMomentsFold(*std::move(outcome.fold))).result,
            nullptr);
  EXPECT_EQ(table.open_count(), 1);
}

TEST(RendezvousTest, EachGroupIsAnsweredByItself) {
  RendezvousTable table({kA, kB, kC}, {.group_size = 2});
  EXPECT_EQ(table.Groups(), (std::vector<std::vector<Rank>>{{kA, kB}, {kC}}));
  EXPECT_EQ(table.GroupOf(kA), table.GroupOf(kB));
  EXPECT_NE(table.GroupOf(kB), table.GroupOf(kC));
  // The last group has one member, which waits for no other.
  const auto alone = table.Contribute(Key(0, 0), kC, One(2, 7, 1));
  EXPECT_EQ(alone.answer, std::vector<Rank>{kC});
  EXPECT_DOUBLE_EQ(alone.result->first[0], 7);
  EXPECT_EQ(alone.result->count, 2);
  // A group that has not begun has no missing members.
  EXPECT_TRUE(table.Missing().empty());

  table.Contribute(Key(0, 0), kB, One(1, 4, 0));
  EXPECT_EQ(table.Missing(), std::vector<Rank>{kA});
  const auto pair = table.Contribute(Key(0, 0), kA, One(3, 0, 6));
  EXPECT_EQ(pair.answer, (std::vector<Rank>{kA, kB}));
  EXPECT_EQ(pair.result->count, 4);
  EXPECT_DOUBLE_EQ(pair.result->second[0], 18);

  const auto again = table.Contribute(Key(0, 0), kC, One(2, 7, 1));
  EXPECT_TRUE(again.repeated);
  EXPECT_EQ(again.result, alone.result);
}

// Groups of two and one. The second group has no rendezvous.
TEST(RendezvousTest, AGroupThatCountsACallItNeverMetInIsFound) {
  RendezvousTable table({kA, kB, kC}, {.group_size = 2});
  table.Contribute(Key(0, 0), kA, One(1, 0, 0));
  table.Contribute(Key(0, 0), kB, One(1, 0, 0));
  const auto found = table.FindMiscounted({1});
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->place, (CallPlace{.layer = 0, .call = 0}));
  EXPECT_EQ(found->at_fault, std::vector<Rank>{kC});
  table.Contribute(Key(0, 0), kC, One(1, 0, 0));
  EXPECT_FALSE(table.FindMiscounted({1}).has_value());
}

TEST(RendezvousTest, AGroupThatDoesNotCountACallItMetInIsFound) {
  RendezvousTable table({kA, kB, kC}, {.group_size = 2});
  table.Contribute(Key(0, 0), kA, One(1, 0, 0));
  table.Contribute(Key(0, 0), kB, One(1, 0, 0));
  const auto found = table.FindMiscounted({0});
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->at_fault, (std::vector<Rank>{kA, kB}));
}

TEST(RendezvousTest, GroupsAreOfTheMembersThatWereFixed) {
  const Rank d(7);
  const Rank e(9);
  RendezvousTable table({kA, kB, kC, d, e}, {.fixed = false, .group_size = 2});
  for (Rank rank : {kA, kB, kC, d, e}) {
    const auto one = table.Contribute(Key(0, 0), rank, One(1, rank.value(), 0));
    EXPECT_EQ(one.result, nullptr);
  }
  // Without kB the pairs are A with C and D with E.
  const auto completed = table.Fix({kA, kC, d, e});
  ASSERT_EQ(completed.size(), 2);
  EXPECT_EQ(completed[0].outcome.answer, (std::vector<Rank>{kA, kC}));
  EXPECT_DOUBLE_EQ(completed[0].outcome.result->first[0], 2.5);
  EXPECT_EQ(completed[1].outcome.answer, (std::vector<Rank>{d, e}));
  EXPECT_DOUBLE_EQ(completed[1].outcome.result->first[0], 8);
  EXPECT_TRUE(table.AllPending().empty());
}

TEST(RendezvousTest, WaitsCountFromEachArrivalToTheFixing) {
  RendezvousTable table({kA, kB, kC}, {.fixed = false});
  table.Contribute(Key(0, 0), kC, One(1, 0, 0), absl::Seconds(1));
  table.Contribute(Key(0, 0), kA, One(1, 0, 0), absl::Seconds(3));
  table.Contribute(Key(0, 0), kB, One(1, 0, 0), absl::Seconds(4));
  // Without kB: its waiting time is not counted.
  table.Fix({kA, kC}, absl::Seconds(6));
  const RendezvousWaits& seen = table.observed(ReducePhase::kForward);
  EXPECT_EQ(seen.waits,
            (std::vector<absl::Duration>{absl::Seconds(3), absl::Seconds(5)}));
  EXPECT_EQ(seen.last, std::vector<Rank>{kA});
}

// The incarnation that waited is over; its replacement contributes again.
TEST(RendezvousTest, AReplacementWaitsFromItsOwnArrival) {
  RendezvousTable table({kA, kB});
  table.Contribute(Key(0, 0), kA, One(1, 0, 0), absl::Seconds(1));
  table.Forget(kA);
  table.Contribute(Key(0, 0), kA, One(1, 0, 0), absl::Seconds(100));
  table.Contribute(Key(0, 0), kB, One(1, 0, 0), absl::Seconds(101));
  const RendezvousWaits& seen = table.observed(ReducePhase::kForward);
  EXPECT_EQ(seen.waits,
            (std::vector<absl::Duration>{absl::Seconds(1), absl::Seconds(0)}));
  EXPECT_EQ(seen.last, std::vector<Rank>{kB});
}

}  // namespace
}  // namespace cohort
