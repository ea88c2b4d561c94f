#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace cohort {

struct LossOptions {
  // One weight a class, 0 or more, not all 0; if empty, all are 1.
  std::vector<double> class_weights;
  // In [0, 1): share of each label that is spread over all classes.
  double label_smoothing = 0;
};

// Softmax cross-entropy, summed over the labels that are not kIgnoredLabel.
// With p the softmax of the logits, y the label, w the class weights, C
// classes and e the smoothing, each label adds
//   -(1 - e) * w_y * log p_y - e / C * sum_k w_k * log p_k
// to the sum and w_y to its weight. Sums and weights of several batches add up
// to those of the joined batch, so (sum of sums) / (sum of weights) is exact
// for unequal batches and masks.
//
// Numbers: class weights are rounded to float32, in the sum and in the weight.
//   Logits narrower than float32 are widened first; sums are float64.
// Source: the definition of PyTorch's cross_entropy with weight,
//   ignore_index and label_smoothing; its reduction "mean" is sum / weight.
// Thread safety: const methods are safe.
class CrossEntropy {
 public:
  // Errors: InvalidArgument naming the option: not one weight a class, a weight
  //   out of range, a smoothing out of range.
  static absl::StatusOr<CrossEntropy> Make(const LossOptions& options,
                                           int64_t classes);

  // Moves to the device where Sum finds its logits. The default is the CPU.
  void MoveTo(at::Device device);

  // A description that contains everything that makes two of them differ.
  std::string text() const;

  // Sum of the class weights of the labels; without class weights, their
  // number. 0 if all are ignored.
  // Shapes: labels of any shape, int64, on the CPU.
  // Errors: InvalidArgument if a label is not a class.
  absl::StatusOr<double> WeightOf(const at::Tensor& labels) const;

  // The sum, a float64 scalar that can be differentiated once. The gradient is
  // computed in the same pass, in one buffer of the logits' size.
  // Shapes: logits [n, classes] with labels [n], or [n, classes, h, w] with
  //   [n, h, w]; n may be 0. Labels must have passed WeightOf.
  // Errors: InvalidArgument if the shapes do not fit.
  absl::StatusOr<at::Tensor> Sum(const at::Tensor& logits,
                                 const at::Tensor& labels) const;

 private:
  CrossEntropy(const LossOptions& options, int64_t classes);

  int64_t classes_;
  double label_smoothing_;
  // [classes], float64; if undefined, all weights are 1.
  at::Tensor class_weights_;
  // class_weights_ on the device of the logits.
  at::Tensor moved_weights_;
};

}  // namespace cohort
