#include "worker/train/scoring.h"

#include <torch/torch.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/batch_norm/binding.h"
#include "worker/train/batch_reader.h"
#include "worker/train/model_weights.h"

namespace cohort {

at::Tensor LossSum(const at::Tensor& logits, const at::Tensor& labels) {
  return torch::nn::functional::cross_entropy(
      logits, labels,
      torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
}

int64_t CorrectOf(const at::Tensor& logits, const at::Tensor& labels) {
  if (labels.numel() == 0) return 0;
  return logits.argmax(1).eq(labels).sum().item<int64_t>();
}

EvaluationSums ScoreSamples(Model& model, const Dataset& dataset,
                            DataSplit split, absl::Span<const int64_t> indices,
                            int64_t batch_size) {
  model.eval();
  const torch::NoGradGuard no_grad;
  EvaluationSums sums;
  for (size_t at = 0; at < indices.size();) {
    const size_t count =
        std::min(indices.size() - at, static_cast<size_t>(batch_size));
    const Batch batch = ReadBatch(
        dataset, {.split = split, .indices = indices.subspan(at, count)});
    const at::Tensor logits = model.forward(batch.images);
    const auto n = static_cast<int64_t>(count);
    sums.samples += n;
    sums.labels += n;
    sums.loss_weight += static_cast<double>(n);
    sums.loss_sum += LossSum(logits, batch.labels).item<double>();
    sums.correct += CorrectOf(logits, batch.labels);
    at += count;
  }
  return sums;
}

absl::StatusOr<VersionScore> ScoreNewest(ModelReader& reader, Model& model,
                                         const Dataset& dataset) {
  if (dataset.test_size() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(dataset.name(), ": got no test samples to score"));
  }
  COHORT_ASSIGN_OR_RETURN(BatchNormBinding binding,
                          BatchNormBinding::Make(model));
  COHORT_ASSIGN_OR_RETURN(ModelWeights weights,
                          ModelWeights::Make(model, binding));
  COHORT_ASSIGN_OR_RETURN(PulledVersion pulled,
                          reader.Pull(weights.layout(), std::nullopt));
  weights.SetPartitions(std::move(pulled.partitions));
  COHORT_RETURN_IF_ERROR(weights.Load(pulled.weights));
  COHORT_RETURN_IF_ERROR(binding.LoadStatistics(pulled.statistics));
  std::vector<int64_t> indices(static_cast<size_t>(dataset.test_size()));
  std::iota(indices.begin(), indices.end(), int64_t{0});
  // LibTorch and the standard library throw; nothing of theirs goes further.
  try {
    return VersionScore{.version = pulled.version,
                        .sums = ScoreSamples(model, dataset, DataSplit::kTest,
                                             indices, kEvaluationBatchSize)};
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat(
        "scoring version ", pulled.version.value(), ": ", e.what()));
  }
}

}  // namespace cohort
