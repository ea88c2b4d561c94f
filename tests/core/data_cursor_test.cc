#include "server/core/ledger/data_cursor.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using Piece = DataCursor::Piece;

TEST(DataCursorTest, CutsConsecutiveRangesInTheOrderAskedFor) {
  const DataCursor cursor(10, 1);
  const StepCut cut = cursor.Cut({3, 1, 2});
  EXPECT_EQ(cut.epoch, 0);
  EXPECT_EQ(cut.ranges, (std::vector<IndexRange>{{0, 3}, {3, 4}, {4, 6}}));
  EXPECT_EQ(cut.begin, 0);
  EXPECT_EQ(cut.end, 6);
}

TEST(DataCursorTest, ACutThatIsNotTakenLeavesNoTrace) {
  DataCursor cursor(10, 1);
  cursor.Cut({4, 4});
  EXPECT_EQ(cursor.position(), 0);
  EXPECT_FALSE(cursor.Take(cursor.Cut({4})));
  EXPECT_EQ(cursor.position(), 4);
}

TEST(DataCursorTest, LastRangesOfAnEpochAreShortOrEmpty) {
  DataCursor cursor(7, 2);
  EXPECT_FALSE(cursor.Take(cursor.Cut({2, 2})));
  const StepCut last = cursor.Cut({2, 2, 2});
  EXPECT_EQ(last.ranges, (std::vector<IndexRange>{{4, 6}, {6, 7}, {7, 7}}));
  EXPECT_TRUE(cursor.Take(last));
  EXPECT_EQ(cursor.epoch(), 1);
  EXPECT_EQ(cursor.position(), 0);
}

// The rest of an epoch is divided as a whole step is.
TEST(DataCursorTest, SharesDivideTheRestOfAnEpoch) {
  DataCursor cursor(12, 2);
  const ShareRule rule{.weights = {3, 1}, .batch_sizes_max = {0, 0}};
  const StepCut first = cursor.Cut({4, 4}, 0, rule);
  EXPECT_EQ(first.ranges, (std::vector<IndexRange>{{0, 6}, {6, 8}}));
  EXPECT_FALSE(cursor.Take(first));
  const StepCut last = cursor.Cut({4, 4}, 0, rule);
  EXPECT_EQ(last.ranges, (std::vector<IndexRange>{{8, 11}, {11, 12}}));
  EXPECT_TRUE(cursor.Take(last));
}

TEST(DataCursorTest, LocalStepsAreCutOneAfterAnother) {
  DataCursor cursor(11, 2);
  const StepCut cut = cursor.Cut({2, 1}, 0, {}, 3);
  EXPECT_EQ(cut.local_count(), 3);
  EXPECT_EQ(cut.local_steps[0],
            (std::vector<IndexRange>{{0, 2}, {3, 5}, {6, 8}}));
  EXPECT_EQ(cut.local_steps[1],
            (std::vector<IndexRange>{{2, 3}, {5, 6}, {8, 9}}));
  EXPECT_EQ(cut.ranges, (std::vector<IndexRange>{{0, 6}, {0, 3}}));
  EXPECT_FALSE(cursor.Take(cut));
  EXPECT_EQ(cursor.position(), 9);
  const StepCut last = cursor.Cut({2, 1}, 0, {}, 3);
  EXPECT_EQ(last.local_steps[0], (std::vector<IndexRange>{{9, 11}}));
  EXPECT_EQ(last.local_steps[1], (std::vector<IndexRange>{{11, 11}}));
  EXPECT_TRUE(cursor.Take(last));
}

TEST(DataCursorTest, IsExhaustedAfterTheLastEpoch) {
  DataCursor cursor(4, 2);
  EXPECT_TRUE(cursor.Take(cursor.Cut({4})));
  EXPECT_FALSE(cursor.exhausted());
  EXPECT_TRUE(cursor.Take(cursor.Cut({9})));
  EXPECT_TRUE(cursor.exhausted());
}

TEST(DataCursorTest, NextHandsOutShortPiecesAtTheEndOfEachEpoch) {
  DataCursor cursor(5, 2);
  EXPECT_EQ(cursor.Next(3)->range, (IndexRange{0, 3}));
  const std::optional<Piece> second = cursor.Next(3);
  EXPECT_EQ(second->range, (IndexRange{3, 5}));
  EXPECT_EQ(second->epoch, 0);
  const std::optional<Piece> third = cursor.Next(9);
  EXPECT_EQ(third->range, (IndexRange{0, 5}));
  EXPECT_EQ(third->epoch, 1);
  EXPECT_FALSE(cursor.Next(1).has_value());
  EXPECT_TRUE(cursor.exhausted());
}

TEST(DataCursorTest, ALostPieceIsHandedOutAgainFirstAndWhole) {
  DataCursor cursor(6, 1);
  const Piece lost = *cursor.Next(4);
  cursor.Next(2);
  EXPECT_TRUE(cursor.exhausted());
  cursor.Reissue(lost);
  EXPECT_FALSE(cursor.exhausted());
  EXPECT_EQ(cursor.Next(1)->range, (IndexRange{0, 4}));
}

TEST(DataCursorTest, AnEpochEndsWithItsLastDecidedPieceNotItsLastIssued) {
  DataCursor cursor(4, 2);
  const Piece first = *cursor.Next(2);
  const Piece second = *cursor.Next(2);
  const Piece next_epoch = *cursor.Next(4);
  EXPECT_FALSE(cursor.Finish(second).has_value());
  EXPECT_EQ(cursor.Finish(next_epoch), 1);
  EXPECT_EQ(cursor.Finish(first), 0);
}

// Restored at position 3 of 6 of epoch 1. [4, 6) of epoch 0 and [0, 1) of epoch
// 1 had been handed out and not decided.
TEST(DataCursorTest, RestoreKeepsOpenPiecesAndTheEndsOfEpochs) {
  DataCursor cursor(6, 2);
  cursor.Restore(1, 3);
  cursor.RestoreOpen(
      {{.epoch = 0, .range = {4, 6}}, {.epoch = 1, .range = {0, 1}}});
  const Piece old = *cursor.Next(3);
  EXPECT_EQ(old.epoch, 0);
  EXPECT_EQ(old.range, (IndexRange{4, 6}));
  const Piece again = *cursor.Next(3);
  EXPECT_EQ(again.range, (IndexRange{0, 1}));
  const Piece fresh = *cursor.Next(3);
  EXPECT_EQ(fresh.range, (IndexRange{3, 6}));
  EXPECT_FALSE(cursor.Finish(fresh).has_value());
  EXPECT_EQ(cursor.Finish(old), 0);
  EXPECT_EQ(cursor.Finish(again), 1);
}

TEST(DataCursorDeathTest, DecidingAPieceTwiceIsABug) {
  DataCursor cursor(4, 1);
  const Piece piece = *cursor.Next(3);
  cursor.Finish(piece);
  EXPECT_DEATH(cursor.Finish(piece), "decided twice");
}

// ---- the workers' own data

TEST(DataCursorTest, OwnDataHasEmptyRangesAndNoEnd) {
  DataCursor cursor = DataCursor::WithoutRanges();
  for (int step = 0; step < 3; ++step) {
    const StepCut cut = cursor.Cut({3, 1});
    EXPECT_TRUE(cut.without_ranges);
    EXPECT_EQ(cut.ranges, (std::vector<IndexRange>(2)));
    EXPECT_FALSE(cursor.Take(cut));
    const Piece piece = OkValue(cursor.Next(3));
    EXPECT_TRUE(piece.range.empty());
    EXPECT_EQ(piece.epoch, 0);
    EXPECT_FALSE(cursor.Finish(piece).has_value());
  }
  EXPECT_FALSE(cursor.exhausted());
  EXPECT_EQ(cursor.epoch(), 0);
  EXPECT_EQ(cursor.position(), 0);
}

TEST(DataCursorTest, OwnDataIsNotIssuedAgain) {
  DataCursor cursor = DataCursor::WithoutRanges();
  cursor.Reissue(*cursor.Next(2));
  EXPECT_TRUE(cursor.reissue().empty());
  EXPECT_TRUE(cursor.Cut({2}).without_ranges);
  EXPECT_FALSE(cursor.Cut({2}).reissued);
}

TEST(DataCursorTest, OwnDataIsRestoredAtTheStart) {
  DataCursor cursor = DataCursor::WithoutRanges();
  cursor.Restore(0, 0);
  cursor.RestoreOpen({});
  EXPECT_FALSE(cursor.exhausted());
  EXPECT_TRUE(cursor.Cut({1}).without_ranges);
}

// Numbered data that is used up has empty ranges, too.
TEST(DataCursorTest, AShortRangeIsNoOwnData) {
  const DataCursor cursor(3, 1);
  const StepCut cut = cursor.Cut({3, 1});
  EXPECT_TRUE(cut.ranges[1].empty());
  EXPECT_FALSE(cut.without_ranges);
}

}  // namespace
}  // namespace cohort
