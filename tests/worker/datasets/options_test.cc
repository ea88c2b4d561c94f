#include "worker/datasets/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

TEST(ParseImageSizeTest, ReadsHeightAndWidthOrNothing) {
  EXPECT_EQ(*ParseImageSize("180x240"),
            (ImageSize{.height = 180, .width = 240}));
  EXPECT_EQ(*ParseImageSize(""), std::nullopt);
}

TEST(ParseImageSizeTest, SaysWhatIsWanted) {
  for (const char* text : {"180", "180x", "x240", "0x5", "5x-1", "1x2x3",
                           "180X240", "16385x1", "ax4"}) {
    EXPECT_THAT(ParseImageSize(text),
                IsError(kInvalidArgument,
                        std::string("--image_size: got ") + text + ", want"));
  }
}

TEST(ParseAugmentationsTest, ReadsAListOrAWord) {
  EXPECT_EQ(*ParseAugmentations("auto"), std::nullopt);
  EXPECT_EQ(*ParseAugmentations("none"), Augmentations());
  EXPECT_EQ(*ParseAugmentations("jitter,flip"),
            (Augmentations{.flip = true, .jitter = true}));
  EXPECT_EQ(ToText(**ParseAugmentations("scale,jitter,crop,flip")),
            "flip,crop,scale,jitter");
}

TEST(ParseAugmentationsTest, NamesTheWordThatIsNone) {
  for (const char* text : {"flip,turn", "", "flip,", "none,flip"}) {
    EXPECT_THAT(ParseAugmentations(text),
                IsError(kInvalidArgument, "--augment: got '"));
  }
}

TEST(BadSamplesNamedTest, KnowsTwoWords) {
  EXPECT_EQ(BadSamplesNamed("stop"), BadSamples::kStop);
  EXPECT_EQ(BadSamplesNamed("skip"), BadSamples::kSkip);
}

TEST(DefaultAugmentationsTest, SuitTheDataSet) {
  EXPECT_EQ(ToText(DefaultAugmentations("cifar10")), "flip,crop");
  EXPECT_EQ(ToText(DefaultAugmentations("cifar100")), "flip,crop");
  EXPECT_EQ(ToText(DefaultAugmentations("voc")), "flip,crop,scale,jitter");
  for (const char* name : {"fashion-mnist", "mnist", "imagefolder", "synthetic",
                           "synthetic-segmentation"}) {
    EXPECT_EQ(ToText(DefaultAugmentations(name)), "none") << name;
  }
}

}  // namespace
}  // namespace cohort
