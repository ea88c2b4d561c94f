#include "worker/datasets/augmentation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include "common/permutation.h"
#include "tests/worker/datasets/written_images.h"
#include "worker/datasets/image_table.h"

namespace cohort {
namespace {

using testing::Each;
using testing::ElementsAre;

constexpr Augmentations kAll = {
    .flip = true, .crop = true, .scale = true, .jitter = true};
constexpr ImageSize kSize = {.height = 24, .width = 32};

std::vector<SampleChange> Draw(const Augmentations& augmentations,
                               int64_t count) {
  std::vector<SampleChange> changes;
  for (int64_t i = 0; i < count; ++i) {
    changes.push_back(DrawChange(
        augmentations, kSize, {.run_seed = 1, .data_epoch = 2, .sample = i}));
  }
  return changes;
}

std::array<double, 8> NumbersOf(const SampleChange& change) {
  return {change.flip ? 1.0 : 0.0,
          static_cast<double>(change.height),
          static_cast<double>(change.width),
          static_cast<double>(change.top),
          static_cast<double>(change.left),
          change.brightness,
          change.contrast,
          change.saturation};
}

TEST(DrawChangeTest, IsAFunctionOfSeedEpochAndSample) {
  std::set<std::array<double, 8>> drawn;
  for (const uint64_t seed : {1, 2}) {
    for (const int64_t epoch : {0, 1}) {
      for (const int64_t sample : {0, 1}) {
        const ChangeKey key{
            .run_seed = seed, .data_epoch = epoch, .sample = sample};
        const auto numbers = NumbersOf(DrawChange(kAll, kSize, key));
        EXPECT_EQ(numbers, NumbersOf(DrawChange(kAll, kSize, key)));
        drawn.insert(numbers);
      }
    }
  }
  EXPECT_EQ(drawn.size(), 8u);
}

TEST(DrawChangeTest, NothingSwitchedOnChangesNothing) {
  for (const SampleChange& change : Draw({}, 50)) {
    EXPECT_THAT(NumbersOf(change), ElementsAre(0, 24, 32, 0, 0, 1, 1, 1));
  }
}

TEST(DrawChangeTest, OneSwitchDoesNotMoveTheOthersDraws) {
  const std::vector<SampleChange> all = Draw(kAll, 50);
  const std::vector<SampleChange> flips = Draw({.flip = true}, 50);
  const std::vector<SampleChange> scales =
      Draw({.crop = true, .scale = true}, 50);
  const std::vector<SampleChange> colours = Draw({.jitter = true}, 50);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].flip, flips[i].flip);
    EXPECT_EQ(all[i].height, scales[i].height);
    EXPECT_EQ(all[i].top, scales[i].top);
    EXPECT_EQ(all[i].left, scales[i].left);
    EXPECT_EQ(all[i].brightness, colours[i].brightness);
    EXPECT_EQ(all[i].saturation, colours[i].saturation);
  }
}

// 2000 fair throws: 5 standard deviations are 112.
TEST(DrawChangeTest, HalfOfTheSamplesAreFlipped) {
  const std::vector<SampleChange> changes = Draw({.flip = true}, 2000);
  EXPECT_NEAR(std::count_if(changes.begin(), changes.end(),
                            [](const SampleChange& c) { return c.flip; }),
              1000, 112);
}

TEST(DrawChangeTest, ACropReachesAnEighthBeyondEachEdgeAndNoFurther) {
  std::set<int64_t> tops;
  std::set<int64_t> lefts;
  for (const SampleChange& change : Draw({.crop = true}, 2000)) {
    EXPECT_EQ(change.height, 24);
    tops.insert(change.top);
    lefts.insert(change.left);
  }
  // All of -3..3 and -4..4, each many times over in 2000 draws.
  EXPECT_THAT(tops, ElementsAre(-3, -2, -1, 0, 1, 2, 3));
  EXPECT_THAT(lefts, ElementsAre(-4, -3, -2, -1, 0, 1, 2, 3, 4));
}

TEST(DrawChangeTest, ScalesLieBetweenHalfAndDoubleAndKeepTheShape) {
  double smallest = 9;
  double largest = 0;
  for (const SampleChange& change : Draw({.crop = true, .scale = true}, 2000)) {
    const double scale = static_cast<double>(change.width) / 32;
    smallest = std::min(smallest, scale);
    largest = std::max(largest, scale);
    // Each side is rounded separately: half a pixel each.
    EXPECT_NEAR(static_cast<double>(change.height), 24 * scale, 0.5 + 0.375);
    // A larger image fills the frame, a smaller one lies within it.
    const int64_t slack = change.height - 24;
    EXPECT_GE(change.top, std::min<int64_t>(0, slack));
    EXPECT_LE(change.top, std::max<int64_t>(0, slack));
  }
  EXPECT_NEAR(smallest, 0.5, 0.02);
  EXPECT_NEAR(largest, 2, 0.02);
}

TEST(DrawChangeTest, ScaleWithoutCropShowsTheMiddle) {
  for (const SampleChange& change : Draw({.scale = true}, 50)) {
    EXPECT_EQ(change.top, (change.height - 24) / 2);
    EXPECT_EQ(change.left, (change.width - 32) / 2);
  }
}

TEST(DrawChangeTest, ColoursMoveByAFifthAtMost) {
  for (const SampleChange& change : Draw({.jitter = true}, 500)) {
    for (const double factor :
         {change.brightness, change.contrast, change.saturation}) {
      EXPECT_GE(factor, 0.8);
      EXPECT_LE(factor, 1.2);
    }
  }
}

std::vector<float> Changed(const SampleChange& change,
                           const std::vector<uint8_t>& pixels,
                           const ImageSize& size, int64_t channels = 1) {
  std::vector<float> out(pixels.size(), -1.0F);
  ChangeImage(change,
              {.pixels = pixels.data(), .channels = channels, .size = size},
              out.data());
  return out;
}

std::vector<int64_t> ChangedMask(const SampleChange& change,
                                 const std::vector<uint8_t>& labels,
                                 const ImageSize& size) {
  std::vector<int64_t> out(labels.size());
  ChangeMask(change, {.labels = labels.data(), .size = size}, out.data());
  return out;
}

TEST(ChangeTest, AFlipTurnsImageAndMask) {
  const ImageSize size{.height = 2, .width = 3};
  const SampleChange flip{.flip = true, .height = 2, .width = 3};
  const std::vector<uint8_t> numbers = {1, 2, 3, 4, 5, 6};
  EXPECT_THAT(Changed(flip, numbers, size), ElementsAre(3, 2, 1, 6, 5, 4));
  EXPECT_THAT(ChangedMask(flip, numbers, size), ElementsAre(3, 2, 1, 6, 5, 4));
}

TEST(ChangeTest, ACropMovesAndPads) {
  const ImageSize size{.height = 2, .width = 3};
  const SampleChange down{.height = 2, .width = 3, .top = -1, .left = 1};
  const std::vector<uint8_t> numbers = {1, 2, 3, 4, 5, 6};
  // -1 is the output's previous content: padding is not written.
  EXPECT_THAT(Changed(down, numbers, size), ElementsAre(-1, -1, -1, 2, 3, -1));
  EXPECT_THAT(ChangedMask(down, numbers, size),
              ElementsAre(-1, -1, -1, 2, 3, -1));
}

TEST(ChangeTest, TheIgnoredLabelStaysIgnored) {
  EXPECT_THAT(ChangedMask({.height = 1, .width = 3}, {0, 255, 7},
                          {.height = 1, .width = 3}),
              ElementsAre(0, -1, 7));
}

// As in ResizeImageTest: 0, 50, 150, 200. The middle two are shown; labels
// double.
TEST(ChangeTest, ADoubledImageInterpolatesAndADoubledMaskDoesNot) {
  const SampleChange twice{.height = 2, .width = 4, .top = 0, .left = 1};
  const ImageSize size{.height = 1, .width = 2};
  EXPECT_THAT(Changed(twice, {0, 200}, size), ElementsAre(50, 150));
  EXPECT_THAT(ChangedMask(twice, {3, 4}, size), ElementsAre(3, 4));
  const SampleChange flipped{
      .flip = true, .height = 2, .width = 4, .top = 0, .left = 1};
  EXPECT_THAT(Changed(flipped, {0, 200}, size), ElementsAre(150, 50));
}

// Bilinear interpolation written as a sum over all pixels with weights
// max(0, 1 - distance), at places cut to the image.
double Reference(const std::vector<uint8_t>& pixels, const ImageSize& size,
                 const SampleChange& change, int64_t y, int64_t x) {
  const auto place = [](int64_t at, int64_t extent, int64_t scaled, bool flip) {
    double centre = (static_cast<double>(at) + 0.5) *
                    static_cast<double>(extent) / static_cast<double>(scaled);
    if (flip) centre = static_cast<double>(extent) - centre;
    return std::clamp(centre - 0.5, 0.0, static_cast<double>(extent - 1));
  };
  const double row = place(y + change.top, size.height, change.height, false);
  const double column =
      place(x + change.left, size.width, change.width, change.flip);
  double sum = 0;
  for (int64_t i = 0; i < size.height * size.width; ++i) {
    const double dy = std::abs(static_cast<double>(i / size.width) - row);
    const double dx = std::abs(static_cast<double>(i % size.width) - column);
    sum += std::max(0.0, 1 - dy) * std::max(0.0, 1 - dx) *
           pixels[static_cast<size_t>(i)];
  }
  return sum;
}

// Only positions change, so float's rounding of numbers up to 255 is the only
// difference: 255 * 2^-24 < 2e-5.
TEST(ChangeTest, AnyScaleFollowsTheDefinitionInItsWindowAndNowhereElse) {
  SplitMix64 random(5);
  std::vector<uint8_t> pixels;
  for (int64_t i = 0; i < kSize.height * kSize.width; ++i) {
    pixels.push_back(static_cast<uint8_t>(random.Below(256)));
  }
  for (const SampleChange& change :
       Draw({.flip = true, .crop = true, .scale = true}, 20)) {
    const std::vector<float> got = Changed(change, pixels, kSize);
    for (int64_t i = 0; i < kSize.height * kSize.width; ++i) {
      const int64_t y = i / kSize.width;
      const int64_t x = i % kSize.width;
      const bool shown = y + change.top >= 0 &&
                         y + change.top < change.height &&
                         x + change.left >= 0 && x + change.left < change.width;
      EXPECT_NEAR(got[static_cast<size_t>(i)],
                  shown ? Reference(pixels, kSize, change, y, x) : -1, 2e-5);
    }
  }
}

// Every pixel's label is its own grey value, in steps of two columns. Away from
// steps both must agree, however the sample was flipped, scaled and cropped.
TEST(ChangeTest, ImageAndMaskAreChangedAlike) {
  std::vector<uint8_t> pixels;
  for (int64_t i = 0; i < kSize.height * kSize.width; ++i) {
    pixels.push_back(static_cast<uint8_t>(i % kSize.width / 8 * 50 +
                                          i / kSize.width / 12 * 20));
  }
  for (const SampleChange& change :
       Draw({.flip = true, .crop = true, .scale = true}, 30)) {
    const std::vector<float> image = Changed(change, pixels, kSize);
    const std::vector<int64_t> mask = ChangedMask(change, pixels, kSize);
    int64_t equal = 0;
    for (size_t i = 0; i < image.size(); ++i) {
      EXPECT_EQ(image[i] < 0, mask[i] < 0) << "padding at " << i;
      equal += std::abs(image[i] - static_cast<double>(mask[i])) < 1e-4 ? 1 : 0;
    }
    // At most 2 columns of each of 4 steps of 8 columns are interpolated, and 2
    // rows of a step of 12; more if the image is enlarged by less than 2, but
    // never half of all pixels.
    EXPECT_GT(equal, static_cast<int64_t>(image.size()) / 2);
  }
}

TEST(ChangeTest, ColoursFollowTheFormulas) {
  const ImageSize size{.height = 1, .width = 2};
  const std::vector<uint8_t> pixels = {200, 40, 100, 80, 50, 120};
  const SampleChange change{.height = 1,
                            .width = 2,
                            .brightness = 1.1,
                            .contrast = 0.9,
                            .saturation = 1.2};
  const std::vector<float> got = Changed(change, pixels, size, 3);
  const auto grey = [](const std::array<double, 3>& p) {
    return 0.299 * p[0] + 0.587 * p[1] + 0.114 * p[2];
  };
  std::array<std::array<double, 3>, 2> wanted = {
      {{200, 100, 50}, {40, 80, 120}}};
  for (auto& pixel : wanted) {
    for (double& value : pixel) value *= 1.1;
  }
  const double mean = (grey(wanted[0]) + grey(wanted[1])) / 2;
  for (size_t x = 0; x < 2; ++x) {
    for (double& value : wanted[x]) value = 0.9 * value + 0.1 * mean;
    const double own = grey(wanted[x]);
    for (size_t c = 0; c < 3; ++c) {
      // A few roundings of float at numbers up to 255: 255 * 2^-22.
      EXPECT_NEAR(got[2 * c + x],
                  std::clamp(1.2 * wanted[x][c] - 0.2 * own, 0.0, 255.0), 7e-5);
    }
  }
}

TEST(ChangeTest, ColoursStayColours) {
  const std::vector<float> bright =
      Changed({.height = 1, .width = 1, .brightness = 1.2}, {250, 255, 0},
              {.height = 1, .width = 1}, 3);
  EXPECT_THAT(bright, ElementsAre(255, 255, 0));
}

// A red and a blue train image of 8x8 whose masks are 1 and 2.
std::unique_ptr<Dataset> TwoColours(const Augmentations& augmentations) {
  ImageTable table{.name = "two",
                   .task = DatasetTask::kSegmentation,
                   .classes = 3,
                   .channels = 3,
                   .height = 8,
                   .width = 8};
  for (const uint8_t colour : {1, 2}) {
    for (int c = 0; c < 3; ++c) {
      const uint8_t value = c == colour - 1 ? 200 : 0;
      table.train.pixels.insert(table.train.pixels.end(), 64, value);
    }
    table.train.masks.insert(table.train.masks.end(), 64, colour);
  }
  table.train.samples = 2;
  table.test = table.train;
  return MakeImageDataset(std::move(table), augmentations);
}

TEST(AugmentedDatasetTest, PaddingIsZeroAndIgnored) {
  const auto data = TwoColours({.crop = true, .scale = true});
  int64_t padded = 0;
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    const Samples samples = ReadSamples(
        *data,
        {.indices = {0},
         .augmentation = AugmentationKey{.run_seed = 1, .data_epoch = epoch}});
    for (size_t i = 0; i < 64; ++i) {
      const bool ignored = samples.labels[i] == kIgnoredLabel;
      padded += ignored ? 1 : 0;
      // Channel 0 is 200 and 0, mean 100, deviation 100: red is +1.
      EXPECT_EQ(samples.images[i], ignored ? 0.0F : 1.0F);
      EXPECT_EQ(samples.labels[i], ignored ? kIgnoredLabel : 1);
    }
  }
  EXPECT_GT(padded, 0);
}

TEST(AugmentedDatasetTest, WithoutAKeyNothingIsChanged) {
  const auto plain = TwoColours({});
  const auto augmented = TwoColours(kAll);
  for (const DataSplit split : {DataSplit::kTrain, DataSplit::kTest}) {
    const std::vector<int64_t> both = {1, 0};
    const SampleRequest request{.split = split, .indices = both};
    const Samples want = ReadSamples(*plain, request);
    const Samples got = ReadSamples(*augmented, request);
    EXPECT_EQ(got.images, want.images);
    EXPECT_EQ(got.labels, want.labels);
    EXPECT_THAT(absl::MakeConstSpan(got.labels).subspan(0, 64), Each(2));
  }
  EXPECT_EQ(augmented->digest(), plain->digest());
}

TEST(AugmentedDatasetTest, WorkersThatAugmentDifferentlyHaveDifferentNames) {
  EXPECT_EQ(TwoColours({})->name(), "two");
  EXPECT_EQ(TwoColours({.flip = true, .jitter = true})->name(),
            "two (flip,jitter)");
}

TEST(AugmentedDatasetTest, ASampleDoesNotDependOnItsNeighbours) {
  const auto data = TwoColours(kAll);
  const AugmentationKey key{.run_seed = 9, .data_epoch = 4};
  const std::vector<int64_t> three = {1, 0, 1};
  const Samples together =
      ReadSamples(*data, {.indices = three, .augmentation = key});
  for (size_t i = 0; i < 3; ++i) {
    const Samples alone =
        ReadSamples(*data, {.indices = absl::MakeConstSpan(three).subspan(i, 1),
                            .augmentation = key});
    EXPECT_TRUE(
        std::equal(alone.images.begin(), alone.images.end(),
                   together.images.begin() + static_cast<int64_t>(i * 3 * 64)));
    EXPECT_TRUE(
        std::equal(alone.labels.begin(), alone.labels.end(),
                   together.labels.begin() + static_cast<int64_t>(i * 64)));
  }
}

TEST(NormalisationTest, EachChannelHasItsOwnMeanAndDeviation) {
  // Channels: 0 and 200 (mean 100, deviation 100); 200 and 0; always 0, which
  // has no deviation and becomes 0.
  const auto data = TwoColours({});
  const std::vector<int64_t> first = {0};
  const Samples samples = ReadSamples(*data, {.indices = first});
  const auto images = absl::MakeConstSpan(samples.images);
  EXPECT_THAT(images.subspan(0, 64), Each(1));
  EXPECT_THAT(images.subspan(64, 64), Each(-1));
  EXPECT_THAT(images.subspan(128, 64), Each(0));
}

}  // namespace
}  // namespace cohort
