// The trainer's requests to its data set.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "common/mutex.h"
#include "common/permutation.h"
#include "kernels/backend.h"
#include "tests/fakes/fake_client.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/tiny_dataset.h"
#include "worker/datasets/data_order.h"
#include "worker/train/batch_reader.h"
#include "worker/train/trainer.h"

namespace cohort {
namespace {

constexpr uint64_t kDataSeed = 11;

Assignment On(AssignmentKind kind, int64_t begin, int64_t end,
              int64_t data_epoch = 0) {
  Assignment assignment{.kind = kind,
                        .data_epoch = data_epoch,
                        .range = {.begin = begin, .end = end},
                        .split = kind == AssignmentKind::kEvaluate
                                     ? DataSplit::kTest
                                     : DataSplit::kTrain};
  if (kind == AssignmentKind::kTrain) {
    assignment.members = {Rank(0)};
    assignment.global_normalization = true;
  }
  return assignment;
}

TrainerOptions OptionsFor(const Dataset& dataset, int32_t loader_threads) {
  return {.make_model =
              [&dataset](uint64_t seed) {
                return MakeModel({.name = "smooth",
                                  .channels = dataset.channels(),
                                  .classes = dataset.classes(),
                                  .seed = seed});
              },
          .batch_size = 4,
          .loader_threads = loader_threads,
          .backend = &kernels::CpuBackend()};
}

// Records the requests.
class RecordingDataset final : public TinyDataset {
 public:
  struct Asked {
    DataSplit split = DataSplit::kTrain;
    std::vector<int64_t> indices;
    std::optional<AugmentationKey> augmentation;
  };

  void Read(const SampleRequest& request, absl::Span<float> images,
            absl::Span<int64_t> labels) const override {
    TinyDataset::Read(request, images, labels);
    MutexLock lock(mu_);
    asked_.push_back(
        {.split = request.split,
         .indices = {request.indices.begin(), request.indices.end()},
         .augmentation = request.augmentation});
  }
  std::vector<Asked> asked() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return asked_;
  }

 private:
  mutable Mutex mu_;
  mutable std::vector<Asked> asked_ ABSL_GUARDED_BY(mu_);
};

TEST(TrainerDataTest, TrainingIsAugmentedBySeedAndEpochAndEvaluationNever) {
  const RecordingDataset dataset;
  FakeClient client({On(AssignmentKind::kTrain, 2, 6, 3),
                     On(AssignmentKind::kEvaluate, 0, 5),
                     On(AssignmentKind::kCollectMoments, 0, 4, 1)});
  ASSERT_TRUE(Trainer(client, dataset, OptionsFor(dataset, 0)).Run().ok());
  auto asked = dataset.asked();
  ASSERT_EQ(asked.size(), 4U);
  // The first request checks whether the model fits.
  EXPECT_EQ(asked[0].augmentation, std::nullopt);
  asked.erase(asked.begin());
  const std::vector<int64_t> order = EpochPermutation(kDataSeed, 3, 14);
  EXPECT_EQ(asked[0].split, DataSplit::kTrain);
  EXPECT_EQ(asked[0].indices,
            std::vector<int64_t>(order.begin() + 2, order.begin() + 6));
  EXPECT_EQ(asked[0].augmentation,
            (AugmentationKey{.run_seed = kDataSeed, .data_epoch = 3}));
  EXPECT_EQ(asked[1].split, DataSplit::kTest);
  EXPECT_EQ(asked[1].augmentation, std::nullopt);
  EXPECT_EQ(asked[2].augmentation,
            (AugmentationKey{.run_seed = kDataSeed, .data_epoch = 1}));
}

TEST(TrainerDataTest, NeitherThreadsNorGuessesChangeAResult) {
  const std::unique_ptr<Dataset> dataset = *MakeDataset(
      {.name = "synthetic",
       .augment =
           Augmentations{
               .flip = true, .crop = true, .scale = true, .jitter = true},
       .synthetic_train = 14,
       .synthetic_test = 2});
  // Strides of 4, then a range that no stride leads to, then a new epoch.
  const std::vector<Assignment> script = {
      On(AssignmentKind::kTrain, 0, 4),    On(AssignmentKind::kTrain, 4, 8),
      On(AssignmentKind::kTrain, 8, 12),   On(AssignmentKind::kTrain, 1, 4),
      On(AssignmentKind::kTrain, 0, 4, 1), On(AssignmentKind::kTrain, 4, 8, 1)};
  FakeClient plain(script);
  ASSERT_TRUE(Trainer(plain, *dataset, OptionsFor(*dataset, 0)).Run().ok());
  for (const int32_t threads : {1, 3}) {
    FakeClient threaded(script);
    ExpectOk(Trainer(threaded, *dataset, OptionsFor(*dataset, threads)).Run());
    EXPECT_EQ(threaded.values, plain.values) << threads << " threads";
  }
}

// The sums of these test samples, `batch` at a time, in training mode.
EvaluationSums TrainingModeSums(const Dataset& dataset,
                                const std::vector<int64_t>& samples,
                                size_t batch) {
  const std::shared_ptr<Model> model =
      *OptionsFor(dataset, 0).make_model(kDataSeed);
  model->train();
  const torch::NoGradGuard no_grad;
  EvaluationSums sums;
  for (size_t at = 0; at < samples.size(); at += batch) {
    const std::vector<int64_t> part(
        samples.begin() + static_cast<ptrdiff_t>(at),
        samples.begin() +
            static_cast<ptrdiff_t>(std::min(at + batch, samples.size())));
    const Batch read =
        ReadBatch(dataset, {.split = DataSplit::kTest, .indices = part});
    const at::Tensor logits = model->forward(read.images).logits;
    sums.samples += static_cast<int64_t>(part.size());
    sums.loss_sum +=
        torch::nn::functional::cross_entropy(
            logits, read.labels,
            torch::nn::functional::CrossEntropyFuncOptions().reduction(
                torch::kSum))
            .item<double>();
    sums.correct += logits.argmax(1).eq(read.labels).sum().item<int64_t>();
  }
  return sums;
}

// With a batch size of 4 and five samples: four together, then one alone.
TEST(TrainerDataTest, TheBatchesOwnStatisticsAreThoseOfTraining) {
  const RecordingDataset dataset;
  Assignment assignment = On(AssignmentKind::kEvaluate, 0, 5);
  assignment.statistics = kBatchStatistics;
  FakeClient client({assignment});
  ASSERT_TRUE(Trainer(client, dataset, OptionsFor(dataset, 0)).Run().ok());
  EXPECT_TRUE(client.kinds_pulled.empty());
  ASSERT_EQ(client.evaluations.size(), 1U);

  const DataOrder order =
      *DataOrder::Make(dataset, {}, {.seed = kDataSeed, .workers = 1});
  const EvaluationSums wanted =
      TrainingModeSums(dataset, order.MixedTest({.begin = 0, .end = 5}), 4);
  EXPECT_EQ(client.evaluations[0].samples, 5);
  EXPECT_EQ(client.evaluations[0].correct, wanted.correct);
  // Cohort sums in float64, LibTorch in float32.
  EXPECT_NEAR(client.evaluations[0].loss_sum, wanted.loss_sum,
              1e-4 * wanted.loss_sum);
}

TEST(TrainerDataTest, AnEpochAndTheTestSplitMayBeLimited) {
  const RecordingDataset dataset;
  TrainerOptions options = OptionsFor(dataset, 0);
  options.order = {.kind = OrderKind::kSorted, .limit = 8, .test_limit = 2};
  FakeClient client({On(AssignmentKind::kTrain, 4, 8, 1),
                     On(AssignmentKind::kEvaluate, 0, 2)});
  ASSERT_TRUE(Trainer(client, dataset, options).Run().ok());
  EXPECT_EQ(client.plan.dataset, "tiny, sorted by class");
  EXPECT_EQ(client.plan.train_samples, 8);
  EXPECT_EQ(client.plan.test_samples, 2);
  const auto asked = dataset.asked();
  ASSERT_EQ(asked.size(), 3U);
  DataOrder order =
      *DataOrder::Make(dataset, options.order,
                       {.seed = kDataSeed, .workers = 1, .batch_size = 4});
  EXPECT_EQ(asked[1].indices, order.Training(1, {.begin = 4, .end = 8}));
  EXPECT_EQ(asked[2].indices, (std::vector<int64_t>{0, 2}));
}

}  // namespace
}  // namespace cohort
