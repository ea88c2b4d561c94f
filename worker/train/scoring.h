#pragma once

#include <torch/types.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/assignment.h"
#include "common/ids.h"
#include "worker/client/model_reader.h"
#include "worker/datasets/dataset.h"
#include "worker/models/model.h"

namespace cohort {

// Images of one forward pass where no gradients are wanted.
inline constexpr int64_t kEvaluationBatchSize = 256;

// Sum of the cross-entropies of all labels.
at::Tensor LossSum(const at::Tensor& logits, const at::Tensor& labels);
int64_t CorrectOf(const at::Tensor& logits, const at::Tensor& labels);

// Scores the model as it is on these samples, `batch_size` at a time, in
// evaluation mode, which it is left in.
EvaluationSums ScoreSamples(Model& model, const Dataset& dataset,
                            DataSplit split, absl::Span<const int64_t> indices,
                            int64_t batch_size);

struct VersionScore {
  Version version;
  EvaluationSums sums;
};

// Scores the newest version of the run that `reader` reads on the whole test
// split. Loads it into `model`.
// Errors: those of the reader; InvalidArgument if the model cannot be used or
//   there are no test samples; Internal if LibTorch fails.
absl::StatusOr<VersionScore> ScoreNewest(ModelReader& reader, Model& model,
                                         const Dataset& dataset);

}  // namespace cohort
