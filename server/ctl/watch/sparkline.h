#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"

namespace cohort {

// A curve one line high and at most `width` characters wide; a taller character
// is a larger value. More values are averaged; fewer take a character each.
// Drawn in block characters with `unicode`, otherwise in ASCII. Values that are
// not finite are '!'.
std::string Sparkline(absl::Span<const double> values, int width, bool unicode);

// The values of a watched run of any length: once there are too many, pairs are
// merged.
class Curve {
 public:
  void Add(double value);
  const std::vector<double>& values() const { return values_; }

 private:
  std::vector<double> values_;
  // The number of calls of Add that make one value.
  int64_t per_value_ = 1;
  int64_t skipped_ = 0;
};

}  // namespace cohort
