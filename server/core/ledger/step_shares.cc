#include "server/core/ledger/step_shares.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace cohort {
namespace {

// Adds `total` to `shares`, by `weights`. Rounding carries over from one to the
// next, so nothing is lost: each gets its quota rounded up or down.
void Distribute(int64_t total, const std::vector<int64_t>& weights,
                std::vector<int64_t>& shares) {
  const int64_t sum =
      std::accumulate(weights.begin(), weights.end(), int64_t{0});
  int64_t before = 0;
  int64_t given = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    before += weights[i];
    const int64_t until = total * before / sum;
    shares[i] += until - given;
    given = until;
  }
}

}  // namespace

StepShares ShareStep(const std::vector<int64_t>& batch_sizes,
                     int64_t global_batch) {
  if (global_batch == 0) return {.samples = batch_sizes};
  const auto workers = static_cast<int64_t>(batch_sizes.size());
  const int64_t sum =
      std::accumulate(batch_sizes.begin(), batch_sizes.end(), int64_t{0});
  StepShares shares{.samples = std::vector<int64_t>(batch_sizes.size()),
                    .batches = BatchesFor(global_batch, sum)};
  if (global_batch < workers || global_batch >= sum) {
    Distribute(global_batch, batch_sizes, shares.samples);
    return shares;
  }
  // By batch size alone, a small batch beside large ones would get nothing. So
  // each has one sample first, and the rest goes by what it can take besides.
  std::vector<int64_t> room = batch_sizes;
  for (int64_t& batch : room) --batch;
  shares.samples.assign(batch_sizes.size(), 1);
  Distribute(global_batch - workers, room, shares.samples);
  return shares;
}

absl::Status CheckStepBatches(int64_t global_batch, int64_t batch_size) {
  if (global_batch <= kStepBatchesMax * batch_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--global_batch: got ", global_batch, ", want at most ",
                   kStepBatchesMax * batch_size, ": ", kStepBatchesMax,
                   " batches of a worker whose batch size is ", batch_size));
}

int64_t SamplesOfBatch(const StepShares& shares, size_t i) {
  return std::max<int64_t>(1, shares.samples[i] / shares.batches);
}

int32_t BatchesFor(int64_t samples, int64_t batch_size) {
  return static_cast<int32_t>(
      std::max<int64_t>(1, (samples + batch_size - 1) / batch_size));
}

}  // namespace cohort
