#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/datasets/dataset.h"

namespace cohort {

// Images and labels of one split, uint8.
struct ImageSplit {
  // [n, channels, height, width].
  std::vector<uint8_t> pixels;
  std::vector<uint8_t> labels;

  int64_t size() const { return static_cast<int64_t>(labels.size()); }
};

struct ImageTable {
  std::string name;
  int64_t classes = 0;
  int64_t channels = 0;
  int64_t height = 0;
  int64_t width = 0;
  ImageSplit train;
  ImageSplit test;
};

// A data set over images in memory. Computes the digest, and mean and
// deviation over all pixels of the train split, once.
std::unique_ptr<Dataset> MakeImageDataset(ImageTable table);

}  // namespace cohort
