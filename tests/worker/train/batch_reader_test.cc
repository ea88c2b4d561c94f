#include "worker/train/batch_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "common/mutex.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/tiny_dataset.h"
#include "worker/datasets/dataset.h"
#include "worker/train/batch_share.h"

namespace cohort {
namespace {

// A segmentation data set with every augmentation.
std::unique_ptr<Dataset> Shapes() {
  return *MakeDataset(
      {.name = "synthetic-segmentation",
       .augment =
           Augmentations{
               .flip = true, .crop = true, .scale = true, .jitter = true},
       .synthetic_train = 30,
       .synthetic_test = 3});
}

SampleRequest Request(const std::vector<int64_t>& indices, int64_t epoch) {
  return {.indices = indices,
          .augmentation = AugmentationKey{.run_seed = 5, .data_epoch = epoch}};
}

void ExpectEqual(const Batch& got, const Batch& want) {
  EXPECT_TRUE(got.images.equal(want.images));
  EXPECT_TRUE(got.labels.equal(want.labels));
}

const std::vector<int64_t> kFirst = {7, 3, 29, 3, 0, 11, 12};
const std::vector<int64_t> kSecond = {1, 2, 4};

TEST(BatchReaderTest, NoNumberOfThreadsChangesABit) {
  const auto dataset = Shapes();
  for (const int32_t threads : {0, 1, 2, 3, 16}) {
    SCOPED_TRACE(threads);
    BatchReader reader(*dataset, threads);
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      for (const auto& indices : {kFirst, kSecond}) {
        ExpectEqual(reader.Read(Request(indices, epoch)),
                    ReadBatch(*dataset, Request(indices, epoch)));
      }
    }
  }
}

TEST(BatchReaderTest, WhatWasPreparedIsNeverTakenForSomethingElse) {
  const auto dataset = Shapes();
  for (const int32_t threads : {0, 1, 3}) {
    SCOPED_TRACE(threads);
    BatchReader reader(*dataset, threads);
    const auto expect_read = [&](const SampleRequest& request) {
      ExpectEqual(reader.Read(request), ReadBatch(*dataset, request));
    };
    reader.Prepare(Request(kFirst, 0));
    expect_read(Request(kFirst, 0));
    // Other samples, another epoch, another split, without augmentation.
    reader.Prepare(Request(kFirst, 0));
    expect_read(Request(kSecond, 0));
    reader.Prepare(Request(kFirst, 0));
    expect_read(Request(kFirst, 1));
    reader.Prepare({.indices = {0, 1}});
    expect_read({.split = DataSplit::kTest, .indices = {0, 1}});
    reader.Prepare(Request(kFirst, 0));
    expect_read({.indices = kFirst});
    // A second guess replaces the first.
    reader.Prepare(Request(kFirst, 0));
    reader.Prepare(Request(kSecond, 0));
    expect_read(Request(kSecond, 0));
  }
}

TEST(BatchReaderTest, AnEmptyBatchHasItsShape) {
  const auto dataset = Shapes();
  for (const int32_t threads : {0, 2}) {
    BatchReader reader(*dataset, threads);
    const Batch batch = reader.Read(Request({}, 0));
    EXPECT_EQ(batch.images.sizes(), (std::vector<int64_t>{0, 3, 48, 48}));
    EXPECT_EQ(batch.labels.sizes(), (std::vector<int64_t>{0, 48, 48}));
  }
}

// Counts the samples that were read, and can block reading.
class CountingDataset final : public TinyDataset {
 public:
  void Read(const SampleRequest& request, absl::Span<float> images,
            absl::Span<int64_t> labels) const override {
    TinyDataset::Read(request, images, labels);
    MutexLock lock(mu_);
    read_ += static_cast<int64_t>(request.indices.size());
    changed_.NotifyAll();
  }
  void AwaitRead(int64_t samples) const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    while (read_ < samples) changed_.Wait(mu_);
  }
  int64_t read() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return read_;
  }

 private:
  mutable Mutex mu_;
  mutable CondVar changed_;
  mutable int64_t read_ ABSL_GUARDED_BY(mu_) = 0;
};

TEST(BatchReaderTest, ReadsAheadWithoutBeingAskedAndOnlyOnce) {
  const CountingDataset dataset;
  BatchReader reader(dataset, 2);
  reader.Prepare(Request({1, 2, 3}, 0));
  dataset.AwaitRead(3);
  reader.Prepare(Request({1, 2, 3}, 0));
  const Batch batch = reader.Read(Request({1, 2, 3}, 0));
  EXPECT_EQ(dataset.read(), 3);
  EXPECT_EQ(batch.labels[2].item<int64_t>(), 0);
  // The batch was taken, so the next request reads again.
  reader.Read(Request({1, 2, 3}, 0));
  EXPECT_EQ(dataset.read(), 6);
}

TEST(BatchReaderTest, WithoutThreadsNothingIsReadAhead) {
  const CountingDataset dataset;
  BatchReader reader(dataset, 0);
  reader.Prepare(Request({1, 2, 3}, 0));
  EXPECT_EQ(dataset.read(), 0);
}

TEST(BatchTest, PartsHaveEveryOtherSample) {
  const TinyDataset dataset;
  const std::vector<int64_t> indices = {4, 5, 6, 7};
  const Batch batch = ReadBatch(dataset, {.indices = indices});
  const Batch part = batch.Part({.begin = 1, .stride = 2});
  ASSERT_EQ(part.images.sizes(), (std::vector<int64_t>{2, 1, 8, 8}));
  EXPECT_TRUE(part.images[1].equal(batch.images[3]));
  EXPECT_EQ(part.labels[0].item<int64_t>(), 5 % 3);
  EXPECT_EQ(part.host_labels[1].item<int64_t>(), 7 % 3);
  EXPECT_EQ(batch.Part({.begin = 5, .stride = 6}).images.size(0), 0);
  EXPECT_EQ(batch.Part({}).images.data_ptr<float>(),
            batch.images.data_ptr<float>());
}

// Two ranks of 4 and 6 in an epoch of 25: the second gets 4..9, 14..19 and,
// short, 24.
TEST(RangeForecastTest, GoesOnByTheLastStride) {
  RangeForecast forecast;
  EXPECT_EQ(forecast.After(0, {.begin = 4, .end = 10}, 25), std::nullopt);
  EXPECT_EQ(forecast.After(0, {.begin = 14, .end = 20}, 25),
            (IndexRange{.begin = 24, .end = 25}));
  EXPECT_EQ(forecast.After(0, {.begin = 24, .end = 25}, 25), std::nullopt);
}

TEST(RangeForecastTest, KnowsNothingAcrossEpochsAndAfterARepetition) {
  RangeForecast forecast;
  forecast.After(0, {.begin = 0, .end = 5}, 100);
  EXPECT_EQ(forecast.After(1, {.begin = 5, .end = 10}, 100), std::nullopt);
  EXPECT_EQ(forecast.After(1, {.begin = 5, .end = 10}, 100), std::nullopt);
  EXPECT_EQ(forecast.After(1, {.begin = 0, .end = 5}, 100), std::nullopt);
  EXPECT_EQ(forecast.After(1, {.begin = 10, .end = 15}, 100),
            (IndexRange{.begin = 20, .end = 25}));
}

TEST(SamplesOfTest, AShareMultipliesAndRounds) {
  EXPECT_EQ(*SamplesOf({.batch_size = 8, .share = 1}), 8);
  EXPECT_EQ(*SamplesOf({.batch_size = 8, .share = 2}), 16);
  EXPECT_EQ(*SamplesOf({.batch_size = 3, .share = 0.5}), 2);
  EXPECT_EQ(*SamplesOf({.batch_size = 5, .share = 0.25}), 1);
}

TEST(SamplesOfTest, WhatMakesNoImageIsRefused) {
  for (const double share : {0.0, -1.0, 0.05, 1e18, 0.0 / 0.0}) {
    EXPECT_THAT(SamplesOf({.batch_size = 8, .share = share}),
                IsError(kInvalidArgument, "--share: got"));
  }
  EXPECT_THAT(SamplesOf({.batch_size = 0}),
              IsError(kInvalidArgument, "--batch_size: got 0"));
}

}  // namespace
}  // namespace cohort
