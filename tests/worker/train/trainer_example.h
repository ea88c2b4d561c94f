#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "common/permutation.h"
#include "kernels/backend.h"
#include "tests/fakes/fake_client.h"
#include "tests/fakes/tiny_dataset.h"
#include "torch/torch.h"
#include "worker/train/trainer.h"

// A small training that the trainer's tests share.
namespace cohort {

inline constexpr uint64_t kSeed = 11;
inline constexpr int64_t kBatchSize = 5;

// A training assignment. With members it is a step of a synchronous run.
inline Assignment TrainOn(int64_t begin, int64_t end, int64_t data_epoch = 0) {
  return {.kind = AssignmentKind::kTrain,
          .members = {Rank(0)},
          .data_epoch = data_epoch,
          .range = {.begin = begin, .end = end},
          .global_normalization = true};
}

inline Assignment EvaluateOn(int64_t begin, int64_t end) {
  return {.kind = AssignmentKind::kEvaluate,
          .range = {.begin = begin, .end = end},
          .split = DataSplit::kTest};
}

// One epoch of 14 samples in uneven steps, and the start of the next.
inline std::vector<Assignment> ThreeSteps() {
  return {TrainOn(0, 5), TrainOn(5, 14), TrainOn(0, 4, 1)};
}

inline absl::StatusOr<std::shared_ptr<Model>> Smooth(uint64_t seed) {
  return MakeModel(
      {.name = "smooth", .channels = 1, .classes = 3, .seed = seed});
}

// `smooth` in a model that computes something around it.
class AroundSmooth final : public Model {
 public:
  using Forward =
      std::function<ModelOutput(Model& smooth, const at::Tensor& images)>;
  AroundSmooth(uint64_t seed, Forward forward)
      : inner_(register_module("inner", *Smooth(seed))),
        forward_(std::move(forward)) {}
  ModelOutput forward(const at::Tensor& images) override {
    return forward_(*inner_, images);
  }

 private:
  std::shared_ptr<Model> inner_;
  const Forward forward_;
};

inline TrainerOptions Options() {
  return {.make_model = Smooth,
          .batch_size = kBatchSize,
          .evaluation_batch_size = 2,
          .backend = &kernels::CpuBackend()};
}

inline TrainerOptions OptionsAround(const AroundSmooth::Forward& forward) {
  TrainerOptions options = Options();
  options.make_model =
      [forward](uint64_t seed) -> absl::StatusOr<std::shared_ptr<Model>> {
    return std::make_shared<AroundSmooth>(seed, forward);
  };
  return options;
}

inline absl::Status RunTrainer(FakeClient& client,
                               const TrainerOptions& options = Options()) {
  const TinyDataset dataset;
  return Trainer(client, dataset, options).Run();
}

struct Samples {
  at::Tensor images;
  at::Tensor labels;
};

inline Samples Read(DataSplit split, const std::vector<int64_t>& indices) {
  const TinyDataset dataset;
  const auto n = static_cast<int64_t>(indices.size());
  Samples samples{.images = torch::empty({n, 1, 8, 8}),
                  .labels = torch::empty({n}, torch::kLong)};
  dataset.Read(
      {.split = split, .indices = indices},
      absl::MakeSpan(samples.images.data_ptr<float>(), indices.size() * 64),
      absl::MakeSpan(samples.labels.data_ptr<int64_t>(), indices.size()));
  return samples;
}

// The expected training in plain LibTorch: mean loss of the batch, w -= rate *
// g. Each batch is computed in `parts`, one after another: of two parts, one
// has the samples with even numbers in the epoch.
inline std::shared_ptr<Model> TrainByHand(const std::vector<Assignment>& steps,
                                          double rate, int64_t parts = 1) {
  std::shared_ptr<Model> model = *Smooth(kSeed);
  for (const Assignment& step : steps) {
    const std::vector<int64_t> order =
        EpochPermutation(kSeed, step.data_epoch, 14);
    model->zero_grad();
    const int64_t samples = step.range.size();
    for (int64_t part = 0; part < parts; ++part) {
      std::vector<int64_t> indices;
      for (int64_t i = step.range.begin; i < step.range.end; ++i) {
        if (i % parts == part) indices.push_back(order[static_cast<size_t>(i)]);
      }
      const Samples batch = Read(DataSplit::kTrain, indices);
      const double share = static_cast<double>(batch.labels.numel()) /
                           static_cast<double>(samples);
      (share * torch::nn::functional::cross_entropy(
                   model->forward(batch.images).logits, batch.labels))
          .backward();
    }
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : model->parameters()) {
      parameter -= rate * parameter.grad();
    }
  }
  return model;
}

}  // namespace cohort
