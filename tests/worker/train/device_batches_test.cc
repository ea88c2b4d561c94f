#include "worker/train/device_batches.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "common/permutation.h"
#include "tests/fakes/fake_accelerator.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/tiny_dataset.h"
#include "worker/datasets/image_table.h"
#include "worker/device/pinned_pool.h"

namespace cohort {
namespace {

constexpr int64_t kSamples = 6;

// Images of 3 x 5 x 7 with a label, or with a mask of four classes.
ImageTable Table(DatasetTask task) {
  ImageTable table{.name = "made",
                   .task = task,
                   .classes = 4,
                   .channels = 3,
                   .height = 5,
                   .width = 7};
  SplitMix64 random(3);
  for (ImageSplit* split : {&table.train, &table.test}) {
    split->samples = kSamples;
    for (int64_t i = 0; i < kSamples * 3 * 5 * 7; ++i) {
      split->pixels.push_back(static_cast<uint8_t>(256 * random.Uniform()));
    }
    for (int64_t i = 0; i < kSamples; ++i) {
      if (task == DatasetTask::kClassification) {
        split->labels.push_back(static_cast<uint16_t>(i % 4));
      }
    }
    for (int64_t i = 0; i < kSamples * 5 * 7; ++i) {
      if (task == DatasetTask::kSegmentation) {
        split->masks.push_back(static_cast<uint8_t>(4 * random.Uniform()));
      }
    }
  }
  return table;
}

class DeviceBatchesTest : public ::testing::Test {
 protected:
  DeviceBatchesTest() : pool_(accelerator_) {}

  Compute compute() { return {.accelerator = &accelerator_, .pinned = &pool_}; }

  // Checks that the batch equals Read's; false if none was made.
  bool MakesTheSame(const Dataset& dataset, const SampleRequest& request) {
    DeviceBatches batches(compute(), dataset);
    EXPECT_GT(*batches.Hold(), 0);
    const absl::StatusOr<std::optional<Batch>> made = batches.Make(request);
    EXPECT_TRUE(made.ok()) << made.status();
    if (!made->has_value()) return false;
    const Batch wanted = ReadBatch(dataset, request);
    EXPECT_TRUE(at::equal((*made)->images, wanted.images));
    EXPECT_TRUE(at::equal((*made)->labels, wanted.labels));
    EXPECT_TRUE(at::equal((*made)->host_labels, wanted.labels));
    return true;
  }

  const std::vector<int64_t> indices_ = {4, 0, 5, 5, 2};
  FakeAccelerator accelerator_;
  PinnedPool pool_;
};

TEST_F(DeviceBatchesTest, FlippedAndShiftedImagesAreTheCpusToTheBit) {
  for (const DatasetTask task :
       {DatasetTask::kClassification, DatasetTask::kSegmentation}) {
    const auto dataset =
        MakeImageDataset(Table(task), {.flip = true, .crop = true});
    for (int64_t epoch = 0; epoch < 4; ++epoch) {
      SCOPED_TRACE(epoch);
      EXPECT_TRUE(MakesTheSame(
          *dataset, {.indices = indices_,
                     .augmentation =
                         AugmentationKey{.run_seed = 5, .data_epoch = epoch}}));
    }
  }
}

TEST_F(DeviceBatchesTest, ImagesAsTheyAreComeFromEitherSplit) {
  const auto dataset =
      MakeImageDataset(Table(DatasetTask::kClassification), {.scale = true});
  for (const DataSplit split : {DataSplit::kTrain, DataSplit::kTest}) {
    EXPECT_TRUE(MakesTheSame(*dataset, {.split = split, .indices = indices_}));
  }
  const std::vector<int64_t> none;
  EXPECT_TRUE(MakesTheSame(*dataset, {.indices = none}));
}

TEST_F(DeviceBatchesTest, BlendedPixelsAreLeftToTheCpu) {
  const Augmentations scale{.scale = true};
  const Augmentations jitter{.jitter = true};
  for (const Augmentations& augmentations : {scale, jitter}) {
    const auto dataset =
        MakeImageDataset(Table(DatasetTask::kClassification), augmentations);
    EXPECT_FALSE(MakesTheSame(
        *dataset,
        {.indices = indices_, .augmentation = AugmentationKey{.run_seed = 5}}));
  }
}

TEST_F(DeviceBatchesTest, ImagesThatTakeTooMuchMemoryAreNotHeld) {
  const auto dataset =
      MakeImageDataset(Table(DatasetTask::kClassification), {});
  // Twice six images of 105 bytes, and an eighth of the free memory.
  for (const int64_t free_bytes : {8 * 1260, 8 * 1260 - 8}) {
    accelerator_.free_bytes = free_bytes;
    DeviceBatches batches(compute(), *dataset);
    const bool fits = free_bytes == 8 * 1260;
    EXPECT_EQ(*batches.Hold(), fits ? 1260 : 0);
    EXPECT_EQ(batches.holds(), fits);
    EXPECT_EQ((*batches.Make({.indices = indices_})).has_value(), fits);
  }
}

TEST_F(DeviceBatchesTest, DataSetThatIsNotStoredIsNotHeld) {
  const TinyDataset dataset;
  DeviceBatches batches(compute(), dataset);
  EXPECT_EQ(*batches.Hold(), 0);
  EXPECT_FALSE((*batches.Make({.indices = indices_})).has_value());
}

TEST_F(DeviceBatchesTest, MovedBatchIsTheSameAndPinnedMemoryIsUsedAgain) {
  const TinyDataset dataset;
  const Batch read = ReadBatch(dataset, {.indices = indices_});
  for (int i = 0; i < 3; ++i) {
    const Batch moved = OkValue(MoveBatch(compute(), read));
    EXPECT_TRUE(at::equal(moved.images, read.images));
    EXPECT_TRUE(at::equal(moved.labels, read.labels));
    EXPECT_FALSE(moved.images.is_same(read.images));
  }
  EXPECT_EQ(accelerator_.allocations, 2);
  EXPECT_EQ(accelerator_.awaits, 0);
  EXPECT_TRUE(MoveBatch({}, read)->images.is_same(read.images));
}

TEST_F(DeviceBatchesTest, ImagesLieAsActivationsAreWanted) {
  const auto dataset =
      MakeImageDataset(Table(DatasetTask::kClassification), {});
  const Batch read = ReadBatch(*dataset, {.indices = indices_});
  constexpr auto kWanted = at::MemoryFormat::ChannelsLast;
  Compute on_device = compute();
  on_device.activations = kWanted;
  DeviceBatches batches(on_device, *dataset);
  EXPECT_GT(*batches.Hold(), 0);
  for (const at::Tensor& images :
       {MoveBatch({.activations = kWanted}, read)->images,
        MoveBatch(on_device, read)->images,
        (**batches.Make({.indices = indices_})).images}) {
    EXPECT_TRUE(images.is_contiguous(kWanted));
    EXPECT_TRUE(at::equal(images, read.images));
  }
}

}  // namespace
}  // namespace cohort
