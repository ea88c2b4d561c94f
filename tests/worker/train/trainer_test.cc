#include "worker/train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/fakes/fake_client.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/tiny_dataset.h"
#include "tests/worker/train/trainer_example.h"

namespace cohort {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

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

// Each part is normalised separately.
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
  // Three layers in each of three parts.
  EXPECT_EQ(client.pushes[1].closing.batch_norm_calls,
            std::vector<int32_t>(9, 1));
}

// The server may give several batches in one assignment.
TEST(TrainerTest, BatchesOfAnAssignmentAreComputedAsParts) {
  std::vector<std::vector<std::vector<float>>> values;
  for (const int32_t batches : {1, 2, 3, 6}) {
    TrainerOptions options = Options();
    options.accumulate = 6 / batches;
    std::vector<Assignment> steps = ThreeSteps();
    for (Assignment& step : steps) step.batches = batches;
    FakeClient client(steps);
    ASSERT_TRUE(RunTrainer(client, options).ok());
    values.push_back(client.values);
    EXPECT_EQ(values.back(), values.front()) << batches;
    EXPECT_EQ(client.pushes[1].closing.batch_norm_calls,
              std::vector<int32_t>(18, 1));
  }
}

TEST(TrainerTest, EachPartCountsItsCallsFromZero) {
  TrainerOptions options = Options();
  options.accumulate = 2;
  FakeClient client({TrainOn(0, 5)});
  ASSERT_TRUE(RunTrainer(client, options).ok());
  // Three layers forward, three backward, and once more.
  ASSERT_EQ(client.reduced.size(), 12U);
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(client.reduced[i].place.call, 0);
    EXPECT_EQ(client.reduced[i].place.part, i < 6 ? 0 : 1);
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
    EXPECT_EQ(push.closing.batch_norm_calls, std::vector<int32_t>(12, 1));
    EXPECT_EQ(push.closing.contributions, global ? 24 : 0);
    EXPECT_EQ(push.closing.labels, 2);
    EXPECT_EQ(client.reduced.size(), global ? 24U : 0U);
    for (const CallMoments& moments : push.closing.moments) {
      if (moments.layer == 0) counts.push_back(moments.moments.count);
    }
    // Two samples of 8x8 in four parts.
    EXPECT_EQ(counts, global ? std::vector<int64_t>()
                             : std::vector<int64_t>({64, 64, 0, 0}));
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
                                          .place = {.layer = 2}}));
  EXPECT_EQ(client.reduced[5].place.layer, 0);
  EXPECT_EQ(client.reduced[5].place.phase, ReducePhase::kBackward);
  EXPECT_EQ(push.closing.contributions, 6);
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

// The server's statistics apply, whatever the worker's model was created with.
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
  // 25 floats: larger parameters are cut, and small ones share a partition.
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
                        key.place.layer == 1 && key.place.phase == phase;
      return lost ? absl::AbortedError("rank 1 is lost") : absl::OkStatus();
    };
    ASSERT_TRUE(RunTrainer(client).ok());
    ASSERT_EQ(client.pushes.size(), 3U);
    EXPECT_EQ(client.pushes[1].assignment.attempt, Attempt(1));
    EXPECT_EQ(client.values, undisturbed.values);
  }
}

TEST(TrainerTest, RepeatedStepDropsTheSameElements) {
  const TrainerOptions options = OptionsAround([](Model& smooth,
                                                  const at::Tensor& images) {
    return smooth.forward(torch::dropout(images, 0.5, smooth.is_training()));
  });
  FakeClient undisturbed(ThreeSteps());
  FakeClient client(ThreeSteps());
  client.on_reduce = [](const ReduceKey& key) -> absl::Status {
    const bool lost = key.step == Version(1) && key.attempt == Attempt(0) &&
                      key.place.phase == ReducePhase::kBackward;
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

// The situation after a restart of the server from an older version.
TEST(TrainerTest, NewIncarnationPullsAgain) {
  for (const bool sync : {true, false}) {
    std::vector<Assignment> steps = ThreeSteps();
    for (Assignment& step : steps) {
      if (!sync) step.members = {};
    }
    FakeClient client(steps);
    client.on_close = [&client] {
      if (client.pushes.empty()) client.current = client.current.Next();
      return absl::OkStatus();
    };
    ASSERT_TRUE(RunTrainer(client).ok());
    // Before the first step and before the second.
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
  EXPECT_TRUE(trainer.left_early());
}

// Only a rank that is not finished is left early.
TEST(TrainerTest, ARunThatFailedIsAnErrorUnlessAServerMayContinueIt) {
  for (const auto& [failed, unfinished] : std::vector<std::pair<bool, bool>>{
           {false, false}, {false, true}, {true, false}, {true, true}}) {
    FakeClient client({});
    client.ends_failed = failed;
    client.ends_unfinished = unfinished;
    const TinyDataset dataset;
    const TrainerOptions options = Options();
    Trainer trainer(client, dataset, options);
    const absl::Status status = trainer.Run();
    EXPECT_EQ(status.ok(), unfinished || !failed) << status;
    if (failed && !unfinished) {
      EXPECT_THAT(status, IsError(kInternal, "the script is over"));
    }
    EXPECT_EQ(trainer.left_early(), unfinished);
  }
}

}  // namespace
}  // namespace cohort
