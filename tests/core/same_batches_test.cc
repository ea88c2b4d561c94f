#include "server/core/policy/same_batches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// One digest a rank, from rank 0 on; 0: none.
std::vector<BatchDigest> Step(const std::vector<uint64_t>& digests) {
  std::vector<BatchDigest> step;
  for (size_t i = 0; i < digests.size(); ++i) {
    if (digests[i] == 0) continue;
    step.push_back(
        {.rank = Rank(static_cast<int32_t>(i)), .digest = digests[i]});
  }
  return step;
}

class SameBatchesTest : public testing::Test {
 protected:
  SameBatches same_;
};

TEST_F(SameBatchesTest, EqualBatchesInThreeStepsInARowAreToldOnce) {
  EXPECT_THAT(same_.NoteStep(Step({7, 7, 5, 7})), IsEmpty());
  EXPECT_THAT(same_.NoteStep(Step({8, 8, 6, 8})), IsEmpty());
  EXPECT_THAT(same_.NoteStep(Step({9, 9, 4, 9})),
              ElementsAre(Rank(0), Rank(1), Rank(3)));
  for (uint64_t i = 10; i < 20; ++i) {
    EXPECT_THAT(same_.NoteStep(Step({i, i, i, i})), IsEmpty());
  }
}

// A small data set has equal batches by chance.
TEST_F(SameBatchesTest, OneStepThatDiffersStartsTheCountAgain) {
  for (int i = 0; i < 5; ++i) {
    EXPECT_THAT(same_.NoteStep(Step({7, 7})), IsEmpty());
    EXPECT_THAT(same_.NoteStep(Step({8, 8})), IsEmpty());
    EXPECT_THAT(same_.NoteStep(Step({9, 1})), IsEmpty());
  }
}

TEST_F(SameBatchesTest, OtherTwinsInEachStepAreChance) {
  for (int i = 0; i < 5; ++i) {
    EXPECT_THAT(same_.NoteStep(Step({7, 8, 7})), IsEmpty());
    EXPECT_THAT(same_.NoteStep(Step({7, 8, 8})), IsEmpty());
  }
}

TEST_F(SameBatchesTest, StepsWithoutDigestsAreNotCompared) {
  for (uint64_t i = 1; i < 3; ++i) {
    EXPECT_THAT(same_.NoteStep(Step({i, i})), IsEmpty());
    EXPECT_THAT(same_.NoteStep(Step({0, 0})), IsEmpty());
    EXPECT_THAT(same_.NoteStep(Step({0, 4})), IsEmpty());
  }
  EXPECT_THAT(same_.NoteStep(Step({3, 3})), ElementsAre(Rank(0), Rank(1)));
}

TEST_F(SameBatchesTest, APushIsComparedWithTheLastOnesOfOtherRanks) {
  const auto push = [this](int32_t rank, uint64_t digest) {
    return same_.NotePush({.rank = Rank(rank), .digest = digest});
  };
  // Rank 2 is ahead of rank 0, which makes the same batches later.
  for (uint64_t i = 1; i <= 5; ++i) EXPECT_THAT(push(2, i), IsEmpty());
  EXPECT_THAT(push(1, 77), IsEmpty());
  EXPECT_THAT(push(0, 1), IsEmpty());
  EXPECT_THAT(push(0, 2), IsEmpty());
  EXPECT_THAT(push(0, 3), ElementsAre(Rank(0), Rank(2)));
  EXPECT_THAT(push(0, 4), IsEmpty());
}

TEST_F(SameBatchesTest, RanksMayTakeTurnsToBeAhead) {
  std::vector<Rank> told;
  for (uint64_t i = 1; i <= 3 && told.empty(); ++i) {
    for (int32_t k : {0, 1}) {
      const int32_t rank = i % 2 == 0 ? k : 1 - k;
      told = same_.NotePush({.rank = Rank(rank), .digest = i});
    }
  }
  EXPECT_THAT(told, ElementsAre(Rank(0), Rank(1)));
}

// Of few samples some are equal now and then.
TEST_F(SameBatchesTest, EqualPushesAmongOthersAreChance) {
  uint64_t next = 1'000;
  for (int i = 0; i < 20; ++i) {
    EXPECT_THAT(same_.NotePush({.rank = Rank(0), .digest = 5}), IsEmpty());
    EXPECT_THAT(same_.NotePush({.rank = Rank(1), .digest = 5}), IsEmpty());
    for (int k = 0; k < 10; ++k) {
      for (int32_t rank : {0, 1}) {
        EXPECT_THAT(same_.NotePush({.rank = Rank(rank), .digest = next++}),
                    IsEmpty());
      }
    }
  }
}

// Each push is another rank's, too, but never twice in a row of the same one.
TEST_F(SameBatchesTest, OtherTwinsInEachPushAreChance) {
  for (int i = 0; i < 24; ++i) {
    for (int32_t rank : {0, 1, 2, 3}) {
      // 0 with 1 and 2 with 3, then 0 with 2 and 1 with 3, and so on.
      const int32_t twin = rank ^ (1 + i % 3);
      const auto digest = static_cast<uint64_t>(10 * i + std::min(rank, twin));
      EXPECT_THAT(same_.NotePush({.rank = Rank(rank), .digest = digest + 1}),
                  IsEmpty());
    }
  }
}

// With one full batch every step of a rank is the same.
TEST_F(SameBatchesTest, ARankIsNotComparedWithItself) {
  for (int i = 0; i < 9; ++i) {
    EXPECT_THAT(same_.NotePush({.rank = Rank(0), .digest = 5}), IsEmpty());
    EXPECT_THAT(same_.NotePush({.rank = Rank(1), .digest = 6}), IsEmpty());
  }
}

TEST_F(SameBatchesTest, TheTextNamesTheRanksAndWhatToDo) {
  const std::string text = SameBatchesText({Rank(0), Rank(1), Rank(3)});
  EXPECT_THAT(text, HasSubstr("ranks 0, 1 and 3 train the same batches"));
  EXPECT_THAT(text, HasSubstr("torch.manual_seed(seed + rank)"));
}

}  // namespace
}  // namespace cohort
