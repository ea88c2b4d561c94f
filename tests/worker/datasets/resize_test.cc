#include "worker/datasets/resize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "common/permutation.h"

namespace cohort {
namespace {

using testing::ElementsAre;

TEST(ResizeImageTest, TheSameSizeIsTheSameImage) {
  std::vector<uint8_t> pixels;
  for (int i = 0; i < 2 * 3 * 5; ++i) {
    pixels.push_back(static_cast<uint8_t>(8 * i));
  }
  const ImageSize size{.height = 3, .width = 5};
  EXPECT_EQ(ResizeImage(pixels, 2, size, size), pixels);
}

// Centres at 1/4, 3/4, 5/4, 7/4 of two pixels with centres 1/2 and 3/2. The
// outer ones lie beyond the centres and take the edge; the inner ones lie a
// quarter of the way.
TEST(ResizeImageTest, TwiceTheWidthInterpolates) {
  EXPECT_THAT(ResizeImage({0, 200}, 1, {.height = 1, .width = 2},
                          {.height = 1, .width = 4}),
              ElementsAre(0, 50, 150, 200));
}

// Half the width: a triangle of reach 2 around the border between two pixels
// weighs them 3/4 and 3/4, their outer neighbours 1/4 and 1/4. Inside: sums
// to 2. At the edge the one outer neighbour that exists: 3, 3, 1 of 7.
TEST(ResizeImageTest, HalfTheWidthCountsEveryPixel) {
  EXPECT_THAT(ResizeImage({70, 0, 0, 0, 0, 0, 0, 0}, 1,
                          {.height = 1, .width = 8}, {.height = 1, .width = 4}),
              ElementsAre(30, 0, 0, 0));
  EXPECT_THAT(ResizeImage({0, 0, 0, 80, 0, 0, 0, 0}, 1,
                          {.height = 1, .width = 8}, {.height = 1, .width = 4}),
              ElementsAre(0, 30, 10, 0));
}

// The definition, as a double sum over the whole image, unseparated.
double Reference(const std::vector<uint8_t>& pixels, const ImageSize& from,
                 const ImageSize& to, int64_t row, int64_t column) {
  const auto weight = [](int64_t at, int64_t old_extent, int64_t new_extent,
                         int64_t out) {
    const double step =
        static_cast<double>(old_extent) / static_cast<double>(new_extent);
    const double centre = (static_cast<double>(out) + 0.5) * step;
    return std::max(0.0, 1 - std::abs(static_cast<double>(at) + 0.5 - centre) /
                                 std::max(1.0, step));
  };
  double sum = 0;
  double weights = 0;
  for (int64_t y = 0; y < from.height; ++y) {
    for (int64_t x = 0; x < from.width; ++x) {
      const double w = weight(y, from.height, to.height, row) *
                       weight(x, from.width, to.width, column);
      sum += w * pixels[static_cast<size_t>(y * from.width + x)];
      weights += w;
    }
  }
  return sum / weights;
}

// Half a unit of rounding; the error of double sums is negligible.
TEST(ResizeImageTest, AnySizeFollowsTheDefinition) {
  const ImageSize from{.height = 7, .width = 11};
  SplitMix64 random(3);
  std::vector<uint8_t> pixels;
  for (int i = 0; i < 77; ++i) {
    pixels.push_back(static_cast<uint8_t>(random.Below(256)));
  }
  for (const ImageSize& to : {ImageSize{3, 4}, ImageSize{13, 5},
                              ImageSize{1, 1}, ImageSize{20, 30}}) {
    const std::vector<uint8_t> got = ResizeImage(pixels, 1, from, to);
    ASSERT_EQ(static_cast<int64_t>(got.size()), to.height * to.width);
    for (int64_t i = 0; i < to.height * to.width; ++i) {
      EXPECT_NEAR(got[static_cast<size_t>(i)],
                  Reference(pixels, from, to, i / to.width, i % to.width),
                  0.5 + 1e-9)
          << ToText(to) << ", element " << i;
    }
  }
}

TEST(ResizeMaskTest, TakesTheLabelUnderTheCentreAndMakesNoNewOnes) {
  EXPECT_THAT(
      ResizeMask({1, 9}, {.height = 1, .width = 2}, {.height = 1, .width = 4}),
      ElementsAre(1, 1, 9, 9));
  // Centres 5/6, 15/6 and 25/6 of five pixels.
  EXPECT_THAT(ResizeMask({0, 1, 2, 3, 4}, {.height = 1, .width = 5},
                         {.height = 1, .width = 3}),
              ElementsAre(0, 2, 4));
  EXPECT_THAT(ResizeMask({1, 2, 3, 4}, {.height = 2, .width = 2},
                         {.height = 4, .width = 2}),
              ElementsAre(1, 2, 1, 2, 3, 4, 3, 4));
}

}  // namespace
}  // namespace cohort
