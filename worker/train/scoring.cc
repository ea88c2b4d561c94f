#include "worker/train/scoring.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/batch_norm/binding.h"
#include "worker/batch_norm/scope.h"
#include "worker/device/out_of_memory.h"
#include "worker/device/precision.h"
#include "worker/session/model_memory.h"
#include "worker/train/batch_reader.h"
#include "worker/train/exception_text.h"
#include "worker/train/model_weights.h"

namespace cohort {

namespace {

// Most pixels of one forward pass in an evaluation: 256 images of 32 x 32.
constexpr int64_t kEvaluationPixels = int64_t{1} << 18;

constexpr int64_t kTopClasses = 5;

// Number of classes before class `label` in the order of `scores`: NaN first,
// then the highest, and the lowest class among equals. So the first class is
// argmax's result.
int64_t Before(absl::Span<const double> scores, int64_t label) {
  const double own = scores[static_cast<size_t>(label)];
  int64_t before = 0;
  for (int64_t k = 0; k < static_cast<int64_t>(scores.size()); ++k) {
    const double score = scores[static_cast<size_t>(k)];
    const bool equal = score == own || (std::isnan(score) && std::isnan(own));
    const bool higher = score > own || std::isnan(score);
    before += (equal ? k < label : higher && !std::isnan(own)) ? 1 : 0;
  }
  return before;
}

int64_t InTopFive(const at::Tensor& logits, const at::Tensor& labels) {
  const at::Tensor scores = logits.cpu().to(torch::kDouble).contiguous();
  const at::Tensor wanted = labels.contiguous();
  const auto classes = static_cast<size_t>(scores.size(1));
  int64_t found = 0;
  for (int64_t i = 0; i < wanted.numel(); ++i) {
    const int64_t label = wanted.data_ptr<int64_t>()[i];
    if (label == kIgnoredLabel) continue;
    const double* row =
        scores.data_ptr<double>() + static_cast<size_t>(i) * classes;
    found += Before({row, classes}, label) < kTopClasses ? 1 : 0;
  }
  return found;
}

at::Tensor Logits(Model& model, const Batch& batch,
                  const ScoreRequest& request) {
  const PrecisionScope precision(request.compute.torch.type(),
                                 request.compute.precision);
  if (request.by_batch == nullptr) return model.forward(batch.images).logits;
  // One context a batch: a scope remembers each call that is made in it.
  StepContext context{.backend = request.backend,
                      .compute = request.compute,
                      .normalises_by_batch_in_evaluation = true};
  const BatchNormScope scope(*request.by_batch, &context);
  return model.forward(batch.images).logits;
}

absl::StatusOr<Batch> BatchOf(const Dataset& dataset,
                              const ScoreRequest& request,
                              absl::Span<const int64_t> indices) {
  const SampleRequest samples{.split = request.split, .indices = indices};
  if (request.batches != nullptr) {
    COHORT_ASSIGN_OR_RETURN(std::optional<Batch> made,
                            request.batches->Make(samples));
    if (made.has_value()) return *std::move(made);
  }
  return MoveBatch(request.compute, ReadBatch(dataset, samples));
}

}  // namespace

int64_t EvaluationBatchSize(const Dataset& dataset) {
  return std::clamp<int64_t>(
      kEvaluationPixels / (dataset.height() * dataset.width()), 1,
      kEvaluationBatchSize);
}

void CountMeasures(const at::Tensor& logits, const at::Tensor& labels,
                   EvaluationSums& sums) {
  const int64_t classes = logits.size(1);
  const bool dense = labels.dim() > 1;
  if (dense) sums.classes.resize(static_cast<size_t>(classes));
  if (!dense && classes > kTopClasses) {
    sums.top5_correct =
        sums.top5_correct.value_or(0) + InTopFive(logits, labels);
  }
  if (labels.numel() == 0) return;
  const at::Tensor predicted = logits.argmax(1).cpu().contiguous();
  const at::Tensor wanted = labels.contiguous();
  const auto* p = predicted.data_ptr<int64_t>();
  const auto* y = wanted.data_ptr<int64_t>();
  for (int64_t i = 0; i < wanted.numel(); ++i) {
    if (y[i] == kIgnoredLabel) continue;
    const bool correct = p[i] == y[i];
    ++sums.labels;
    sums.correct += correct ? 1 : 0;
    if (!dense) continue;
    ClassSums& actual = sums.classes[static_cast<size_t>(y[i])];
    ++actual.actual;
    ++sums.classes[static_cast<size_t>(p[i])].predicted;
    actual.intersection += correct ? 1 : 0;
  }
}

absl::StatusOr<EvaluationSums> ScoreSamples(Model& model,
                                            const Dataset& dataset,
                                            const CrossEntropy& loss,
                                            const ScoreRequest& request) {
  model.eval();
  const torch::NoGradGuard no_grad;
  EvaluationSums sums;
  const absl::Span<const int64_t> indices = request.indices;
  for (size_t at = 0; at < indices.size();) {
    const size_t count =
        std::min(indices.size() - at, static_cast<size_t>(request.batch_size));
    COHORT_ASSIGN_OR_RETURN(
        const Batch batch,
        BatchOf(dataset, request, indices.subspan(at, count)));
    COHORT_ASSIGN_OR_RETURN(const double weight,
                            loss.WeightOf(batch.host_labels));
    const at::Tensor logits = Logits(model, batch, request);
    COHORT_ASSIGN_OR_RETURN(const at::Tensor loss_sum,
                            loss.Sum(logits, batch.labels));
    sums.samples += static_cast<int64_t>(count);
    sums.loss_weight += weight;
    sums.loss_sum += loss_sum.item<double>();
    CountMeasures(logits, batch.host_labels, sums);
    at += count;
  }
  return sums;
}

absl::Status CheckFits(Model& model, const Dataset& dataset,
                       const CrossEntropy& loss, const Compute& compute) {
  if (dataset.train_size() < 1) return absl::OkStatus();
  const std::vector<int64_t> first = {0};
  try {
    return ScoreSamples(model, dataset, loss,
                        {.split = DataSplit::kTrain,
                         .indices = first,
                         .compute = compute})
        .status();
  } catch (const std::exception& e) {
    if (IsOutOfMemory(e)) {
      return OutOfMemory(compute, "the activations of a single image", e);
    }
    return absl::InvalidArgumentError(
        absl::StrCat("the model does not accept an image of ", dataset.name(),
                     ": ", TextOf(e)));
  }
}

absl::StatusOr<VersionScore> ScoreNewest(const ReaderOptions& reader,
                                         Model& model, const Dataset& dataset,
                                         const CrossEntropy& loss,
                                         const BindingOptions& batch_norm,
                                         const Compute& compute) {
  if (dataset.test_size() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(dataset.name(), ": got no test samples to score"));
  }
  BindingOptions options = batch_norm;
  options.device = compute.torch;
  COHORT_ASSIGN_OR_RETURN(BatchNormBinding binding,
                          BatchNormBinding::Make(model, options));
  COHORT_ASSIGN_OR_RETURN(ModelWeights weights,
                          ModelWeights::Make(model, binding));
  COHORT_ASSIGN_OR_RETURN(PulledVersion pulled,
                          ReadNewest(reader, weights.layout()));
  // The model is not moved before.
  COHORT_ASSIGN_OR_RETURN(const std::unique_ptr<ModelMemory> memory,
                          weights.MakeMemory(/*compute=*/{}));
  memory->SetPartitions(std::move(pulled.partitions));
  COHORT_RETURN_IF_ERROR(memory->Load(pulled.weights));
  COHORT_RETURN_IF_ERROR(binding.LoadStatistics(pulled.statistics));
  std::vector<int64_t> indices(static_cast<size_t>(dataset.test_size()));
  std::iota(indices.begin(), indices.end(), int64_t{0});
  // LibTorch and the standard library throw; the exceptions stop here.
  try {
    COHORT_RETURN_IF_ERROR(MoveTo(compute, model));
    CrossEntropy moved_loss = loss;
    moved_loss.MoveTo(compute.torch);
    COHORT_ASSIGN_OR_RETURN(
        EvaluationSums sums,
        ScoreSamples(model, dataset, moved_loss,
                     {.indices = indices,
                      .batch_size = EvaluationBatchSize(dataset),
                      .compute = compute}));
    return VersionScore{.version = pulled.version, .sums = std::move(sums)};
  } catch (const std::exception& e) {
    if (IsOutOfMemory(e)) {
      return OutOfMemory(
          compute,
          absl::StrCat("activations of ", EvaluationBatchSize(dataset),
                       " images in evaluation"),
          e);
    }
    return absl::InternalError(absl::StrCat(
        "scoring version ", pulled.version.value(), ": ", TextOf(e)));
  }
}

}  // namespace cohort
