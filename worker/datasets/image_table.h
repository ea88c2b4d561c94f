#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/datasets/dataset.h"

namespace cohort {

// The number that stands for kIgnoredLabel in ImageSplit::masks. No class can
// have it, so a label takes one byte.
inline constexpr uint8_t kIgnoredInMask = 255;
// The largest number of classes in a mask, and in a list of labels.
inline constexpr int64_t kMaskClassesMax = kIgnoredInMask;
inline constexpr int64_t kLabelClassesMax = 65536;

// Images and labels of one split.
struct ImageSplit {
  int64_t samples = 0;
  // [samples, channels, height, width].
  std::vector<uint8_t> pixels;
  // [samples]; empty for segmentation.
  std::vector<uint16_t> labels;
  // [samples, height, width], a class or kIgnoredInMask; empty for
  // classification.
  std::vector<uint8_t> masks;
};

struct ImageTable {
  std::string name;
  DatasetTask task = DatasetTask::kClassification;
  int64_t classes = 0;
  int64_t channels = 0;
  int64_t height = 0;
  int64_t width = 0;
  ImageSplit train;
  ImageSplit test;
};

// Brings all images (bilinear) and masks (nearest) to this size.
void Resize(const ImageSize& size, ImageTable& table);

// A data set over images in memory. Computes the digest, and the mean and
// deviation of each channel over the train split, once and exactly, from
// integer sums. Padding that augmentation adds has the mean's colour, zero once
// normalised, and kIgnoredLabel.
std::unique_ptr<Dataset> MakeImageDataset(ImageTable table,
                                          const Augmentations& augmentations);

}  // namespace cohort
