// Evaluation and collection of moments by the trainer.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "common/permutation.h"
#include "kernels/backend.h"
#include "tests/fakes/fake_client.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/thread_rendezvous.h"
#include "tests/worker/train/trainer_example.h"
#include "worker/batch_norm/binding.h"
#include "worker/batch_norm/scope.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;

TEST(TrainerTest, EvaluationUsesThePulledStatistics) {
  FakeClient client({EvaluateOn(0, 5)});
  // Different from the statistics of the untrained model.
  for (const int64_t channels : {8, 16, 16}) {
    client.statistics.push_back(
        {.mean = std::vector<double>(static_cast<size_t>(channels), 0.25),
         .variance = std::vector<double>(static_cast<size_t>(channels), 4),
         .num_batches_tracked = 7});
  }
  ASSERT_TRUE(RunTrainer(client).ok());
  const std::shared_ptr<Model> model = *Smooth(kSeed);
  ExpectOk(BatchNormBinding::Make(*model)->LoadStatistics(client.statistics));
  model->eval();
  const Samples test = Read(DataSplit::kTest, {0, 1, 2, 3, 4});
  const at::Tensor logits = model->forward(test.images).logits;
  const double loss =
      torch::nn::functional::cross_entropy(logits, test.labels).item<double>();
  ASSERT_EQ(client.evaluations.size(), 1U);
  const EvaluationSums& sums = client.evaluations[0];
  EXPECT_EQ(sums.samples, 5);
  EXPECT_EQ(sums.labels, 5);
  EXPECT_EQ(sums.loss_weight, 5.0);
  EXPECT_NEAR(sums.loss_sum / 5, loss, 1e-6);
  EXPECT_EQ(sums.correct,
            logits.argmax(1).eq(test.labels).sum().item<int64_t>());
}

TEST(TrainerTest, EvaluationReadsTheKindOfStatisticsItIsTold) {
  std::vector<Assignment> script = {EvaluateOn(0, 5), EvaluateOn(0, 5)};
  script[0].statistics = "chief";
  FakeClient client(script);
  ASSERT_TRUE(RunTrainer(client).ok());
  EXPECT_THAT(client.kinds_pulled, ElementsAre("chief", ""));
}

Assignment CollectOn(int64_t begin, int64_t end) {
  return {.kind = AssignmentKind::kCollectMoments,
          .range = {.begin = begin, .end = end}};
}

// Compares with stock layers of momentum 1, which hold the mean and the
// unbiased variance of their last batch. Tolerance: theirs are float32.
TEST(TrainerTest, CollectsTheMomentsOfEveryCallOfTheBatch) {
  FakeClient client({CollectOn(0, 9)});
  ASSERT_TRUE(RunTrainer(client).ok());

  const std::shared_ptr<Model> model = *Smooth(kSeed);
  const BatchNormBinding binding = *BatchNormBinding::Make(*model);
  for (const auto& module : model->modules()) {
    if (auto* norm = module->as<torch::nn::BatchNorm2dImpl>()) {
      norm->options.momentum(1.0);
    }
  }
  const std::vector<int64_t> order = EpochPermutation(kSeed, 0, 14);
  model->forward(
      Read(DataSplit::kTrain, {order.begin(), order.begin() + 9}).images);
  const std::vector<LayerStatistics> wanted = binding.Statistics();

  ASSERT_EQ(client.collected.size(), 1U);
  const std::vector<CallMoments>& calls = client.collected[0];
  ASSERT_EQ(calls.size(), wanted.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i].layer, static_cast<int32_t>(i));
    EXPECT_EQ(calls[i].call, 0);
    const Moments& seen = calls[i].moments;
    EXPECT_EQ(seen.count % 9, 0);
    for (size_t c = 0; c < seen.first.size(); ++c) {
      EXPECT_NEAR(seen.first[c], wanted[i].mean[c], 1e-5);
      EXPECT_NEAR(seen.second[c] / static_cast<double>(seen.count - 1),
                  wanted[i].variance[c], 1e-5 * (1 + wanted[i].variance[c]));
    }
  }
  // There was no training and no rendezvous.
  EXPECT_TRUE(client.pushes.empty());
  EXPECT_TRUE(client.reduced.empty());
  EXPECT_EQ(client.version(), Version());
}

// Moments of all batch-norm layers when `workers` normalise their parts of the
// first 13 samples over all of them.
std::vector<Moments> JoinedMoments(size_t workers) {
  const std::vector<int64_t> order = EpochPermutation(kSeed, 0, 14);
  ThreadRendezvous rendezvous(workers);
  std::vector<Moments> joined;
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < workers; ++rank) {
    const auto begin =
        order.begin() + static_cast<int64_t>(13 * rank / workers);
    const auto end =
        order.begin() + static_cast<int64_t>(13 * (rank + 1) / workers);
    threads.emplace_back([&, rank, begin, end] {
      NotingRendezvous noting(&rendezvous.OfRank(rank));
      const std::shared_ptr<Model> model = *Smooth(kSeed);
      const BatchNormBinding binding = *BatchNormBinding::Make(*model);
      StepContext context{.rendezvous = &noting,
                          .backend = &kernels::CpuBackend()};
      const torch::NoGradGuard no_grad;
      const BatchNormScope scope(binding, &context);
      model->forward(Read(DataSplit::kTrain, {begin, end}).images);
      if (rank == 0) joined = noting.combined;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return joined;
}

// Compares a global batch that one rank computes alone with the rendezvous of 1
// to 8 ranks that share it. Tolerance: activations are float32, and a
// convolution may round differently with another batch size: 1e-6 of a
// deviation, as server/core/STATISTICS.md states. Normalising each part by
// itself would be off by about a tenth.
TEST(TrainerTest, ABatchComputedAloneHasTheMomentsOfTheRendezvous) {
  FakeClient client({CollectOn(0, 13)});
  ASSERT_TRUE(RunTrainer(client).ok());
  const std::vector<CallMoments>& alone = client.collected.at(0);
  for (size_t workers = 1; workers <= 8; ++workers) {
    const std::vector<Moments> joined = JoinedMoments(workers);
    ASSERT_EQ(joined.size(), alone.size());
    for (size_t i = 0; i < joined.size(); ++i) {
      const Moments& a = alone[i].moments;
      ASSERT_EQ(a.count, joined[i].count);
      for (size_t c = 0; c < a.first.size(); ++c) {
        const double m2 = joined[i].second[c];
        const double deviation = std::sqrt(m2 / static_cast<double>(a.count));
        EXPECT_NEAR(a.first[c], joined[i].first[c], 1e-6 * deviation);
        EXPECT_NEAR(a.second[c], m2, 1e-6 * m2);
      }
    }
  }
}

TEST(TrainerTest, CollectedMomentsDoNotDependOnWhatCameBefore) {
  FakeClient forward({CollectOn(0, 7), CollectOn(7, 14)});
  FakeClient backward({EvaluateOn(0, 5), CollectOn(7, 14), CollectOn(0, 7)});
  ASSERT_TRUE(RunTrainer(forward).ok());
  ASSERT_TRUE(RunTrainer(backward).ok());
  ASSERT_EQ(backward.collected.size(), 2U);
  for (size_t batch = 0; batch < 2; ++batch) {
    const std::vector<CallMoments>& a = forward.collected[batch];
    const std::vector<CallMoments>& b = backward.collected[1 - batch];
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].moments.first, b[i].moments.first);
      EXPECT_EQ(a[i].moments.second, b[i].moments.second);
    }
  }
}

TEST(TrainerTest, TrainingGoesOnAfterAnEvaluation) {
  FakeClient plain(ThreeSteps());
  std::vector<Assignment> script = ThreeSteps();
  script.insert(script.begin() + 1, EvaluateOn(0, 5));
  FakeClient interleaved(script);
  ASSERT_TRUE(RunTrainer(plain).ok());
  ASSERT_TRUE(RunTrainer(interleaved).ok());
  EXPECT_EQ(plain.values, interleaved.values);
}

}  // namespace
}  // namespace cohort
