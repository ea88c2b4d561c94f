#pragma once

#include <torch/types.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/assignment.h"
#include "common/evaluation_sums.h"
#include "common/ids.h"
#include "kernels/backend.h"
#include "worker/batch_norm/binding.h"
#include "worker/client/model_reader.h"
#include "worker/datasets/dataset.h"
#include "worker/device/compute_device.h"
#include "worker/models/model.h"
#include "worker/train/device_batches.h"
#include "worker/train/loss.h"

namespace cohort {

// Most images of one forward pass without gradients.
inline constexpr int64_t kEvaluationBatchSize = 256;

// Images of one forward pass in an evaluation of this data set: at most
// kEvaluationBatchSize, and fewer if the images are large.
int64_t EvaluationBatchSize(const Dataset& dataset);

// Counts correct predictions, in all fields of `sums` except samples and loss.
// Among equal highest scores the lowest class is the prediction.
// Shapes: as CrossEntropy::Sum; labels must have passed its WeightOf.
void CountMeasures(const at::Tensor& logits, const at::Tensor& labels,
                   EvaluationSums& sums);

// Which samples to score, and how.
struct ScoreRequest {
  DataSplit split = DataSplit::kTest;
  absl::Span<const int64_t> indices;
  // Samples of one forward pass.
  int64_t batch_size = kEvaluationBatchSize;
  // If set, these layers, unless frozen, are normalised by each batch instead
  // of by their moving statistics, with this backend.
  const BatchNormBinding* by_batch = nullptr;
  const kernels::Backend* backend = nullptr;
  // Where the model is, and its precision.
  Compute compute;
  // Makes batches on the device if it can. May be null.
  DeviceBatches* batches = nullptr;
};

// Scores the model with its present weights. The model is put into evaluation
// mode and stays in it. Predictions are counted on the CPU, and each batch is
// waited for.
// Errors: those of `loss`, ResourceExhausted.
absl::StatusOr<EvaluationSums> ScoreSamples(Model& model,
                                            const Dataset& dataset,
                                            const CrossEntropy& loss,
                                            const ScoreRequest& request);

// Scores one training image, as a check before the model is used elsewhere.
// Leaves the model in evaluation mode.
// Errors: InvalidArgument if the model does not take the images, or if its
//   logits do not fit the labels; ResourceExhausted if there is no memory for
//   it.
absl::Status CheckFits(Model& model, const Dataset& dataset,
                       const CrossEntropy& loss, const Compute& compute = {});

struct VersionScore {
  Version version;
  EvaluationSums sums;
};

// Scores the newest version of the run that ReadNewest() finds on the whole
// test split. Loads it into `model`, which must be on the CPU, and moves the
// model to its device. Errors: those of ReadNewest(); InvalidArgument if the
// model cannot be used or
//   there are no test samples; Internal if LibTorch fails.
absl::StatusOr<VersionScore> ScoreNewest(const ReaderOptions& reader,
                                         Model& model, const Dataset& dataset,
                                         const CrossEntropy& loss,
                                         const BindingOptions& batch_norm = {},
                                         const Compute& compute = {});

}  // namespace cohort
