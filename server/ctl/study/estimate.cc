#include "server/ctl/study/estimate.h"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <boost/math/policies/policy.hpp>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"

namespace cohort {
namespace {

constexpr double kTwoSided95 = 0.975;

// By default Boost throws if the quantile of a tiny `df` exceeds a double.
using InfiniteOnOverflow = boost::math::policies::policy<
    boost::math::policies::overflow_error<boost::math::policies::ignore_error>>;

double MeanOf(absl::Span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// The squared standard error of the mean: s^2 / n.
double ErrorSquared(absl::Span<const double> values) {
  const double mean = MeanOf(values);
  const auto n = static_cast<double>(values.size());
  double sum = 0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return sum / (n - 1) / n;
}

std::vector<double> ValuesOf(const SeedValues& by_seed) {
  std::vector<double> values;
  for (const auto& [seed, value] : by_seed) values.push_back(value);
  return values;
}

// Source: Welch 1947; the degrees of freedom after Satterthwaite 1946.
Estimate WelchDifference(const std::vector<double>& a,
                         const std::vector<double>& b) {
  Estimate estimate{.n = static_cast<int64_t>(std::min(a.size(), b.size())),
                    .mean = MeanOf(a) - MeanOf(b)};
  if (a.size() < 2 || b.size() < 2) return estimate;
  const double ea = ErrorSquared(a);
  const double eb = ErrorSquared(b);
  if (ea + eb == 0) {
    estimate.half_width = 0;
    return estimate;
  }
  const double df = (ea + eb) * (ea + eb) /
                    (ea * ea / static_cast<double>(a.size() - 1) +
                     eb * eb / static_cast<double>(b.size() - 1));
  estimate.half_width = StudentQuantile(kTwoSided95, df) * std::sqrt(ea + eb);
  return estimate;
}

}  // namespace

double StudentQuantile(double p, double df) {
  COHORT_CHECK(p > 0 && p < 1 && df > 0, absl::StrCat("p ", p, ", df ", df));
  return boost::math::quantile(
      boost::math::students_t_distribution<double, InfiniteOnOverflow>(df), p);
}

Estimate EstimateMean(absl::Span<const double> values) {
  COHORT_CHECK(!values.empty(), "no values");
  Estimate estimate{.n = static_cast<int64_t>(values.size()),
                    .mean = MeanOf(values)};
  if (values.size() < 2) return estimate;
  estimate.half_width =
      StudentQuantile(kTwoSided95, static_cast<double>(values.size() - 1)) *
      std::sqrt(ErrorSquared(values));
  return estimate;
}

Estimate EstimateMean(const SeedValues& values) {
  return EstimateMean(ValuesOf(values));
}

std::string ToText(const Estimate& estimate, int decimals) {
  std::string text = absl::StrFormat("%.*f", decimals, estimate.mean);
  if (estimate.half_width.has_value()) {
    absl::StrAppendFormat(&text, " ± %.*f", decimals, *estimate.half_width);
  }
  return text;
}

bool Difference::WithinNoise() const {
  return !estimate.half_width.has_value() ||
         std::abs(estimate.mean) <= *estimate.half_width;
}

Difference Compare(const SeedValues& a, const SeedValues& b) {
  std::vector<double> differences;
  for (const auto& [seed, value] : a) {
    const auto other = b.find(seed);
    if (other != b.end()) differences.push_back(value - other->second);
  }
  const bool paired = differences.size() >= 2;
  if (paired) return {.estimate = EstimateMean(differences), .paired = true};
  return {.estimate = WelchDifference(ValuesOf(a), ValuesOf(b))};
}

}  // namespace cohort
