#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"

namespace cohort {

// A curve one line high, lowest value lowest, of at most `width` characters:
// more values are averaged, fewer take a character each. With `unicode` of
// eighth blocks, otherwise of ASCII. Values that are not finite are '!'.
std::string Sparkline(absl::Span<const double> values, int width, bool unicode);

// The values of a run that is watched, however long that is: once there are
// too many, every two become one.
class Curve {
 public:
  void Add(double value);
  const std::vector<double>& values() const { return values_; }

 private:
  std::vector<double> values_;
  // So many calls of Add make one value.
  int64_t per_value_ = 1;
  int64_t skipped_ = 0;
};

}  // namespace cohort
