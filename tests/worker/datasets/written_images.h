#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/fakes/statuses.h"
#include "worker/datasets/dataset.h"

namespace cohort {

// Image files made by the writers of libjpeg and libpng. Pixels are [height,
// width, channels] here, which is easy to read.
struct Picture {
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 3;
  std::vector<uint8_t> pixels;
};

// All pixels alike.
Picture Plain(int64_t height, int64_t width, const std::vector<uint8_t>& pixel);

// Quality 100 without chroma subsampling: a plain picture comes back within 2
// of 255 (rounding of the colour space and of the transform).
enum class JpegKind { kBaseline, kProgressive, kCmyk };
std::string JpegBytes(const Picture& picture,
                      JpegKind kind = JpegKind::kBaseline);

// `bits`: the size of a grey value or palette position; the pixels are the
// values.
enum class PngKind { kGrey, kGreyAlpha, kPalette, kRgb, kRgba };
std::string PngBytes(const Picture& picture, PngKind kind, int bits = 8);

// A mask of one channel, as palette or grey.
std::string MaskBytes(int64_t height, int64_t width,
                      const std::vector<uint8_t>& labels,
                      PngKind kind = PngKind::kPalette);

struct Samples {
  std::vector<float> images;
  std::vector<int64_t> labels;
};

Samples ReadSamples(const Dataset& data, const SampleRequest& request);

inline std::unique_ptr<Dataset> Make(const DatasetOptions& options) {
  return OkValue(MakeDataset(options));
}

inline std::vector<int64_t> Labels(const Dataset& data, DataSplit split,
                                   const std::vector<int64_t>& indices) {
  return ReadSamples(data, {.split = split, .indices = indices}).labels;
}

}  // namespace cohort
