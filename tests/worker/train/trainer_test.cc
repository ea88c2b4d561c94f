#include "worker/train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/permutation.h"
#include "kernels/backend.h"
#include "tests/fakes/fake_client.h"
#include "tests/fakes/thread_rendezvous.h"
#include "tests/fakes/tiny_dataset.h"
#include "worker/batch_norm/binding.h"
#include "worker/batch_norm/scope.h"
#include "worker/train/model_weights.h"

namespace cohort {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kSeed = 11;
constexpr int64_t kBatchSize = 5;

// A training assignment; one with members is a step of a synchronous run.
Assignment TrainOn(int64_t begin, int64_t end, int64_t data_epoch = 0) {
  return {.kind = AssignmentKind::kTrain,
          .members = {Rank(0)},
          .data_epoch = data_epoch,
          .range = {.begin = begin, .end = end},
          .global_normalization = true};
}

Assignment EvaluateOn(int64_t begin, int64_t end) {
  return {.kind = AssignmentKind::kEvaluate,
          .range = {.begin = begin, .end = end},
          .split = DataSplit::kTest};
}

// One epoch of 14 samples in uneven steps, and the start of the next.
std::vector<Assignment> ThreeSteps() {
  return {TrainOn(0, 5), TrainOn(5, 14), TrainOn(0, 4, 1)};
}

absl::StatusOr<std::shared_ptr<Model>> Smooth(uint64_t seed) {
  return MakeModel(
      {.name = "smooth", .channels = 1, .classes = 3, .seed = seed});
}

TrainerOptions Options() {
  return {.make_model = Smooth,
          .batch_size = kBatchSize,
          .evaluation_batch_size = 2,
          .backend = &kernels::CpuBackend()};
}

absl::Status RunTrainer(FakeClient& client,
                        const TrainerOptions& options = Options()) {
  const TinyDataset dataset;
  return Trainer(client, dataset, options).Run();
}

struct Samples {
  at::Tensor images;
  at::Tensor labels;
};

Samples Read(DataSplit split, const std::vector<int64_t>& indices) {
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

// What training is, in plain LibTorch: mean loss of the batch, w -= rate * g.
// `parts`: of each batch, one after another.
std::shared_ptr<Model> TrainByHand(const std::vector<Assignment>& steps,
                                   double rate, int64_t parts = 1) {
  std::shared_ptr<Model> model = *Smooth(kSeed);
  for (const Assignment& step : steps) {
    const std::vector<int64_t> order =
        EpochPermutation(kSeed, step.data_epoch, 14);
    model->zero_grad();
    const int64_t samples = step.range.size();
    for (int64_t part = 0; part < parts; ++part) {
      const auto first = order.begin() + step.range.begin;
      const Samples batch =
          Read(DataSplit::kTrain, {first + samples * part / parts,
                                   first + samples * (part + 1) / parts});
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

TEST(TrainerTest, WeightsEqualTrainingByHand) {
  FakeClient client(ThreeSteps());
  ASSERT_TRUE(RunTrainer(client).ok());
  const std::shared_ptr<Model> wanted =
      TrainByHand(ThreeSteps(), client.learning_rate);
  const auto parameters = wanted->named_parameters();
  const auto untrained = (*Smooth(kSeed))->named_parameters();
  ASSERT_EQ(client.values.size(), parameters.size());
  for (size_t i = 0; i < client.values.size(); ++i) {
    SCOPED_TRACE(client.layout.parameters[i].name);
    const at::Tensor& tensor = parameters[client.layout.parameters[i].name];
    const at::Tensor seen =
        torch::tensor(client.values[i]).view(tensor.sizes());
    // float32 rounding of three steps; a wrong weighting of the uneven
    // batches would differ in the second digit of the change.
    EXPECT_LT((seen - tensor).abs().max().item<float>(), 2e-6F);
    EXPECT_GT((seen - untrained[client.layout.parameters[i].name])
                  .abs()
                  .max()
                  .item<float>(),
              1e-3F);
  }
  EXPECT_EQ(client.left, "done");
}

// Each part is normalised by itself.
TEST(TrainerTest, AccumulatedPartsEqualTrainingByHand) {
  TrainerOptions options = Options();
  options.accumulate = 3;
  FakeClient client(ThreeSteps());
  ASSERT_TRUE(RunTrainer(client, options).ok());
  const auto wanted = TrainByHand(ThreeSteps(), client.learning_rate, 3);
  const auto whole = TrainByHand(ThreeSteps(), client.learning_rate);
  const auto parameters = wanted->named_parameters();
  double differs = 0;
  for (size_t i = 0; i < client.values.size(); ++i) {
    const std::string& name = client.layout.parameters[i].name;
    const at::Tensor seen =
        torch::tensor(client.values[i]).view(parameters[name].sizes());
    // float32 rounding of three steps, as above.
    EXPECT_LT((seen - parameters[name]).abs().max().item<float>(), 2e-6F)
        << name;
    differs = std::max(
        differs,
        (seen - whole->named_parameters()[name]).abs().max().item<double>());
  }
  EXPECT_GT(differs, 1e-3) << "batch norm cannot tell the parts apart";
  ASSERT_EQ(client.pushes.size(), 3U);
  EXPECT_EQ(client.pushes[1].opening.samples, 9);
  EXPECT_EQ(client.pushes[1].closing.labels, 9);
  EXPECT_THAT(client.pushes[1].closing.batch_norm_calls, ElementsAre(3, 3, 3));
}

TEST(TrainerTest, PartsCountTheirCallsOn) {
  TrainerOptions options = Options();
  options.accumulate = 2;
  FakeClient client({TrainOn(0, 5)});
  ASSERT_TRUE(RunTrainer(client, options).ok());
  // Three layers forward, three backward, and once more.
  ASSERT_EQ(client.reduced.size(), 12U);
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(client.reduced[i].call, i < 6 ? 0 : 1);
  }
}

// Its peers have samples in every part.
TEST(TrainerTest, PartsWithoutSamplesTakePart) {
  TrainerOptions options = Options();
  options.accumulate = 4;
  for (const bool global : {true, false}) {
    Assignment assignment = TrainOn(0, 2);
    assignment.global_normalization = global;
    FakeClient client({assignment});
    std::vector<int64_t> counts;
    ASSERT_TRUE(RunTrainer(client, options).ok());
    ASSERT_EQ(client.pushes.size(), 1U);
    const FakeClient::Push& push = client.pushes[0];
    EXPECT_THAT(push.closing.batch_norm_calls, ElementsAre(4, 4, 4));
    EXPECT_EQ(push.closing.labels, 2);
    EXPECT_EQ(client.reduced.size(), global ? 24U : 0U);
    for (const CallMoments& moments : push.closing.moments) {
      if (moments.layer == 0) counts.push_back(moments.moments.count);
    }
    // Two samples of 8x8 in four parts.
    EXPECT_EQ(counts, global ? std::vector<int64_t>()
                             : std::vector<int64_t>({0, 64, 0, 64}));
    for (const std::vector<float>& gradient : push.gradients) {
      for (float g : gradient) ASSERT_TRUE(std::isfinite(g));
    }
  }
}

TEST(TrainerTest, RegistersLayoutPlanAndInitialValues) {
  FakeClient client({});
  ASSERT_TRUE(RunTrainer(client).ok());
  std::vector<std::string> names;
  std::vector<std::string> exempt;
  for (const ParameterSpec& parameter : client.layout.parameters) {
    names.push_back(parameter.name);
    if (parameter.decay_exempt) exempt.push_back(parameter.name);
    EXPECT_TRUE(parameter.trainable);
  }
  EXPECT_THAT(names, ElementsAre("conv1.weight", "bn1.weight", "bn1.bias",
                                 "conv2.weight", "bn2.weight", "bn2.bias",
                                 "conv3.weight", "bn3.weight", "bn3.bias",
                                 "fc.weight", "fc.bias"));
  EXPECT_THAT(exempt,
              ElementsAre("bn1.weight", "bn1.bias", "bn2.weight", "bn2.bias",
                          "bn3.weight", "bn3.bias", "fc.bias"));
  ASSERT_EQ(client.layout.batch_norms.size(), 3U);
  EXPECT_EQ(client.layout.batch_norms[2].name, "bn3");
  EXPECT_EQ(client.layout.batch_norms[2].channels, 16);
  EXPECT_EQ(client.plan.dataset, "tiny");
  EXPECT_EQ(client.plan.dataset_digest, "0123456789abcdef");
  EXPECT_EQ(client.plan.train_samples, 14);
  EXPECT_EQ(client.plan.loss_reference, 5.0);
  EXPECT_THAT(client.values[1], Each(1.0F));
  EXPECT_EQ(client.statistics, InitialStatistics(client.layout));
}

TEST(TrainerTest, PushCarriesCountsLossAndCalls) {
  FakeClient client({TrainOn(5, 14)});
  ASSERT_TRUE(RunTrainer(client).ok());
  ASSERT_EQ(client.pushes.size(), 1U);
  const FakeClient::Push& push = client.pushes[0];
  EXPECT_EQ(push.opening.samples, 9);
  EXPECT_EQ(push.opening.loss_weight, 9.0);
  EXPECT_EQ(push.closing.labels, 9);
  EXPECT_GE(push.closing.correct, 0);
  EXPECT_LE(push.closing.correct, 9);
  EXPECT_GT(push.closing.loss_sum, 0);
  EXPECT_THAT(push.closing.batch_norm_calls, ElementsAre(1, 1, 1));
  EXPECT_TRUE(push.closing.moments.empty());
  // Forward in layer order, backward in reverse.
  ASSERT_EQ(client.reduced.size(), 6U);
  EXPECT_EQ(client.reduced[2], (ReduceKey{.step = Version(0),
                                          .attempt = Attempt(0),
                                          .layer = 2,
                                          .call = 0,
                                          .phase = ReducePhase::kForward}));
  EXPECT_EQ(client.reduced[5].layer, 0);
  EXPECT_EQ(client.reduced[5].phase, ReducePhase::kBackward);
}

TEST(TrainerTest, LocalNormalizationReportsMomentsInsteadOfMeeting) {
  Assignment assignment = TrainOn(0, 5);
  assignment.global_normalization = false;
  FakeClient client({assignment});
  ASSERT_TRUE(RunTrainer(client).ok());
  EXPECT_TRUE(client.reduced.empty());
  const std::vector<CallMoments>& moments = client.pushes[0].closing.moments;
  ASSERT_EQ(moments.size(), 3U);
  // Five images of 8x8, 4x4 and 2x2.
  EXPECT_EQ(moments[0].moments.count, 320);
  EXPECT_EQ(moments[1].moments.count, 80);
  EXPECT_EQ(moments[2].moments.count, 20);
  EXPECT_EQ(moments[2].layer, 2);
  EXPECT_EQ(moments[2].moments.first.size(), 16U);
}

// The server's statistics rule, whatever the worker's model was made with.
TEST(TrainerTest, FrozenLayerIsNormalisedByTheServersStatistics) {
  TrainerOptions options = Options();
  options.batch_norm.frozen_statistics = {"bn2"};
  auto weights_after = [&options](double mean) {
    FakeClient client(ThreeSteps());
    client.statistics = {
        {std::vector<double>(8, 0), std::vector<double>(8, 1)},
        {std::vector<double>(16, mean), std::vector<double>(16, 2)},
        {std::vector<double>(16, 0), std::vector<double>(16, 1)}};
    EXPECT_TRUE(RunTrainer(client, options).ok());
    EXPECT_THAT(client.pushes.back().closing.batch_norm_calls,
                ElementsAre(1, 0, 1));
    // Once, not once a step.
    EXPECT_EQ(client.kinds_pulled, std::vector<std::string>{""});
    return client.values;
  };
  const auto values = weights_after(0.25);
  EXPECT_EQ(weights_after(0.25), values);
  EXPECT_NE(weights_after(0.5), values);
}

TEST(TrainerTest, PartitionsThatCutParametersChangeNoBit) {
  FakeClient whole(ThreeSteps());
  FakeClient cut(ThreeSteps());
  // 25 floats: larger parameters are cut, small ones share.
  cut.partition_bytes = 100;
  ASSERT_TRUE(RunTrainer(whole).ok());
  ASSERT_TRUE(RunTrainer(cut).ok());
  EXPECT_GT(cut.partitions.size(), 100U);
  EXPECT_EQ(whole.values, cut.values);
}

TEST(TrainerTest, RepeatedStepGivesTheSameBits) {
  FakeClient undisturbed(ThreeSteps());
  ASSERT_TRUE(RunTrainer(undisturbed).ok());
  for (const ReducePhase phase :
       {ReducePhase::kForward, ReducePhase::kBackward}) {
    FakeClient client(ThreeSteps());
    client.on_reduce = [phase](const ReduceKey& key) -> absl::Status {
      const bool lost = key.step == Version(1) && key.attempt == Attempt(0) &&
                        key.layer == 1 && key.phase == phase;
      return lost ? absl::AbortedError("rank 1 is lost") : absl::OkStatus();
    };
    ASSERT_TRUE(RunTrainer(client).ok());
    ASSERT_EQ(client.pushes.size(), 3U);
    EXPECT_EQ(client.pushes[1].assignment.attempt, Attempt(1));
    EXPECT_EQ(client.values, undisturbed.values);
  }
}

// `smooth` on images of which a random half is blanked.
class WithDropout final : public Model {
 public:
  explicit WithDropout(uint64_t seed)
      : inner_(register_module("inner", *Smooth(seed))) {}
  ModelOutput forward(const at::Tensor& images) override {
    return inner_->forward(torch::dropout(images, 0.5, is_training()));
  }

 private:
  std::shared_ptr<Model> inner_;
};

TEST(TrainerTest, RepeatedStepDropsTheSameElements) {
  TrainerOptions options = Options();
  options.make_model =
      [](uint64_t seed) -> absl::StatusOr<std::shared_ptr<Model>> {
    return std::make_shared<WithDropout>(seed);
  };
  FakeClient undisturbed(ThreeSteps());
  FakeClient client(ThreeSteps());
  client.on_reduce = [](const ReduceKey& key) -> absl::Status {
    const bool lost = key.step == Version(1) && key.attempt == Attempt(0) &&
                      key.phase == ReducePhase::kBackward;
    return lost ? absl::AbortedError("rank 1 is lost") : absl::OkStatus();
  };
  ASSERT_TRUE(RunTrainer(undisturbed, options).ok());
  ASSERT_TRUE(RunTrainer(client, options).ok());
  EXPECT_EQ(client.values, undisturbed.values);
}

TEST(TrainerTest, LostConnectionOnClosingRepeatsTheAssignment) {
  FakeClient client({TrainOn(0, 5)});
  int closings = 0;
  client.on_close = [&closings]() -> absl::Status {
    return ++closings == 1 ? absl::UnavailableError("connection lost")
                           : absl::OkStatus();
  };
  ASSERT_TRUE(RunTrainer(client).ok());
  EXPECT_EQ(client.pushes.size(), 1U);
  EXPECT_EQ(client.pushes[0].assignment.attempt, Attempt(1));
}

TEST(TrainerTest, VersionThatIsNoLongerHeldAsksForAnotherAssignment) {
  FakeClient client({TrainOn(0, 5)});
  int pulls = 0;
  client.on_pull = [&pulls]() -> absl::Status {
    return ++pulls == 1 ? absl::OutOfRangeError("version 0 is gone")
                        : absl::OkStatus();
  };
  ASSERT_TRUE(RunTrainer(client).ok());
  EXPECT_EQ(client.pushes.size(), 1U);
}

TEST(TrainerTest, FinalErrorEndsTheRun) {
  FakeClient client({TrainOn(0, 5)});
  client.on_close = [] { return absl::FailedPreconditionError("another run"); };
  EXPECT_EQ(RunTrainer(client), absl::FailedPreconditionError("another run"));
  EXPECT_EQ(client.left, "another run");
}

TEST(TrainerTest, WeightsOfTheVerdictSaveThePull) {
  FakeClient client(ThreeSteps());
  ASSERT_TRUE(RunTrainer(client).ok());
  EXPECT_EQ(client.weight_pulls, 1);
}

// As after a restart of the server from an older version.
TEST(TrainerTest, NewLifePullsAgain) {
  for (const bool sync : {true, false}) {
    std::vector<Assignment> steps = ThreeSteps();
    for (Assignment& step : steps) {
      if (!sync) step.members.clear();
    }
    FakeClient client(steps);
    client.on_close = [&client] {
      if (client.pushes.empty()) client.life = client.life.Next();
      return absl::OkStatus();
    };
    ASSERT_TRUE(RunTrainer(client).ok());
    // Before the first step and before the second.
    EXPECT_EQ(client.weight_pulls, 2);
  }
}

TEST(TrainerTest, SkippedStepKeepsItsWeights) {
  FakeClient client(ThreeSteps());
  client.verdicts = {Verdict::kSkipped};
  ASSERT_TRUE(RunTrainer(client).ok());
  EXPECT_EQ(client.weight_pulls, 1);
  EXPECT_EQ(client.pushes[1].opening.version, Version(1));
}

TEST(TrainerTest, DroppedPushPullsAgain) {
  for (const Verdict verdict :
       {Verdict::kDropped, Verdict::kRejectedNonfinite}) {
    FakeClient client(ThreeSteps());
    client.verdicts = {verdict};
    ASSERT_TRUE(RunTrainer(client).ok());
    EXPECT_EQ(client.weight_pulls, 2);
  }
}

TEST(TrainerTest, EmptyRangePushesZeros) {
  FakeClient client({TrainOn(3, 3)});
  ASSERT_TRUE(RunTrainer(client).ok());
  ASSERT_EQ(client.pushes.size(), 1U);
  EXPECT_EQ(client.pushes[0].opening.samples, 0);
  EXPECT_EQ(client.pushes[0].closing.loss_sum, 0.0);
  for (const std::vector<float>& gradient : client.pushes[0].gradients) {
    EXPECT_THAT(gradient, Each(0.0F));
  }
  // Its peers wait for it at every call of both passes.
  EXPECT_EQ(client.reduced.size(), 6U);
}

TEST(TrainerTest, EvaluationUsesThePulledStatistics) {
  FakeClient client({EvaluateOn(0, 5)});
  // Not what the untrained model would have.
  for (const int64_t channels : {8, 16, 16}) {
    client.statistics.push_back(
        {.mean = std::vector<double>(static_cast<size_t>(channels), 0.25),
         .variance = std::vector<double>(static_cast<size_t>(channels), 4),
         .num_batches_tracked = 7});
  }
  ASSERT_TRUE(RunTrainer(client).ok());
  const std::shared_ptr<Model> model = *Smooth(kSeed);
  ASSERT_TRUE(
      BatchNormBinding::Make(*model)->LoadStatistics(client.statistics).ok());
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

// Against the stock layers with momentum 1, which then hold the mean and the
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
  // Nothing was trained, and nobody was met.
  EXPECT_TRUE(client.pushes.empty());
  EXPECT_TRUE(client.reduced.empty());
  EXPECT_EQ(client.version(), Version());
}

// Keeps what all members together saw in the forward pass.
class RecordingRendezvous final : public Rendezvous {
 public:
  explicit RecordingRendezvous(Rendezvous& inner) : inner_(inner) {}
  absl::StatusOr<Moments> Reduce(int32_t layer, int32_t call, ReducePhase phase,
                                 const Moments& local) override {
    absl::StatusOr<Moments> all = inner_.Reduce(layer, call, phase, local);
    if (all.ok()) seen.push_back(*all);
    return all;
  }
  std::vector<Moments> seen;

 private:
  Rendezvous& inner_;
};

// Moments of all batch-norm layers, where `workers` normalise their parts of
// the first 13 samples over all of them.
std::vector<Moments> JoinedMoments(size_t workers) {
  const std::vector<int64_t> order = EpochPermutation(kSeed, 0, 14);
  ThreadRendezvous rendezvous(workers);
  std::vector<std::unique_ptr<RecordingRendezvous>> recorders;
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < workers; ++rank) {
    recorders.push_back(
        std::make_unique<RecordingRendezvous>(rendezvous.OfRank(rank)));
    const auto begin =
        order.begin() + static_cast<int64_t>(13 * rank / workers);
    const auto end =
        order.begin() + static_cast<int64_t>(13 * (rank + 1) / workers);
    threads.emplace_back([&recorder = *recorders.back(), begin, end] {
      const std::shared_ptr<Model> model = *Smooth(kSeed);
      const BatchNormBinding binding = *BatchNormBinding::Make(*model);
      StepContext context{.rendezvous = &recorder,
                          .backend = &kernels::CpuBackend()};
      const torch::NoGradGuard no_grad;
      const BatchNormScope scope(binding, &context);
      model->forward(Read(DataSplit::kTrain, {begin, end}).images);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return recorders[0]->seen;
}

// A global batch that one rank computes alone, against the rendezvous of 1 to
// 8 ranks that share it. Tolerance: activations are float32, and a convolution
// may round otherwise with another batch size: 1e-6 of a deviation, which is
// what server/core/README.md states. Normalising each part by itself would be
// off by about a tenth.
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

TEST(TrainerTest, StopFinishesTheStepAndLeaves) {
  FakeClient client(ThreeSteps());
  const TinyDataset dataset;
  const TrainerOptions options = Options();
  Trainer trainer(client, dataset, options);
  client.on_close = [&trainer] {
    trainer.RequestStop();
    return absl::OkStatus();
  };
  EXPECT_TRUE(trainer.Run().ok());
  EXPECT_EQ(client.pushes.size(), 1U);
  EXPECT_TRUE(client.left.has_value());
}

// `smooth` with a frozen first layer and a parameter that no loss reaches.
class PartlyTrained final : public Model {
 public:
  explicit PartlyTrained(uint64_t seed)
      : inner_(register_module("inner", *Smooth(seed))),
        unused_(register_parameter("unused", torch::ones({6}))) {
    inner_->named_parameters()["conv1.weight"].set_requires_grad(false);
  }
  ModelOutput forward(const at::Tensor& images) override {
    return inner_->forward(images);
  }

 private:
  std::shared_ptr<Model> inner_;
  at::Tensor unused_;
};

TEST(TrainerTest, FrozenAndUnreachedParametersAreToldApart) {
  FakeClient client({TrainOn(0, 5), TrainOn(5, 10)});
  TrainerOptions options = Options();
  options.make_model =
      [](uint64_t seed) -> absl::StatusOr<std::shared_ptr<Model>> {
    return std::make_shared<PartlyTrained>(seed);
  };
  ASSERT_TRUE(RunTrainer(client, options).ok());
  int frozen = 0;
  int absent = 0;
  for (size_t p = 0; p < client.partitions.size(); ++p) {
    const FakeClient::Push& push = client.pushes[1];
    EXPECT_EQ(push.gradients[p].empty(), !client.partitions[p].trainable);
    if (!client.partitions[p].trainable) ++frozen;
    for (const int32_t slice : push.absent_slices[p]) {
      ++absent;
      const Slice& missing =
          client.partitions[p].slices[static_cast<size_t>(slice)];
      const auto parameter = static_cast<size_t>(missing.parameter);
      EXPECT_EQ(client.layout.parameters[parameter].name, "unused");
    }
  }
  EXPECT_EQ(frozen, 1);
  EXPECT_EQ(absent, 1);
}

// A first worker's layout is the run's: one that cannot compute must not set
// it.
TEST(TrainerTest, AModelThatDoesNotFitIsRefusedBeforeItIsRegistered) {
  struct Misfit {
    int64_t channels;
    int64_t classes;
    const char* text;
  };
  for (const Misfit& misfit :
       {Misfit{3, 3, "the model does not take an image of tiny"},
        Misfit{1, 4, "got logits [1,4]"}}) {
    FakeClient client({TrainOn(0, 5)});
    TrainerOptions options = Options();
    options.make_model = [&misfit](uint64_t seed) {
      return MakeModel({.name = "smooth",
                        .channels = misfit.channels,
                        .classes = misfit.classes,
                        .seed = seed});
    };
    const absl::Status status = RunTrainer(client, options);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(misfit.text));
    // LibTorch's own words, without its stack.
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("frame #")));
    EXPECT_TRUE(client.layout.parameters.empty());
  }
}

// `smooth` that fails as soon as it trains.
class Failing final : public Model {
 public:
  explicit Failing(uint64_t seed)
      : inner_(register_module("inner", *Smooth(seed))) {}
  ModelOutput forward(const at::Tensor& images) override {
    TORCH_CHECK(!is_training(), "out of paper");
    return inner_->forward(images);
  }

 private:
  std::shared_ptr<Model> inner_;
};

TEST(TrainerTest, FailureInTheModelIsAnErrorThatNamesTheStep) {
  FakeClient client({TrainOn(0, 5)});
  TrainerOptions options = Options();
  options.make_model =
      [](uint64_t seed) -> absl::StatusOr<std::shared_ptr<Model>> {
    return std::make_shared<Failing>(seed);
  };
  const absl::Status status = RunTrainer(client, options);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("assignment 1 at version 0: out of paper"));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("frame #")));
}

// `smooth` whose logits count once as its own and once as an auxiliary head's.
class WithAuxiliaryHead final : public Model {
 public:
  explicit WithAuxiliaryHead(uint64_t seed)
      : inner_(register_module("inner", *Smooth(seed))) {}
  ModelOutput forward(const at::Tensor& images) override {
    ModelOutput output = inner_->forward(images);
    output.auxiliary.push_back({.logits = output.logits, .weight = 0.25});
    return output;
  }

 private:
  std::shared_ptr<Model> inner_;
};

// The loss is then 1.25 times the model's own, whose gradients are therefore
// 1.25 times as large. A factor that is no power of two rounds anew.
TEST(TrainerTest, AuxiliaryHeadAddsItsWeightedLossButIsNotReported) {
  FakeClient plain({TrainOn(0, 5)});
  ASSERT_TRUE(RunTrainer(plain).ok());
  FakeClient helped({TrainOn(0, 5)});
  TrainerOptions options = Options();
  options.make_model =
      [](uint64_t seed) -> absl::StatusOr<std::shared_ptr<Model>> {
    return std::make_shared<WithAuxiliaryHead>(seed);
  };
  ASSERT_TRUE(RunTrainer(helped, options).ok());
  EXPECT_EQ(helped.pushes[0].closing.loss_sum,
            plain.pushes[0].closing.loss_sum);
  const auto& wanted = plain.pushes[0].gradients;
  const auto& seen = helped.pushes[0].gradients;
  ASSERT_EQ(seen.size(), wanted.size());
  for (size_t p = 0; p < seen.size(); ++p) {
    ASSERT_EQ(seen[p].size(), wanted[p].size());
    for (size_t i = 0; i < seen[p].size(); ++i) {
      EXPECT_NEAR(seen[p][i], 1.25 * wanted[p][i],
                  1e-6 * (1 + std::abs(wanted[p][i])));
    }
  }
}

TEST(ModelWeightsTest, SharedParameterIsListedOnce) {
  torch::nn::Module tied;
  const at::Tensor shared = torch::ones({2});
  tied.register_parameter("a", shared);
  tied.register_parameter("b", shared);
  const auto binding = BatchNormBinding::Make(tied);
  const auto weights = ModelWeights::Make(tied, *binding);
  ASSERT_TRUE(weights.ok());
  ASSERT_EQ(weights->layout().parameters.size(), 1U);
  EXPECT_EQ(weights->layout().parameters[0].name, "a");
}

TEST(ModelWeightsTest, BiasesOfAnyKindAreExemptFromDecay) {
  torch::nn::Module model;
  model.register_module("gru", torch::nn::GRU(2, 2).ptr());
  model.register_module("fc", torch::nn::Linear(2, 2).ptr());
  const auto binding = BatchNormBinding::Make(model);
  const auto weights = ModelWeights::Make(model, *binding);
  ASSERT_TRUE(weights.ok());
  std::vector<std::string> exempt;
  for (const ParameterSpec& parameter : weights->layout().parameters) {
    if (parameter.decay_exempt) exempt.push_back(parameter.name);
  }
  EXPECT_THAT(exempt,
              ElementsAre("gru.bias_ih_l0", "gru.bias_hh_l0", "fc.bias"));
}

TEST(ModelWeightsTest, RefusesOtherTypesByName) {
  torch::nn::Module model;
  model.register_parameter("scale", torch::ones({2}, torch::kDouble));
  const auto binding = BatchNormBinding::Make(model);
  const absl::Status status = ModelWeights::Make(model, *binding).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("scale: "));
}

}  // namespace
}  // namespace cohort
