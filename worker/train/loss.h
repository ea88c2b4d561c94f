#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cohort {

struct LossOptions {
  // One a class, 0 or more, not all 0; empty: all 1.
  std::vector<double> class_weights;
  // In [0, 1): share of each label that is spread over all classes.
  double label_smoothing = 0;
};

// Softmax cross-entropy, summed over the labels that are not kIgnoredLabel.
// With p the softmax of the logits, y the label, w the class weights, C
// classes and e the smoothing, each label adds
//   -(1 - e) * w_y * log p_y - e / C * sum_k w_k * log p_k
// to the sum and w_y to its weight. Sums and weights of batches add up to
// those of the batches together, so (sum of sums) / (sum of weights) is exact
// for unequal batches and masks.
//
// Numbers: class weights are rounded to float32, in the sum and in the weight.
//   Logits narrower than float32 are widened first; sums are float64.
// Source: the definition of PyTorch's cross_entropy with weight,
//   ignore_index and label_smoothing; its reduction "mean" is sum / weight.
// Thread safety: const methods are safe.
class CrossEntropy {
 public:
  // Errors: InvalidArgument naming the option: as many weights as classes,
  //   their range, the range of the smoothing.
  static absl::StatusOr<CrossEntropy> Make(const LossOptions& options,
                                           int64_t classes);

  // Where Sum finds its logits from now on; else the CPU.
  void MoveTo(at::Device device);

  // In words, with all that makes two of them differ.
  std::string text() const;

  // Sum of the class weights of the labels; without class weights, their
  // number. 0 if all are ignored.
  // Shapes: labels of any shape, int64, on the CPU.
  // Errors: InvalidArgument, a label that is no class.
  absl::StatusOr<double> WeightOf(const at::Tensor& labels) const;

  // The sum, a float64 scalar with a gradient (a first one only). The gradient
  // is made in the same pass, in one buffer of the logits' size.
  // Shapes: logits [n, classes] with labels [n], or [n, classes, h, w] with
  //   [n, h, w]; n may be 0. Labels must have passed WeightOf.
  // Errors: InvalidArgument if the shapes do not fit.
  absl::StatusOr<at::Tensor> Sum(const at::Tensor& logits,
                                 const at::Tensor& labels) const;

 private:
  CrossEntropy(const LossOptions& options, int64_t classes);

  int64_t classes_;
  double label_smoothing_;
  // [classes], float64; undefined: all 1.
  at::Tensor class_weights_;
  // The same where the logits are.
  at::Tensor moved_weights_;
};

}  // namespace cohort
