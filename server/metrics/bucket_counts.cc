#include "server/metrics/bucket_counts.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace cohort {

BucketCounts::BucketCounts(std::vector<double> bounds)
    : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

void BucketCounts::Add(double value, int64_t times) {
  const auto bucket =
      std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<size_t>(bucket)] += times;
  count_ += times;
  sum_ += value * static_cast<double>(times);
}

double BucketCounts::mean() const {
  return count_ == 0 ? 0 : sum_ / static_cast<double>(count_);
}

prometheus::ClientMetric::Histogram BucketCounts::ToMetric() const {
  prometheus::ClientMetric::Histogram histogram;
  histogram.sample_count = static_cast<uint64_t>(count_);
  histogram.sample_sum = sum_;
  uint64_t cumulative = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    cumulative += static_cast<uint64_t>(counts_[i]);
    const double bound = i < bounds_.size()
                             ? bounds_[i]
                             : std::numeric_limits<double>::infinity();
    histogram.bucket.push_back(
        {.cumulative_count = cumulative, .upper_bound = bound});
  }
  return histogram;
}

std::vector<double> DoublingBounds(double first, double last) {
  std::vector<double> bounds;
  for (double bound = first; bound <= last; bound *= 2) bounds.push_back(bound);
  return bounds;
}

}  // namespace cohort
