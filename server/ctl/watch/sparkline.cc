#include "server/ctl/watch/sparkline.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace cohort {
namespace {

constexpr size_t kValuesMax = 1024;
constexpr int kLevels = 8;
constexpr std::array<absl::string_view, kLevels> kBlocks = {"▁", "▂", "▃", "▄",
                                                            "▅", "▆", "▇", "█"};
constexpr std::array<absl::string_view, kLevels> kAscii = {"_", ".", ",", "-",
                                                           "~", "=", "*", "#"};

// Means of `width` parts of nearly equal size. A part with a value that is not
// finite has a mean that is not finite.
std::vector<double> Resampled(absl::Span<const double> values, size_t width) {
  if (values.size() <= width) return {values.begin(), values.end()};
  std::vector<double> means;
  for (size_t i = 0; i < width; ++i) {
    const size_t begin = i * values.size() / width;
    const size_t end = (i + 1) * values.size() / width;
    double sum = 0;
    for (size_t k = begin; k < end; ++k) sum += values[k];
    means.push_back(sum / static_cast<double>(end - begin));
  }
  return means;
}

}  // namespace

std::string Sparkline(absl::Span<const double> values, int width,
                      bool unicode) {
  if (width <= 0) return "";
  const std::vector<double> shown =
      Resampled(values, static_cast<size_t>(width));
  double low = INFINITY;
  double high = -INFINITY;
  for (double value : shown) {
    if (!std::isfinite(value)) continue;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  std::string line;
  for (double value : shown) {
    if (!std::isfinite(value)) {
      line += '!';
      continue;
    }
    const double share = high > low ? (value - low) / (high - low) : 0;
    const auto level = static_cast<size_t>(
        std::min(kLevels - 1, static_cast<int>(share * kLevels)));
    absl::StrAppend(&line, unicode ? kBlocks[level] : kAscii[level]);
  }
  return line;
}

void Curve::Add(double value) {
  if (++skipped_ < per_value_) return;
  skipped_ = 0;
  values_.push_back(value);
  if (values_.size() < kValuesMax) return;
  for (size_t i = 0; i < kValuesMax / 2; ++i) values_[i] = values_[2 * i + 1];
  values_.resize(kValuesMax / 2);
  per_value_ *= 2;
}

}  // namespace cohort
