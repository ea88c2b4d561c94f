#include "server/core/statistics/rendezvous.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/moments_fold.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

constexpr Rank kA(0);
constexpr Rank kB(2);
constexpr Rank kC(5);

ReduceKey Key(int32_t layer, int32_t call,
              ReducePhase phase = ReducePhase::kForward) {
  return {.step = Version(3),
          .place = {.layer = layer, .call = call, .phase = phase}};
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
  EXPECT_EQ(table.members().Missing(), std::vector<Rank>{kA});

  const auto done = table.Contribute(Key(0, 0), kA, One(3, 0, 6));
  ASSERT_NE(done.result, nullptr);
  EXPECT_EQ(done.answer, (std::vector<Rank>{kA, kB}));
  // 3 values around 0 and one at 4: mean 1, M2 = 6 + 16 * 3 / 4.
  EXPECT_EQ(done.result->count, 4);
  EXPECT_DOUBLE_EQ(done.result->first[0], 1);
  EXPECT_DOUBLE_EQ(done.result->second[0], 18);
  EXPECT_FALSE(table.Waits(kB));
  EXPECT_TRUE(table.members().Missing().empty());
}

// 0.1, 0.2 and 0.3 sum to other bits in another order.
TEST(RendezvousTest, FoldsInRankOrderWhateverTheOrderOfArrival) {
  const std::vector<std::vector<Rank>> orders = {{kA, kB, kC}, {kC, kB, kA}};
  std::vector<double> sums;
  for (const std::vector<Rank>& order : orders) {
    RendezvousTable table({kA, kB, kC});
    for (Rank rank : order) table.Contribute(Key(0, 0), rank, One(1, 0, 0));
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
  Moments backward = One(0, 0, 0);
  for (const Moments* part : parts) kernels::AddBackward(*part, backward);
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
    EXPECT_TRUE(table.AllPending().empty());
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(RendezvousTest, TellsWhoWaitsWhere) {
  RendezvousTable table({kA, kB});
  table.Contribute(Key(0, 0), kA, One(1, 1, 0));
  table.Contribute(Key(1, 0), kA, One(1, 1, 0));
  EXPECT_EQ(table.WaitsOf(kA),
            (std::vector<CallPlace>{{.layer = 0}, {.layer = 1}}));
  EXPECT_EQ(*table.WaitOf(kA), (CallPlace{.layer = 1}));
  EXPECT_EQ(table.WaitOf(kB), nullptr);
  EXPECT_EQ(table.members().Missing(), std::vector<Rank>{kB});
  table.Contribute(Key(1, 0), kB, One(1, 1, 0));
  EXPECT_TRUE(table.Waits(kA));
  EXPECT_EQ(*table.WaitOf(kA), (CallPlace{.layer = 0}));
  table.Forget(kA);
  EXPECT_FALSE(table.Waits(kA));
  EXPECT_TRUE(table.calls().Has({.layer = 0}, kA));
}

// ---- members that do not come

TEST(RendezvousTest, AGroupIsAtRestWhenEachMemberWaitsOrHasClosed) {
  RendezvousTable table({kA, kB, kC});
  table.Contribute(Key(0, 0), kA, One(1, 1, 0));
  table.NoteClosed(kB);
  EXPECT_FALSE(table.members().AllAtRest());
  EXPECT_TRUE(table.TakeRested().empty());
  table.Contribute(Key(1, 0), kC, One(1, 1, 0));
  EXPECT_TRUE(table.members().AllAtRest());
  EXPECT_EQ(table.TakeRested(), std::vector<size_t>{0});
  EXPECT_TRUE(table.TakeRested().empty());
  EXPECT_EQ(table.OpenForward(0),
            (std::vector<CallPlace>{{.layer = 0}, {.layer = 1}}));
  // A lost rank computes until its replacement waits again.
  table.Forget(kC);
  EXPECT_FALSE(table.members().AllAtRest());
  table.Contribute(Key(1, 0), kC, One(1, 1, 0));
  EXPECT_EQ(table.TakeRested(), std::vector<size_t>{0});
}

TEST(RendezvousTest, AForwardCallCompletesWithThoseThatAreThere) {
  RendezvousTable table({kA, kB, kC});
  table.Contribute(Key(0, 0), kC, One(1, 4, 0));
  table.Contribute(Key(0, 0), kA, One(3, 0, 6));
  table.NoteClosed(kB);
  const auto done = table.CompleteWith({.layer = 0}, 0);
  ASSERT_NE(done.result, nullptr);
  EXPECT_EQ(done.answer, (std::vector<Rank>{kA, kC}));
  EXPECT_EQ(done.result->count, 4);
  EXPECT_DOUBLE_EQ(done.result->first[0], 1);
  EXPECT_DOUBLE_EQ(done.result->second[0], 18);
  EXPECT_FALSE(table.members().AllAtRest());
}

// 0.1 and 0.3 sum to other bits than 0.3 and 0.1 with something between them.
TEST(RendezvousTest, ABackwardCallHasExactlyTheMembersOfItsForwardCall) {
  RendezvousTable table({kA, kB, kC});
  table.Contribute(Key(0, 0), kC, One(1, 4, 0));
  table.Contribute(Key(0, 0), kA, One(3, 0, 6));
  table.NoteClosed(kB);
  table.CompleteWith({.layer = 0}, 0);
  ReduceKey second = Key(0, 0, ReducePhase::kBackward);
  second.place.path = {2};
  for (const ReduceKey& key : {Key(0, 0, ReducePhase::kBackward), second}) {
    EXPECT_EQ(table.Contribute(key, kC, One(1, 0.3, 1)).result, nullptr);
    const auto done = table.Contribute(key, kA, One(3, 0.1, 2));
    ASSERT_NE(done.result, nullptr);
    EXPECT_EQ(done.answer, (std::vector<Rank>{kA, kC}));
    EXPECT_EQ(done.result->first[0], 0.1 + 0.3);
  }
}

TEST(RendezvousTest, ALateContributionDoomsTheAttemptAndIsNotAnswered) {
  RendezvousTable table({kA, kB, kC});
  table.Contribute(Key(0, 0), kA, One(1, 1, 0));
  table.Contribute(Key(1, 0), kB, One(1, 1, 0));
  table.Contribute(Key(1, 0), kC, One(1, 1, 0));
  const auto done = table.CompleteWith({.layer = 0}, 0);
  EXPECT_EQ(done.answer, std::vector<Rank>{kA});
  EXPECT_FALSE(table.FirstLate().has_value());
  table.Contribute(Key(1, 0), kA, One(1, 1, 0));
  for (int time : {0, 1}) {
    const auto late = table.Contribute(Key(0, 0), kC, One(1, 1, 0));
    EXPECT_EQ(late.repeated, time == 1);
    EXPECT_TRUE(late.answer.empty());
  }
  EXPECT_TRUE(table.IsDoomed(0));
  EXPECT_EQ(table.FirstLate()->rank, kC);
  EXPECT_EQ(table.FirstLate()->place, (CallPlace{.layer = 0}));
  EXPECT_TRUE(table.Waits(kC));
  EXPECT_EQ(table.AllPending().size(), 1);
  // One that is in it gets the stored answer.
  EXPECT_EQ(table.Contribute(Key(0, 0), kA, One(1, 1, 0)).result, done.result);
  EXPECT_EQ(table.calls().Sequences(), (std::vector<std::vector<CallPlace>>{
                                           {{.layer = 0}, {.layer = 1}},
                                           {{.layer = 1}},
                                           {{.layer = 1}, {.layer = 0}}}));
}

TEST(RendezvousTest, CallsThatAreNotRegisteredNeverCompleteWithoutAMember) {
  RendezvousTable table({kA, kB});
  ReduceKey key = Key(-1, 0);
  key.place.site = "net.py:f";
  table.Contribute(key, kA, One(1, 1, 0));
  table.NoteClosed(kB);
  EXPECT_TRUE(table.members().AllAtRest());
  EXPECT_TRUE(table.OpenForward(0).empty());
  EXPECT_TRUE(table.TakeForward().calls.empty());
}

TEST(RendezvousTest, AFoldThatRunsIsNoRest) {
  RendezvousTable table({kA, kB, kC}, {.inline_max = 1});
  table.NoteClosed(kC);
  table.Contribute(Key(0, 0), kB, One(1, 4, 0));
  auto outcome = table.Contribute(Key(0, 0), kA, One(3, 0, 6));
  ASSERT_TRUE(outcome.fold.has_value());
  EXPECT_FALSE(table.members().AllAtRest());
  table.Folded(RunMomentsFold(*std::move(outcome.fold)));
  EXPECT_TRUE(table.members().AllAtRest());
  EXPECT_EQ(table.CompleteWith({.layer = 0}, 0).result->count, 4);
}

// The second of three is absent, and the rest is folded on the pool.
TEST(RendezvousTest, ALongFoldWithoutAMemberHasTheBitsOfAShortOne) {
  std::vector<Moments> results;
  for (int64_t inline_max : {1 << 20, 1}) {
    RendezvousTable table({kA, kB, kC, Rank(7)}, {.inline_max = inline_max});
    table.Contribute(Key(0, 0), Rank(7), One(3, 0.7, 2));
    table.Contribute(Key(0, 0), kC, One(2, 0.1, 1));
    table.Contribute(Key(0, 0), kA, One(1, 0.3, 0));
    table.NoteClosed(kB);
    auto done = table.CompleteWith({.layer = 0}, 0);
    EXPECT_EQ(done.fold.has_value(), inline_max == 1);
    if (done.fold.has_value()) {
      EXPECT_FALSE(table.members().AllAtRest());
      done = table.Folded(RunMomentsFold(*std::move(done.fold)));
    }
    ASSERT_NE(done.result, nullptr);
    EXPECT_EQ(done.answer, (std::vector<Rank>{kA, kC, Rank(7)}));
    results.push_back(*done.result);
    EXPECT_EQ(MomentsByMember(table.TakeForward())[3].size(), 1);
  }
  EXPECT_EQ(results[0].first, results[1].first);
  EXPECT_EQ(results[0].second, results[1].second);
}

TEST(RendezvousTest, CountsWhatEachIncarnationHasMade) {
  RendezvousTable table({kA, kB});
  table.Contribute(Key(0, 0), kA, One(1, 1, 0));
  table.Contribute(Key(0, 0), kA, One(1, 1, 0));
  table.Contribute(Key(0, 0), kB, One(1, 1, 0));
  table.Contribute(Key(0, 0, ReducePhase::kBackward), kA, One(1, 1, 0));
  EXPECT_EQ(table.calls().MadeBy(kA).contributions, 2);
  EXPECT_EQ(table.calls().MadeBy(kA).calls.at({0, 0}), 1);
  table.Forget(kA);
  EXPECT_EQ(table.calls().MadeBy(kA).contributions, 0);
  EXPECT_EQ(table.calls().MadeBy(kA).by_all, 2);
  table.Contribute(Key(0, 0), kA, One(1, 1, 0));
  EXPECT_EQ(table.calls().MadeBy(kA).contributions, 1);
  EXPECT_EQ(table.calls().MadeBy(kA).by_all, 2);
}

// ---- how calls are paired

TEST(RendezvousTest, OneMayLeaveOutAllCallsOfALayerOrNone) {
  RendezvousTable table({kA, kB});
  for (int32_t call : {0, 1}) {
    table.Contribute(Key(0, call), kA, One(1, 1, 0));
    table.Contribute(Key(1, call), kA, One(1, 1, 0));
    table.Contribute(Key(1, call), kB, One(1, 1, 0));
  }
  EXPECT_FALSE(table.calls().FindUneven().has_value());
  table.Contribute(Key(0, 0), kB, One(1, 1, 0));
  const auto uneven = OkValue(table.calls().FindUneven());
  EXPECT_EQ(uneven.place.layer, 0);
  EXPECT_EQ(uneven.fewer, kB);
  EXPECT_EQ(uneven.fewer_calls, 1);
  EXPECT_EQ(uneven.more, kA);
  EXPECT_EQ(uneven.more_calls, 2);
}

TEST(RendezvousTest, ExtentsMatterWhereALayerIsCalledTwiceAndSomeoneSkipped) {
  const auto contribute = [](RendezvousTable& table, int32_t layer,
                             int32_t call, Rank rank, int64_t extent,
                             const std::string& site = "") {
    ReduceKey key = Key(layer, call);
    key.place.site = site;
    table.Contribute(key, rank, One(1, 1, 0), Instant(), {extent, 4});
  };
  for (const std::string site : {"", "P4"}) {
    RendezvousTable table({kA, kB});
    for (int32_t call : {0, 1}) {
      contribute(table, 0, call, kA, 8, site);
      contribute(table, 0, call, kB, call == 0 ? 8 : 4, site);
    }
    // Ranks may crop their images differently.
    EXPECT_FALSE(table.calls().FindOtherExtents().has_value());
    contribute(table, 1, 0, kA, 8);
    const auto other = table.calls().FindOtherExtents();
    EXPECT_EQ(other.has_value(), site.empty());
    if (!other.has_value()) continue;
    EXPECT_EQ(other->place.call, 1);
    EXPECT_EQ(other->extents, (std::vector<int64_t>{8, 4}));
    EXPECT_EQ(other->other, kB);
    EXPECT_EQ(other->other_extents, (std::vector<int64_t>{4, 4}));
  }
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
    EXPECT_GT(table.BytesOf(kB), 0);
    table.Contribute(Key(0, 0), kA, One(3, 0, 6));
    // All received bytes count, kept or not.
    EXPECT_EQ(table.BytesOf(kB), 16);
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
  EXPECT_TRUE(table.members().Missing().empty());
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
  EXPECT_TRUE(table.Waits(kB));
}

TEST(RendezvousTest, EachGroupIsAnsweredByItself) {
  RendezvousTable table({kA, kB, kC}, {.group_size = 2});
  EXPECT_EQ(table.members().RangeOf(1).begin, 2);
  // The last group has one member, which waits for no other.
  const auto alone = table.Contribute(Key(0, 0), kC, One(2, 7, 1));
  EXPECT_EQ(alone.answer, std::vector<Rank>{kC});
  EXPECT_DOUBLE_EQ(alone.result->first[0], 7);
  EXPECT_EQ(alone.result->count, 2);
  // A group that has not begun has no missing members.
  EXPECT_TRUE(table.members().Missing().empty());

  table.Contribute(Key(0, 0), kB, One(1, 4, 0));
  EXPECT_EQ(table.members().Missing(), std::vector<Rank>{kA});
  const auto pair = table.Contribute(Key(0, 0), kA, One(3, 0, 6));
  EXPECT_EQ(pair.answer, (std::vector<Rank>{kA, kB}));
  EXPECT_EQ(pair.result->count, 4);
  EXPECT_DOUBLE_EQ(pair.result->second[0], 18);

  const auto again = table.Contribute(Key(0, 0), kC, One(2, 7, 1));
  EXPECT_TRUE(again.repeated);
  EXPECT_EQ(again.result, alone.result);
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
  const auto completed = table.DropOthers({kA, kC, d, e});
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
  table.DropOthers({kA, kC}, absl::Seconds(6));
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
