#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace cohort {

// Student's t quantile: the value below which a share `p` of the distribution
// with `df` degrees of freedom lies. 0 < p < 1, df > 0. Accurate to 1e-9.
// Source: Boost.Math.
double StudentQuantile(double p, double df);

// A mean with its confidence interval.
struct Estimate {
  int64_t n = 0;
  double mean = 0;
  // Half the width of the 95 % confidence interval (Student's t); absent for
  // one value.
  std::optional<double> half_width;
};

// `values` must not be empty.
Estimate EstimateMean(absl::Span<const double> values);

// "91.23 ± 0.45", with `decimals` digits; "91.23" for one value.
std::string ToText(const Estimate& estimate, int decimals);

// Values by seed.
using SeedValues = std::map<int64_t, double>;

Estimate EstimateMean(const SeedValues& values);

// The difference of two means.
struct Difference {
  Estimate estimate;
  // If true, only seeds that both have are compared, so that a seed's effect on
  // both cancels. Otherwise the interval is Welch's.
  bool paired = false;

  // True if the interval contains 0, or there is none: no difference was shown.
  bool WithinNoise() const;
};

// a - b. Paired if they share two seeds or more; neither may be empty.
Difference Compare(const SeedValues& a, const SeedValues& b);

}  // namespace cohort
