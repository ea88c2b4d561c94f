#include "server/ctl/study/estimate.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"

namespace cohort {
namespace {

constexpr double kTwoSided95 = 0.975;

// I_x(a, b) by the continued fraction, for x below (a+1)/(a+b+2), where it
// converges fast.
double IncompleteBetaFraction(double a, double b, double x) {
  constexpr double kTiny = 1e-300;
  constexpr int kTermsMax = 500;
  double c = 1;
  double d = 1 - (a + b) * x / (a + 1);
  d = 1 / (std::abs(d) < kTiny ? kTiny : d);
  double value = d;
  for (int m = 1; m <= kTermsMax; ++m) {
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    const double odd =
        -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    double factor = 1;
    for (const double term : {even, odd}) {
      d = 1 + term * d;
      d = 1 / (std::abs(d) < kTiny ? kTiny : d);
      c = 1 + term / c;
      if (std::abs(c) < kTiny) c = kTiny;
      factor = c * d;
      value *= factor;
    }
    if (std::abs(factor - 1) < 1e-15) break;
  }
  const double front =
      std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) +
               a * std::log(x) + b * std::log1p(-x));
  return front * value / a;
}

double IncompleteBeta(double a, double b, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  return x < (a + 1) / (a + b + 2) ? IncompleteBetaFraction(a, b, x)
                                   : 1 - IncompleteBetaFraction(b, a, 1 - x);
}

// Share of the distribution below t.
double StudentCdf(double t, double df) {
  const double tail = IncompleteBeta(df / 2, 0.5, df / (df + t * t)) / 2;
  return t > 0 ? 1 - tail : tail;
}

double MeanOf(absl::Span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// Of the mean, squared: s^2 / n.
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
  if (p < 0.5) return -StudentQuantile(1 - p, df);
  double low = 0;
  double high = 1;
  while (StudentCdf(high, df) < p && high < 1e300) high *= 2;
  for (int i = 0; i < 200 && high - low > 1e-12 * high; ++i) {
    const double middle = (low + high) / 2;
    (StudentCdf(middle, df) < p ? low : high) = middle;
  }
  return (low + high) / 2;
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
