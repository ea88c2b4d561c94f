// The trainer with a label for each pixel.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/permutation.h"
#include "kernels/backend.h"
#include "tests/fakes/fake_client.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/tiny_dataset.h"
#include "tests/worker/train/trainer_example.h"
#include "worker/train/trainer.h"

namespace cohort {
namespace {

using ::testing::Each;

constexpr int64_t kPixelClasses = 3;

// The images of TinyDataset. The first (s modulo 5) fifths of the pixels of
// sample s are ignored; in every fifth sample all are.
class TinyMasks final : public TinyDataset {
 public:
  // `odd` is the label of the last pixel of each image.
  explicit TinyMasks(std::optional<int64_t> odd = std::nullopt) : odd_(odd) {}

  DatasetTask task() const override { return DatasetTask::kSegmentation; }

  void Read(const SampleRequest& request, absl::Span<float> images,
            absl::Span<int64_t> labels) const override {
    std::vector<int64_t> classes(request.indices.size());
    TinyDataset::Read(request, images, absl::MakeSpan(classes));
    size_t at = 0;
    for (const int64_t index : request.indices) {
      const int64_t ignored = index % 5 == 4 ? 64 : 64 * (index % 5) / 5;
      for (int64_t i = 0; i < 64; ++i) {
        labels[at++] =
            i < ignored ? kIgnoredLabel : (index + i / 3) % kPixelClasses;
      }
      if (odd_.has_value()) labels[at - 1] = *odd_;
    }
  }

 private:
  std::optional<int64_t> odd_;
};

// conv3x3, batch norm, tanh, conv1x1.
class PixelModel final : public Model {
 public:
  PixelModel() {
    first_ = register_module(
        "first", torch::nn::Conv2d(
                     torch::nn::Conv2dOptions(1, 4, 3).padding(1).bias(false)));
    norm_ = register_module("norm", torch::nn::BatchNorm2d(4));
    last_ = register_module("last", torch::nn::Conv2d(4, kPixelClasses, 1));
  }

  ModelOutput forward(const at::Tensor& images) override {
    return {.logits = last_(torch::tanh(norm_(first_(images)))),
            .auxiliary = {}};
  }

 private:
  torch::nn::Conv2d first_{nullptr};
  torch::nn::BatchNorm2d norm_{nullptr};
  torch::nn::Conv2d last_{nullptr};
};

absl::StatusOr<std::shared_ptr<Model>> Pixels(uint64_t seed) {
  torch::manual_seed(seed);
  return std::make_shared<PixelModel>();
}

TrainerOptions PixelOptions() {
  TrainerOptions options = Options();
  options.make_model = Pixels;
  return options;
}

std::vector<int64_t> IndicesOf(const Assignment& step) {
  const std::vector<int64_t> order = EpochPermutation(kSeed, 0, 14);
  return {order.begin() + step.range.begin, order.begin() + step.range.end};
}

// Sum of weights of the labels, by class.
double WeightOf(const at::Tensor& labels, const std::vector<double>& weights) {
  double sum = 0;
  for (int64_t c = 0; c < kPixelClasses; ++c) {
    sum += (weights.empty() ? 1 : weights[static_cast<size_t>(c)]) *
           static_cast<double>(labels.eq(c).sum().item<int64_t>());
  }
  return sum;
}

// Plain LibTorch: the mean loss of the step, w -= rate * g. With several parts,
// each is a separate batch to batch norm.
std::shared_ptr<Model> TrainByHand(const std::vector<Assignment>& steps,
                                   const TrainerOptions& options, double rate) {
  const TinyMasks dataset;
  std::shared_ptr<Model> model = *Pixels(kSeed);
  auto loss = torch::nn::functional::CrossEntropyFuncOptions()
                  .reduction(torch::kSum)
                  .ignore_index(kIgnoredLabel)
                  .label_smoothing(options.loss.label_smoothing);
  const std::vector<double>& weights = options.loss.class_weights;
  if (!weights.empty()) loss.weight(torch::tensor(weights).to(torch::kFloat));
  for (const Assignment& step : steps) {
    const std::vector<int64_t> indices = IndicesOf(step);
    const Batch batch = ReadBatch(dataset, {.indices = indices});
    model->zero_grad();
    for (int64_t part = 0; part < options.accumulate; ++part) {
      // The second step begins with an odd number.
      const Batch of =
          batch.Part({.begin = (part + step.range.begin) % options.accumulate,
                      .stride = options.accumulate});
      (torch::nn::functional::cross_entropy(model->forward(of.images).logits,
                                            of.labels, loss) /
       WeightOf(batch.labels, weights))
          .backward();
    }
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : model->parameters()) {
      parameter -= rate * parameter.grad();
    }
  }
  return model;
}

void ExpectWeights(const FakeClient& client, const Model& wanted) {
  const auto parameters = wanted.named_parameters();
  ASSERT_EQ(client.values.size(), parameters.size());
  for (size_t i = 0; i < client.values.size(); ++i) {
    const std::string& name = client.layout.parameters[i].name;
    const at::Tensor& tensor = parameters[name];
    const at::Tensor seen =
        torch::tensor(client.values[i]).view(tensor.sizes());
    // float32 rounding of two steps; a mean over all pixels, or one a part,
    // would differ in the first digits of the change.
    EXPECT_LT((seen - tensor).abs().max().item<float>(), 2e-6F) << name;
  }
}

TEST(SegmentationTest, WeightsEqualTrainingByHand) {
  const std::vector<Assignment> steps = {TrainOn(0, 5), TrainOn(5, 14)};
  for (const int64_t parts : {1, 2}) {
    for (const bool plain : {true, false}) {
      TrainerOptions options = PixelOptions();
      options.accumulate = parts;
      if (!plain) {
        options.loss = {.class_weights = {0.5, 3, 1}, .label_smoothing = 0.1};
      }
      FakeClient client(steps);
      const TinyMasks dataset;
      ASSERT_TRUE(Trainer(client, dataset, options).Run().ok());
      ExpectWeights(client, *TrainByHand(steps, options, client.learning_rate));
      ASSERT_EQ(client.pushes.size(), 2U);
      for (size_t i = 0; i < 2; ++i) {
        const std::vector<int64_t> indices = IndicesOf(steps[i]);
        const at::Tensor labels =
            ReadBatch(dataset, {.indices = indices}).labels;
        const PushClosing& closing = client.pushes[i].closing;
        EXPECT_EQ(client.pushes[i].opening.samples, steps[i].range.size());
        EXPECT_EQ(client.pushes[i].opening.loss_weight,
                  WeightOf(labels, options.loss.class_weights));
        EXPECT_EQ(closing.labels, labels.ne(-1).sum().item<int64_t>());
        EXPECT_LT(closing.labels, labels.numel());
        EXPECT_GT(closing.correct, 0);
        EXPECT_LE(closing.correct, closing.labels);
      }
    }
  }
}

TEST(SegmentationTest, ThePlanTellsTheLossAndAReferenceOfItsSize) {
  TrainerOptions options = PixelOptions();
  options.loss.label_smoothing = 0.1;
  FakeClient client({});
  ASSERT_TRUE(Trainer(client, TinyMasks(), options).Run().ok());
  EXPECT_EQ(client.plan.loss, "cross-entropy, label smoothing 0.1");
  EXPECT_EQ(client.plan.loss_reference, 5 * 64);
}

// The batch consists of samples 4 and 9, which are entirely ignored.
TEST(SegmentationTest, ABatchWithoutValidPixelsPushesZerosOfWeightZero) {
  const std::vector<int64_t> order = EpochPermutation(kSeed, 0, 14);
  const auto at = std::find(order.begin(), order.end(), 4) - order.begin();
  FakeClient client({TrainOn(at, at + 1)});
  ASSERT_TRUE(Trainer(client, TinyMasks(), PixelOptions()).Run().ok());
  ASSERT_EQ(client.pushes.size(), 1U);
  const FakeClient::Push& push = client.pushes[0];
  EXPECT_EQ(push.opening.samples, 1);
  EXPECT_EQ(push.opening.loss_weight, 0);
  EXPECT_EQ(push.closing.loss_sum, 0);
  EXPECT_EQ(push.closing.labels, 0);
  for (const std::vector<float>& gradient : push.gradients) {
    EXPECT_THAT(gradient, Each(0.0F));
  }
}

TEST(SegmentationTest, EvaluationCountsThePixelsOfAllImages) {
  FakeClient client({EvaluateOn(0, 5)});
  TrainerOptions options = PixelOptions();
  options.loss.class_weights = {0.5, 3, 1};
  const TinyMasks dataset;
  ASSERT_TRUE(Trainer(client, dataset, options).Run().ok());
  ASSERT_EQ(client.evaluations.size(), 1U);
  const EvaluationSums& sums = client.evaluations[0];

  const std::shared_ptr<Model> model = *Pixels(kSeed);
  model->eval();
  const std::vector<int64_t> indices = {0, 1, 2, 3, 4};
  const Batch batch =
      ReadBatch(dataset, {.split = DataSplit::kTest, .indices = indices});
  const at::Tensor logits = model->forward(batch.images).logits;
  const at::Tensor predicted = logits.argmax(1);
  const at::Tensor valid = batch.labels.ne(kIgnoredLabel);
  EXPECT_EQ(sums.samples, 5);
  EXPECT_EQ(sums.labels, valid.sum().item<int64_t>());
  EXPECT_EQ(sums.correct, predicted.eq(batch.labels).sum().item<int64_t>());
  EXPECT_EQ(sums.loss_weight,
            WeightOf(batch.labels, options.loss.class_weights));
  const double loss = torch::nn::functional::cross_entropy(
                          logits, batch.labels,
                          torch::nn::functional::CrossEntropyFuncOptions()
                              .ignore_index(kIgnoredLabel)
                              .weight(torch::tensor({0.5F, 3.0F, 1.0F})))
                          .item<double>();
  EXPECT_NEAR(sums.loss_sum / sums.loss_weight, loss, 1e-6);
  ASSERT_EQ(sums.classes.size(), 3U);
  for (int64_t c = 0; c < kPixelClasses; ++c) {
    const at::Tensor found = predicted.eq(c).logical_and(valid);
    const at::Tensor there = batch.labels.eq(c);
    EXPECT_EQ(sums.classes[static_cast<size_t>(c)],
              (ClassSums{.intersection =
                             found.logical_and(there).sum().item<int64_t>(),
                         .predicted = found.sum().item<int64_t>(),
                         .actual = there.sum().item<int64_t>()}));
  }
}

TEST(SegmentationTest, ALabelThatIsNoClassEndsTheWorkerAndIsNamed) {
  for (const Assignment& work : {TrainOn(0, 5), EvaluateOn(0, 5)}) {
    FakeClient client({work});
    EXPECT_THAT(Trainer(client, TinyMasks(7), PixelOptions()).Run(),
                IsError(kInvalidArgument, "labels: got class 7, want 0 to 2"));
    EXPECT_TRUE(client.pushes.empty());
  }
}

TEST(SegmentationTest, ALossThatDoesNotFitTheClassesIsRefusedBeforeJoining) {
  TrainerOptions options = PixelOptions();
  options.loss.class_weights = {1, 2};
  FakeClient client({});
  const absl::Status status = Trainer(client, TinyMasks(), options).Run();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_TRUE(client.values.empty());
}

}  // namespace
}  // namespace cohort
