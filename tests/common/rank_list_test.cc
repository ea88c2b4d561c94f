#include "common/rank_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "common/ids.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(RankListTest, HoldsTheRanksInTheirOrder) {
  const RankList list = {Rank(4), Rank(1)};
  EXPECT_THAT(list, ElementsAre(Rank(4), Rank(1)));
  EXPECT_EQ(list.size(), 2);
  EXPECT_FALSE(list.empty());
  EXPECT_EQ(list.front(), Rank(4));
}

TEST(RankListTest, WithoutRanksIsEmpty) {
  EXPECT_THAT(RankList(), IsEmpty());
  EXPECT_EQ(RankList(), RankList(std::vector<Rank>()));
}

TEST(RankListTest, CopiesShareTheRanks) {
  const RankList list = {Rank(0), Rank(1)};
  const RankList copy =
      list;  // NOLINT(performance-unnecessary-copy-initialization)
  EXPECT_EQ(copy.begin(), list.begin());
}

TEST(RankListTest, WithoutARankHoldsTheOthers) {
  const RankList list = {Rank(0), Rank(1), Rank(2)};
  EXPECT_THAT(list.Without(Rank(1)), ElementsAre(Rank(0), Rank(2)));
  EXPECT_THAT(list, ElementsAre(Rank(0), Rank(1), Rank(2)));
  EXPECT_EQ(list.Without(Rank(7)), list);
}

TEST(RankListTest, EqualIfTheRanksAre) {
  const RankList list = {Rank(0), Rank(1)};
  EXPECT_EQ(list, (RankList{Rank(0), Rank(1)}));
  EXPECT_NE(list, (RankList{Rank(1), Rank(0)}));
  EXPECT_NE(list, RankList());
  EXPECT_NE(RankList(), list);
}

}  // namespace
}  // namespace cohort
