#include "worker/datasets/resize.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "common/check.h"

namespace cohort {
namespace {

// How one output pixel of an axis is computed: weights of neighbours, sum 1.
struct Mixture {
  int64_t first = 0;
  std::vector<double> weights;
};

std::vector<Mixture> MixturesOf(int64_t from, int64_t to) {
  const double step = static_cast<double>(from) / static_cast<double>(to);
  const double reach = std::max(1.0, step);
  std::vector<Mixture> mixtures(static_cast<size_t>(to));
  for (int64_t i = 0; i < to; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * step;
    Mixture& mixture = mixtures[static_cast<size_t>(i)];
    mixture.first =
        std::max<int64_t>(0, static_cast<int64_t>(std::floor(centre - reach)));
    const int64_t end = std::min<int64_t>(
        from, static_cast<int64_t>(std::ceil(centre + reach)));
    double sum = 0;
    for (int64_t at = mixture.first; at < end; ++at) {
      const double distance =
          std::abs(static_cast<double>(at) + 0.5 - centre) / reach;
      const double weight = std::max(0.0, 1 - distance);
      mixture.weights.push_back(weight);
      sum += weight;
    }
    for (double& weight : mixture.weights) weight /= sum;
  }
  return mixtures;
}

// One plane: along rows first, then down the columns.
void ResizePlane(const uint8_t* plane, const ImageSize& from,
                 const std::vector<Mixture>& rows,
                 const std::vector<Mixture>& columns, uint8_t* out) {
  const auto width = static_cast<int64_t>(columns.size());
  std::vector<double> narrow(static_cast<size_t>(from.height * width));
  double* to = narrow.data();
  for (int64_t y = 0; y < from.height; ++y) {
    const uint8_t* row = plane + y * from.width;
    for (const Mixture& mixture : columns) {
      double sum = 0;
      for (size_t k = 0; k < mixture.weights.size(); ++k) {
        sum +=
            mixture.weights[k] * row[mixture.first + static_cast<int64_t>(k)];
      }
      *to++ = sum;
    }
  }
  std::vector<double> line(static_cast<size_t>(width));
  for (const Mixture& mixture : rows) {
    std::fill(line.begin(), line.end(), 0.0);
    for (size_t k = 0; k < mixture.weights.size(); ++k) {
      const double* row =
          narrow.data() + (mixture.first + static_cast<int64_t>(k)) * width;
      for (size_t x = 0; x < line.size(); ++x) {
        line[x] += mixture.weights[k] * row[x];
      }
    }
    for (const double value : line) {
      *out++ = static_cast<uint8_t>(std::clamp(value + 0.5, 0.0, 255.0));
    }
  }
}

}  // namespace

std::vector<uint8_t> ResizeImage(absl::Span<const uint8_t> pixels,
                                 int64_t channels, const ImageSize& from,
                                 const ImageSize& to) {
  COHORT_CHECK(static_cast<int64_t>(pixels.size()) ==
                   channels * from.height * from.width,
               "the image does not have the stated size");
  const std::vector<Mixture> rows = MixturesOf(from.height, to.height);
  const std::vector<Mixture> columns = MixturesOf(from.width, to.width);
  std::vector<uint8_t> out(
      static_cast<size_t>(channels * to.height * to.width));
  for (int64_t c = 0; c < channels; ++c) {
    ResizePlane(pixels.data() + c * from.height * from.width, from, rows,
                columns, out.data() + c * to.height * to.width);
  }
  return out;
}

std::vector<uint8_t> ResizeMask(absl::Span<const uint8_t> labels,
                                const ImageSize& from, const ImageSize& to) {
  COHORT_CHECK(static_cast<int64_t>(labels.size()) == from.height * from.width,
               "the mask does not have the stated size");
  std::vector<uint8_t> out;
  out.reserve(static_cast<size_t>(to.height * to.width));
  for (int64_t y = 0; y < to.height; ++y) {
    // The whole part of (y + 1/2) * from / to, in integers.
    const int64_t row = (2 * y + 1) * from.height / (2 * to.height);
    for (int64_t x = 0; x < to.width; ++x) {
      const int64_t column = (2 * x + 1) * from.width / (2 * to.width);
      out.push_back(labels[static_cast<size_t>(row * from.width + column)]);
    }
  }
  return out;
}

}  // namespace cohort
