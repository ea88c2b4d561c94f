#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace cohort {

// How --shares divides a step; without weights it goes by the batch sizes.
struct ShareRule {
  // One entry for each worker, all above 0; or empty.
  std::vector<int64_t> weights;
  // The most samples in one batch of each worker, not below its batch size; 0:
  // no limit.
  std::vector<int64_t> batch_sizes_max;
};

// How the samples of a step are shared out.
struct StepShares {
  // One entry for each worker.
  std::vector<int64_t> samples;
  // Number of batches that each worker computes its samples in, one after
  // another. The same for all, because all members of a step make the same
  // batch-norm calls.
  int32_t batches = 1;
};

// `batch_sizes`: one entry for each worker, all above 0, at least one.
// `global_batch`: samples of the step; 0: the sum of the batch sizes.
//
// The shares add up to `global_batch`, and go by the batch sizes. No share is
// more than `batches` batches of its worker, with the fewest batches that allow
// it. Each worker has a sample if there are as many samples as workers.
//
// With weights, samples and batches of the step stay the same, and the shares
// go by the weights, rounded by the largest remainder (of equal ones, the lower
// worker's). What exceeds a worker's most goes to the others.
StepShares ShareStep(const std::vector<int64_t>& batch_sizes,
                     int64_t global_batch, const ShareRule& rule = {});

// Samples in one batch of worker `i`, at least one.
int64_t SamplesOfBatch(const StepShares& shares, size_t i);

// Limit on the batches of one worker in a step. A network may call a layer 16
// times in each, for a push has at most 2^16 calls of a layer.
inline constexpr int64_t kStepBatchesMax = 4096;

// Whether a worker can compute a whole step alone, should it be left alone.
// `global_batch`: as in ShareStep.
// Errors: InvalidArgument: it needs more than kStepBatchesMax batches.
absl::Status CheckStepBatches(int64_t global_batch, int64_t batch_size);

// The batches that a worker needs for `samples`; one if there are none.
int32_t BatchesFor(int64_t samples, int64_t batch_size);

}  // namespace cohort
