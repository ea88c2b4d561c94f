#include "common/measures/staleness_histogram.h"

#include <gtest/gtest.h>

namespace cohort {
namespace {

TEST(StalenessTextTest, RangesDoubleAndSharesAddUp) {
  EXPECT_EQ(StalenessText({{0, 1}, {1, 6}, {2, 2}, {3, 1}, {4, 5}, {7, 5}}),
            "0: 5 %, 1: 30 %, 2-3: 15 %, 4-7: 50 %");
}

TEST(StalenessTextTest, TheLastRangeIsOpen) {
  EXPECT_EQ(StalenessText({{128, 1}, {256, 3}}),
            "128-255: 25 %, 256 or more: 75 %");
}

TEST(StalenessTextTest, NothingCountedSaysNothing) {
  EXPECT_EQ(StalenessText({}), "");
}

}  // namespace
}  // namespace cohort
