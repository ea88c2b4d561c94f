#pragma once

#include <cstdint>
#include <vector>

#include "prometheus/client_metric.h"

namespace cohort {

// A histogram: the number of values up to each bound, and their sum.
class BucketCounts {
 public:
  // `bounds` ascend; values above the last are counted too.
  explicit BucketCounts(std::vector<double> bounds);

  void Add(double value, int64_t times = 1);
  int64_t count() const { return count_; }
  double sum() const { return sum_; }
  // 0 if there are no values.
  double mean() const;

  // Cumulative, as Prometheus requires.
  prometheus::ClientMetric::Histogram ToMetric() const;

 private:
  std::vector<double> bounds_;
  // By bucket; the last is above all bounds. Not cumulative.
  std::vector<int64_t> counts_;
  int64_t count_ = 0;
  double sum_ = 0;
};

// `first`, twice that, and so on up to `last`.
std::vector<double> DoublingBounds(double first, double last);

}  // namespace cohort
