#include "server/core/ledger/push_history.h"

#include <gtest/gtest.h>

namespace cohort {
namespace {

PushKey HistoryKey(int64_t sequence, int32_t attempt = 0) {
  return {.sequence = Sequence(sequence), .attempt = Attempt(attempt)};
}

TEST(PushHistoryTest, ANewOneHasForgottenNothing) {
  PushHistory history;
  for (const PushKey& key :
       {HistoryKey(0), HistoryKey(-5), HistoryKey(1), HistoryKey(7)}) {
    EXPECT_EQ(history.Find(key), nullptr);
    EXPECT_FALSE(history.Forgotten(key));
  }
}

TEST(PushHistoryTest, TheFirstVerdictOnAKeyCountsAndHasNoNextAssignment) {
  PushHistory history;
  history.Give(HistoryKey(3));
  EXPECT_FALSE(history.Find(HistoryKey(3))->verdict.has_value());
  history.Decide(HistoryKey(3), {.verdict = Verdict::kApplied,
                                 .version = Version(4),
                                 .next = {.kind = AssignmentKind::kTrain,
                                          .sequence = Sequence(9)}});
  history.Decide(HistoryKey(3), {.verdict = Verdict::kDropped});
  const PushVerdict& held = *history.Find(HistoryKey(3))->verdict;
  EXPECT_EQ(held.verdict, Verdict::kApplied);
  EXPECT_EQ(held.next.sequence, Sequence());
  EXPECT_EQ(history.last_verdict()->version, Version(4));
}

// Sequences 1 to kKept + 2; 1 and 2 are forgotten.
TEST(PushHistoryTest, WhatIsOlderThanTheLastSixteenIsForgottenNotImpossible) {
  PushHistory history;
  const auto last = static_cast<int64_t>(PushHistory::kKept) + 2;
  for (int64_t s = 1; s <= last; ++s) history.Give(HistoryKey(s));
  EXPECT_TRUE(history.Forgotten(HistoryKey(1)));
  EXPECT_TRUE(history.Forgotten(HistoryKey(2)));
  EXPECT_FALSE(history.Forgotten(HistoryKey(2, 1)));
  EXPECT_NE(history.Find(HistoryKey(3)), nullptr);
  EXPECT_FALSE(history.Forgotten(HistoryKey(3, 1)));
  EXPECT_FALSE(history.Forgotten(HistoryKey(0)));
  EXPECT_FALSE(history.Forgotten(HistoryKey(1, -1)));
  EXPECT_FALSE(history.Forgotten(HistoryKey(last + 1)));
}

TEST(PushHistoryTest, WhatAnEarlierProcessGaveIsForgotten) {
  PushHistory history;
  history.ForgetBelow(Sequence(40));
  EXPECT_TRUE(history.Forgotten(HistoryKey(39, 2)));
  EXPECT_FALSE(history.Forgotten(HistoryKey(40)));
}

}  // namespace
}  // namespace cohort
