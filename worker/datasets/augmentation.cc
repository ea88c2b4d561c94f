#include "worker/datasets/augmentation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "common/permutation.h"

namespace cohort {
namespace {

constexpr double kScaleMin = 0.5;
constexpr double kScaleMax = 2;
constexpr double kJitter = 0.2;
constexpr int64_t kCropPaddingShare = 8;
// Separates these draws from those of the epoch's order, which are seeded with
// the same two numbers. The value spells "augment".
constexpr uint64_t kStream = 0x6175676d656e74;

// The two image rows or columns that an output row or column lies between.
struct Between {
  int64_t first = 0;
  int64_t second = 0;
  double second_share = 0;
};

// One axis of the change: `extent` pixels are scaled to `scaled` pixels. The
// output shows them from `offset` on, in its own range `begin` to `end`.
struct Axis {
  int64_t extent = 0;
  int64_t scaled = 0;
  int64_t offset = 0;
  int64_t begin = 0;
  int64_t end = 0;
  bool flip = false;
};

Axis Rows(const SampleChange& change, const ImageSize& size) {
  const OutputWindow window = WindowOf(change, size);
  return {.extent = size.height,
          .scaled = change.height,
          .offset = change.top,
          .begin = window.top,
          .end = window.bottom};
}

Axis Columns(const SampleChange& change, const ImageSize& size) {
  const OutputWindow window = WindowOf(change, size);
  return {.extent = size.width,
          .scaled = change.width,
          .offset = change.left,
          .begin = window.left,
          .end = window.right,
          .flip = change.flip};
}

// The centre of an output pixel in pixels of the image, whose first pixel
// covers 0 to 1.
double CentreOf(const Axis& axis, int64_t at) {
  const double centre = (static_cast<double>(at + axis.offset) + 0.5) *
                        static_cast<double>(axis.extent) /
                        static_cast<double>(axis.scaled);
  return axis.flip ? static_cast<double>(axis.extent) - centre : centre;
}

// One entry for each pixel of the window along this axis.
std::vector<Between> Neighbours(const Axis& axis) {
  std::vector<Between> found;
  const auto last = static_cast<double>(axis.extent - 1);
  for (int64_t at = axis.begin; at < axis.end; ++at) {
    const double place = std::clamp(CentreOf(axis, at) - 0.5, 0.0, last);
    const auto first = static_cast<int64_t>(place);
    found.push_back({.first = first,
                     .second = std::min(first + 1, axis.extent - 1),
                     .second_share = place - static_cast<double>(first)});
  }
  return found;
}

std::vector<int64_t> Nearest(const Axis& axis) {
  std::vector<int64_t> found;
  for (int64_t at = axis.begin; at < axis.end; ++at) {
    found.push_back(std::clamp(static_cast<int64_t>(CentreOf(axis, at)),
                               int64_t{0}, axis.extent - 1));
  }
  return found;
}

// Draws one plane of the image into one plane of the output, bilinear.
void ChangePlane(const uint8_t* plane, const ImageSize& size,
                 const OutputWindow& window, const std::vector<Between>& rows,
                 const std::vector<Between>& columns, float* out) {
  for (size_t r = 0; r < rows.size(); ++r) {
    const Between& row = rows[r];
    const uint8_t* upper = plane + row.first * size.width;
    const uint8_t* lower = plane + row.second * size.width;
    float* to =
        out + (window.top + static_cast<int64_t>(r)) * size.width + window.left;
    for (const Between& column : columns) {
      const double above =
          upper[column.first] +
          column.second_share * (upper[column.second] - upper[column.first]);
      const double below =
          lower[column.first] +
          column.second_share * (lower[column.second] - lower[column.first]);
      *to++ = static_cast<float>(above + row.second_share * (below - above));
    }
  }
}

// Grey value of one pixel, whose channels are `plane` elements apart.
double GreyOf(const float* pixel, int64_t channels, int64_t plane) {
  if (channels == 3) {
    return 0.299 * pixel[0] + 0.587 * pixel[plane] + 0.114 * pixel[2 * plane];
  }
  double sum = 0;
  for (int64_t c = 0; c < channels; ++c) sum += pixel[c * plane];
  return sum / static_cast<double>(channels);
}

void ChangeColours(const SampleChange& change, const ImagePlanes& image,
                   const OutputWindow& window, float* out) {
  const int64_t plane = image.size.height * image.size.width;
  double grey_sum = 0;
  for (int64_t y = window.top; y < window.bottom; ++y) {
    for (int64_t x = window.left; x < window.right; ++x) {
      grey_sum += GreyOf(out + y * image.size.width + x, image.channels, plane);
    }
  }
  const auto pixels = static_cast<double>((window.bottom - window.top) *
                                          (window.right - window.left));
  const double mean = change.brightness * grey_sum / pixels;
  const double factor = change.contrast * change.brightness;
  const double shift = (1 - change.contrast) * mean;
  const double saturation = image.channels == 3 ? change.saturation : 1;
  for (int64_t y = window.top; y < window.bottom; ++y) {
    for (int64_t x = window.left; x < window.right; ++x) {
      float* const pixel = out + y * image.size.width + x;
      const double grey = factor * GreyOf(pixel, image.channels, plane) + shift;
      for (int64_t c = 0; c < image.channels; ++c) {
        float& value = pixel[c * plane];
        value = static_cast<float>(std::clamp(
            saturation * (factor * value + shift) + (1 - saturation) * grey,
            0.0, 255.0));
      }
    }
  }
}

bool ChangesColours(const SampleChange& change) {
  return change.brightness != 1 || change.contrast != 1 ||
         change.saturation != 1;
}

// Where a window of `extent` begins in an axis of `scaled` pixels with this
// much padding on both sides: anywhere from end to end or, if one is smaller,
// anywhere that it fits into the other.
int64_t PlaceWindow(int64_t extent, int64_t scaled, int64_t padding,
                    double chance) {
  const int64_t slack = scaled - extent;
  const int64_t lowest = std::min<int64_t>(0, slack) - padding;
  const int64_t highest = std::max<int64_t>(0, slack) + padding;
  const auto places = static_cast<double>(highest - lowest + 1);
  return lowest + static_cast<int64_t>(chance * places);
}

double Along(double low, double high, double share) {
  return low + (high - low) * share;
}

}  // namespace

SampleChange DrawChange(const Augmentations& augmentations,
                        const ImageSize& size, const ChangeKey& key) {
  SplitMix64 random(MixSeed(MixSeed(key.run_seed, kStream),
                            static_cast<uint64_t>(key.data_epoch),
                            static_cast<uint64_t>(key.sample)));
  std::array<double, 7> chances = {};
  for (double& chance : chances) chance = random.Uniform();
  SampleChange change{.height = size.height, .width = size.width};
  change.flip = augmentations.flip && chances[0] < 0.5;
  if (augmentations.scale) {
    const double scale = Along(kScaleMin, kScaleMax, chances[1]);
    const auto scaled = [scale](int64_t extent) {
      return std::max<int64_t>(
          1, std::llround(scale * static_cast<double>(extent)));
    };
    change.height = scaled(size.height);
    change.width = scaled(size.width);
    change.top = (change.height - size.height) / 2;
    change.left = (change.width - size.width) / 2;
  }
  if (augmentations.crop) {
    const int64_t share = augmentations.scale ? 0 : 1;
    change.top =
        PlaceWindow(size.height, change.height,
                    share * size.height / kCropPaddingShare, chances[2]);
    change.left =
        PlaceWindow(size.width, change.width,
                    share * size.width / kCropPaddingShare, chances[3]);
  }
  if (augmentations.jitter) {
    const auto factor = [](double chance) {
      return Along(1 - kJitter, 1 + kJitter, chance);
    };
    change.brightness = factor(chances[4]);
    change.contrast = factor(chances[5]);
    change.saturation = factor(chances[6]);
  }
  return change;
}

OutputWindow WindowOf(const SampleChange& change, const ImageSize& size) {
  return {
      .top = std::clamp<int64_t>(-change.top, 0, size.height),
      .bottom = std::clamp<int64_t>(change.height - change.top, 0, size.height),
      .left = std::clamp<int64_t>(-change.left, 0, size.width),
      .right = std::clamp<int64_t>(change.width - change.left, 0, size.width)};
}

void ChangeImage(const SampleChange& change, const ImagePlanes& image,
                 float* out) {
  const OutputWindow window = WindowOf(change, image.size);
  const std::vector<Between> rows = Neighbours(Rows(change, image.size));
  const std::vector<Between> columns = Neighbours(Columns(change, image.size));
  const int64_t plane = image.size.height * image.size.width;
  for (int64_t c = 0; c < image.channels; ++c) {
    ChangePlane(image.pixels + c * plane, image.size, window, rows, columns,
                out + c * plane);
  }
  if (ChangesColours(change)) ChangeColours(change, image, window, out);
}

void ChangeMask(const SampleChange& change, const MaskPlane& mask,
                int64_t* out) {
  const OutputWindow window = WindowOf(change, mask.size);
  const std::vector<int64_t> rows = Nearest(Rows(change, mask.size));
  const std::vector<int64_t> columns = Nearest(Columns(change, mask.size));
  std::fill_n(out, mask.size.height * mask.size.width, mask.ignored);
  for (size_t r = 0; r < rows.size(); ++r) {
    const uint8_t* from = mask.labels + rows[r] * mask.size.width;
    int64_t* to = out +
                  (window.top + static_cast<int64_t>(r)) * mask.size.width +
                  window.left;
    for (const int64_t column : columns) {
      const uint8_t label = from[column];
      *to++ = label == mask.ignored_in_mask ? mask.ignored : label;
    }
  }
}

}  // namespace cohort
