// The trainer on an accelerator: a fake one, whose results must equal the CPU's
// bit for bit, and a GPU if there is one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/permutation.h"
#include "tests/fakes/fake_accelerator.h"
#include "tests/fakes/fake_client.h"
#include "tests/fakes/statuses.h"
#include "tests/worker/train/trainer_example.h"
#include "worker/datasets/image_table.h"
#include "worker/device/compute_device.h"
#include "worker/device/pinned_pool.h"
#include "worker/train/trainer.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<Assignment> Script(bool global) {
  std::vector<Assignment> script = ThreeSteps();
  for (Assignment& step : script) step.global_normalization = global;
  script.push_back(EvaluateOn(0, 5));
  Assignment collect = TrainOn(2, 6);
  collect.kind = AssignmentKind::kCollectMoments;
  script.push_back(collect);
  // Images without a valid label, and no images.
  script.push_back(TrainOn(3, 3));
  return script;
}

class FakeDeviceTrainerTest : public ::testing::Test {
 protected:
  FakeDeviceTrainerTest() : pool_(accelerator_) {}

  TrainerOptions DeviceOptions() {
    TrainerOptions options = Options();
    options.compute = {.accelerator = &accelerator_, .pinned = &pool_};
    return options;
  }

  FakeAccelerator accelerator_;
  PinnedPool pool_;
};

void ExpectSame(const std::vector<CallMoments>& seen,
                const std::vector<CallMoments>& wanted) {
  ASSERT_EQ(seen.size(), wanted.size());
  for (size_t i = 0; i < seen.size(); ++i) {
    EXPECT_EQ(seen[i].layer, wanted[i].layer);
    EXPECT_EQ(seen[i].call, wanted[i].call);
    EXPECT_EQ(seen[i].moments.count, wanted[i].moments.count);
    EXPECT_EQ(seen[i].moments.first, wanted[i].moments.first);
    EXPECT_EQ(seen[i].moments.second, wanted[i].moments.second);
  }
}

void ExpectSameRuns(const FakeClient& seen, const FakeClient& wanted) {
  EXPECT_EQ(seen.values, wanted.values);
  ASSERT_EQ(seen.collected.size(), wanted.collected.size());
  for (size_t i = 0; i < seen.collected.size(); ++i) {
    ExpectSame(seen.collected[i], wanted.collected[i]);
  }
  ASSERT_EQ(seen.evaluations.size(), wanted.evaluations.size());
  for (size_t i = 0; i < seen.evaluations.size(); ++i) {
    EXPECT_EQ(seen.evaluations[i].loss_sum, wanted.evaluations[i].loss_sum);
    EXPECT_EQ(seen.evaluations[i].correct, wanted.evaluations[i].correct);
    EXPECT_EQ(seen.evaluations[i].labels, wanted.evaluations[i].labels);
  }
  ASSERT_EQ(seen.pushes.size(), wanted.pushes.size());
  for (size_t i = 0; i < seen.pushes.size(); ++i) {
    SCOPED_TRACE(i);
    const FakeClient::Push& push = seen.pushes[i];
    const FakeClient::Push& other = wanted.pushes[i];
    EXPECT_EQ(push.gradients, other.gradients);
    EXPECT_EQ(push.absent_slices, other.absent_slices);
    EXPECT_EQ(push.closing.loss_sum, other.closing.loss_sum);
    EXPECT_EQ(push.closing.correct, other.closing.correct);
    EXPECT_EQ(push.closing.labels, other.closing.labels);
    EXPECT_EQ(push.closing.batch_norm_calls, other.closing.batch_norm_calls);
    ExpectSame(push.closing.moments, other.closing.moments);
  }
}

TEST_F(FakeDeviceTrainerTest, RunIsTheCpusToTheBit) {
  for (const bool global : {true, false}) {
    for (const int64_t accumulate : {1, 3}) {
      // One slice a partition; several; and all in one, which is packed.
      for (const int64_t partition_bytes : {40, 700, 1 << 20}) {
        SCOPED_TRACE(
            absl::StrCat(global, " ", accumulate, " ", partition_bytes));
        FakeClient wanted(Script(global));
        FakeClient seen(Script(global));
        wanted.partition_bytes = seen.partition_bytes = partition_bytes;
        TrainerOptions options = Options();
        options.accumulate = accumulate;
        ASSERT_TRUE(RunTrainer(wanted, options).ok());
        options.compute = DeviceOptions().compute;
        ExpectOk(RunTrainer(seen, options));
        ExpectSameRuns(seen, wanted);
      }
    }
  }
  EXPECT_GT(accelerator_.packs, 0);
  EXPECT_GT(accelerator_.copies, 0);
}

// Images of 1 x 8 x 8 in three classes, flipped and shifted.
std::unique_ptr<Dataset> StoredDataset() {
  ImageTable table{
      .name = "stored", .classes = 3, .channels = 1, .height = 8, .width = 8};
  SplitMix64 random(5);
  for (ImageSplit* split : {&table.train, &table.test}) {
    split->samples = 14;
    for (int64_t i = 0; i < 14 * 64; ++i) {
      split->pixels.push_back(static_cast<uint8_t>(256 * random.Uniform()));
    }
    for (int64_t i = 0; i < 14; ++i) {
      split->labels.push_back(static_cast<uint16_t>(i % 3));
    }
  }
  return MakeImageDataset(std::move(table), {.flip = true, .crop = true});
}

TEST_F(FakeDeviceTrainerTest, HeldImagesAreTrainedOnAndScoredAsOnTheCpu) {
  const std::unique_ptr<Dataset> dataset = StoredDataset();
  FakeClient wanted(Script(true));
  FakeClient seen(Script(true));
  ASSERT_TRUE(Trainer(wanted, *dataset, Options()).Run().ok());
  ExpectOk(Trainer(seen, *dataset, DeviceOptions()).Run());
  ExpectSameRuns(seen, wanted);
}

// Under local normalisation the passes do not wait. Only the moments, gradients
// and sums that leave afterwards are waited for.
TEST_F(FakeDeviceTrainerTest, PassesOfALocalStepWaitForNothing) {
  Assignment step = TrainOn(0, 5);
  step.global_normalization = false;
  FakeClient client({step});
  client.partition_bytes = 40;
  int32_t awaits_before_first = -1;
  client.on_gradient = [&](int32_t) {
    if (awaits_before_first < 0) awaits_before_first = accelerator_.awaits;
    return absl::OkStatus();
  };
  ASSERT_TRUE(RunTrainer(client, DeviceOptions()).ok());
  // Moments of three layers, whose forward pass is over by then, and the first
  // gradient.
  EXPECT_EQ(awaits_before_first, 4);
}

TEST_F(FakeDeviceTrainerTest, GlobalStepWaitsForItsRendezvousOnly) {
  FakeClient client({TrainOn(0, 5)});
  std::vector<int32_t> awaits;
  client.on_reduce = [&](const ReduceKey&) {
    awaits.push_back(accelerator_.awaits);
    return absl::OkStatus();
  };
  ASSERT_TRUE(RunTrainer(client, DeviceOptions()).ok());
  // Three layers there and back, one wait each.
  EXPECT_EQ(awaits, (std::vector<int32_t>{1, 2, 3, 4, 5, 6}));
}

// On a device that has finished whenever it is queried, gradients leave between
// the rendezvous of the backward pass, as on the CPU.
TEST_F(FakeDeviceTrainerTest, LastLayersTravelBeforeTheFirstAreComputed) {
  accelerator_.asking_helps = true;
  FakeClient client({TrainOn(0, 5)});
  client.partition_bytes = 40;
  ASSERT_TRUE(RunTrainer(client, DeviceOptions()).ok());
  ASSERT_EQ(client.pushes.size(), 1U);
  EXPECT_EQ(client.ReducedBefore("fc.weight"), 3U);
  EXPECT_EQ(client.ReducedBefore("conv3.weight"), 4U);
  EXPECT_EQ(client.ReducedBefore("conv2.weight"), 5U);
  EXPECT_EQ(client.ReducedBefore("conv1.weight"), 6U);
  // Each copy waits for the work given to the compute lane before.
  EXPECT_GE(accelerator_.copies_follow_compute,
            static_cast<int32_t>(client.partitions.size()));
}

TEST_F(FakeDeviceTrainerTest, StepThatWasVoidIsRepeatedAsOnTheCpu) {
  FakeClient wanted({TrainOn(0, 5), TrainOn(5, 14)});
  FakeClient seen({TrainOn(0, 5), TrainOn(5, 14)});
  int gradients = 0;
  wanted.partition_bytes = seen.partition_bytes = 40;
  seen.on_gradient = [&gradients](int32_t) -> absl::Status {
    if (++gradients == 5) return absl::AbortedError("rank 1 is lost");
    return absl::OkStatus();
  };
  ASSERT_TRUE(RunTrainer(wanted).ok());
  ASSERT_TRUE(RunTrainer(seen, DeviceOptions()).ok());
  ExpectSameRuns(seen, wanted);
}

TEST_F(FakeDeviceTrainerTest, StepsUsePinnedMemoryAgain) {
  FakeClient few({TrainOn(0, 5), TrainOn(5, 10)});
  ASSERT_TRUE(RunTrainer(few, DeviceOptions()).ok());
  const int32_t allocations = accelerator_.allocations;
  FakeClient many({TrainOn(0, 5), TrainOn(5, 10), TrainOn(0, 5, 1),
                   TrainOn(5, 10, 1), TrainOn(0, 5, 2)});
  ASSERT_TRUE(RunTrainer(many, DeviceOptions()).ok());
  EXPECT_EQ(accelerator_.allocations, allocations);
}

TEST_F(FakeDeviceTrainerTest, ErrorOfTheDeviceEndsTheWorkerAndNamesTheLayer) {
  accelerator_.kernel_status = absl::InternalError("the device fell off");
  FakeClient client({TrainOn(0, 5)});
  const absl::Status status = RunTrainer(client, DeviceOptions());
  EXPECT_EQ(status.code(), kInternal);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("bn1: "), HasSubstr("the device fell off")));
  EXPECT_THAT(client.left.value_or(""), HasSubstr("the device fell off"));
}

TEST_F(FakeDeviceTrainerTest, WithoutPinnedMemoryTheWorkerEnds) {
  accelerator_.pinned_bytes_max = 2048;
  FakeClient client({TrainOn(0, 5)});
  EXPECT_THAT(RunTrainer(client, DeviceOptions()),
              IsError(kResourceExhausted, "page-locked memory"));
  EXPECT_TRUE(client.left.has_value());
}

// Its memory ends behind its second layer in training.
TEST_F(FakeDeviceTrainerTest, OutOfMemoryNamesLayerBatchAndSizesAndIsTold) {
  TrainerOptions options =
      OptionsAround([](Model& smooth, const at::Tensor& images) {
        ModelOutput output = smooth.forward(images);
        TORCH_CHECK_WITH(OutOfMemoryError, !smooth.is_training(),
                         "Tried to allocate 2.00 GiB");
        return output;
      });
  options.compute = DeviceOptions().compute;
  FakeClient client({TrainOn(0, 5)});
  const absl::Status status = RunTrainer(client, options);
  EXPECT_EQ(status.code(), kResourceExhausted);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("out of memory on fake:0"),
            HasSubstr("activations at or after inner.bn3 in the forward pass, "
                      "where its input is Float [5,16,2,2], 1280 bytes"),
            HasSubstr("with a batch of Float [5,1,8,8], 1280 bytes"),
            HasSubstr("Tried to allocate 2.00 GiB"),
            HasSubstr("--batch_size")));
  EXPECT_EQ(client.left, std::string(status.message()));
}

// Relative to the largest gradient: bfloat16 has 8 bits, and the rounding
// errors of three layers add up.
TEST_F(FakeDeviceTrainerTest, BFloat16FollowsFloat32) {
  for (const bool device : {false, true}) {
    FakeClient wanted({TrainOn(0, 14)});
    FakeClient seen({TrainOn(0, 14)});
    ASSERT_TRUE(RunTrainer(wanted).ok());
    TrainerOptions options = device ? DeviceOptions() : Options();
    options.compute.precision = Precision::kBFloat16;
    ExpectOk(RunTrainer(seen, options));
    double largest = 0;
    double error = 0;
    const auto& g = wanted.pushes[0].gradients[0];
    for (size_t i = 0; i < g.size(); ++i) {
      largest = std::max<double>(largest, std::abs(g[i]));
      error = std::max<double>(error,
                               std::abs(g[i] - seen.pushes[0].gradients[0][i]));
    }
    EXPECT_GT(error, 0);
    EXPECT_LT(error, 0.1 * largest);
  }
}

// The same run on a GPU, if there is one: float32 sums in another order.
TEST(GpuTrainerTest, RunFollowsTheCpus) {
  const absl::StatusOr<ComputeDevice> device = OpenComputeDevice("cuda:0");
  if (!device.ok()) GTEST_SKIP() << device.status().message();
  for (const bool global : {true, false}) {
    FakeClient wanted(Script(global));
    FakeClient seen(Script(global));
    ASSERT_TRUE(RunTrainer(wanted).ok());
    TrainerOptions options = Options();
    options.compute = {.torch = device->torch,
                       .accelerator = device->accelerator.get(),
                       .pinned = device->pinned.get()};
    ExpectOk(RunTrainer(seen, options));
    ASSERT_EQ(seen.values.size(), wanted.values.size());
    for (size_t i = 0; i < seen.values.size(); ++i) {
      for (size_t j = 0; j < seen.values[i].size(); ++j) {
        // TF32 is off by default; steps of 0.5 add up rounding errors.
        EXPECT_NEAR(seen.values[i][j], wanted.values[i][j], 1e-3);
      }
    }
  }
}

}  // namespace
}  // namespace cohort
