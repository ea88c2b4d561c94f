#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace cohort {

// Valid labels of one class: rightly found, found, and there.
struct ClassSums {
  int64_t intersection = 0;
  int64_t predicted = 0;
  int64_t actual = 0;

  friend bool operator==(const ClassSums&, const ClassSums&) = default;
};

// Sums of one shard of an evaluation, or of several. What they say is in
// common/measures/measures.h.
struct EvaluationSums {
  // Images.
  int64_t samples = 0;
  double loss_sum = 0;
  // Divisor of loss_sum.
  double loss_weight = 0;
  int64_t correct = 0;
  // Valid ones: images, or pixels that are not ignored.
  int64_t labels = 0;
  // Labels among the five highest scores. Absent: no more than five classes,
  // or a label a pixel.
  std::optional<int64_t> top5_correct;
  // One entry a class where there is a label a pixel; otherwise empty.
  std::vector<ClassSums> classes;
};

}  // namespace cohort
