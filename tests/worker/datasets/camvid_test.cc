// Real data: CamVid in VOC's layout, eleven classes and 255 for void, split
// into 367 and 101. COHORT_CAMVID_DIR names its folder.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "tests/worker/datasets/written_images.h"
#include "worker/datasets/dataset.h"

namespace cohort {
namespace {

using testing::ElementsAre;

class CamVidTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* dir = getenv("COHORT_CAMVID_DIR");
    if (dir == nullptr || *dir == '\0') {
      GTEST_SKIP() << "COHORT_CAMVID_DIR is not set: no CamVid to read";
    }
    options_ = {.name = "voc", .data_dir = dir, .loader_threads = 2};
  }

  DatasetOptions options_;
};

std::vector<int64_t> Numbers(int64_t count) {
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  return numbers;
}

TEST_F(CamVidTest, HasElevenClasses) {
  options_.image_size = ImageSize{.height = 45, .width = 60};
  const auto data = Make(options_);
  EXPECT_EQ(data->train_size(), 367);
  EXPECT_EQ(data->test_size(), 101);
  EXPECT_EQ(data->classes(), 11);
  EXPECT_EQ(data->height(), 45);
  EXPECT_EQ(data->width(), 60);
  options_.loader_threads = 1;
  EXPECT_EQ(Make(options_)->digest(), data->digest());
}

// Pixels of each class in val, void last, and nine labels of its first image,
// counted by a PNG decoder written for the purpose in Python.
TEST_F(CamVidTest, MasksAreReadPixelByPixel) {
  const auto data = Make(options_);
  if (data->height() != 180 || data->width() != 240) {
    GTEST_SKIP() << "the numbers are those of the version of 240x180 pixels, "
                    "and this one has "
                 << data->width() << "x" << data->height();
  }
  const std::vector<int64_t> all = Numbers(data->test_size());
  const Samples samples =
      ReadSamples(*data, {.split = DataSplit::kTest, .indices = all});
  std::array<int64_t, 12> counts = {};
  for (const int64_t label : samples.labels) {
    ++counts[label == kIgnoredLabel ? 11 : static_cast<size_t>(label)];
  }
  EXPECT_THAT(counts,
              ElementsAre(398283, 1128455, 24608, 1269605, 380337, 712482,
                          38813, 134859, 76359, 28314, 96668, 74417));
  std::vector<int64_t> nine;
  for (const size_t row : {0, 90, 179}) {
    for (const size_t column : {0, 120, 239}) {
      nine.push_back(samples.labels[row * 240 + column]);
    }
  }
  EXPECT_THAT(nine, ElementsAre(1, 0, 5, 1, 10, 7, 4, 3, 3));
}

// Sums of 367 images a channel in double; single pixels are floats of up to 3
// with an error of 2^-23 each way, which average out.
TEST_F(CamVidTest, EachChannelOfTrainHasMeanZeroAndDeviationOne) {
  options_.image_size = ImageSize{.height = 90, .width = 120};
  const auto data = Make(options_);
  const std::vector<int64_t> all = Numbers(data->train_size());
  const std::vector<float> images = ReadSamples(*data, {.indices = all}).images;
  constexpr size_t kPlane = 90 * 120;
  for (size_t c = 0; c < 3; ++c) {
    double sum = 0;
    double squares = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      for (size_t p = 0; p < kPlane; ++p) {
        const double value = images[(3 * i + c) * kPlane + p];
        sum += value;
        squares += value * value;
      }
    }
    const auto n = static_cast<double>(all.size() * kPlane);
    EXPECT_NEAR(sum / n, 0, 1e-6);
    EXPECT_NEAR(squares / n, 1, 1e-6);
  }
}

TEST_F(CamVidTest, AugmentedSamplesKeepToTheClasses) {
  options_.image_size = ImageSize{.height = 90, .width = 120};
  options_.classes = 11;
  const auto data = Make(options_);
  const std::vector<int64_t> all = Numbers(20);
  const auto read = [&](int64_t epoch) {
    return ReadSamples(*data, {.indices = all,
                               .augmentation = AugmentationKey{
                                   .run_seed = 1, .data_epoch = epoch}});
  };
  const Samples first = read(0);
  for (const int64_t label : first.labels) {
    ASSERT_GE(label, kIgnoredLabel);
    ASSERT_LT(label, 11);
  }
  EXPECT_EQ(first.images, read(0).images);
  EXPECT_NE(first.images, read(1).images);
  EXPECT_NE(first.labels, read(1).labels);
}

}  // namespace
}  // namespace cohort
