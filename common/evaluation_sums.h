#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace cohort {

// Counts of one class's valid labels: found correctly, predicted, and actual.
struct ClassSums {
  int64_t intersection = 0;
  int64_t predicted = 0;
  int64_t actual = 0;

  friend bool operator==(const ClassSums&, const ClassSums&) = default;
};

// Sums of one shard of an evaluation, or of several. common/measures/measures.h
// derives the measures from them.
struct EvaluationSums {
  // Images.
  int64_t samples = 0;
  double loss_sum = 0;
  // Divisor of loss_sum.
  double loss_weight = 0;
  int64_t correct = 0;
  // Valid labels: images, or pixels that are not ignored.
  int64_t labels = 0;
  // Labels among the five highest scores. Absent if there are five classes or
  // fewer, or one label a pixel.
  std::optional<int64_t> top5_correct;
  // One entry a class if there is a label a pixel; otherwise empty.
  std::vector<ClassSums> classes;
};

}  // namespace cohort
