// The worker's accelerator on a GPU, without LibTorch: two lanes, pinned memory
// and moments that the kernels write there.

#include "worker/device/accelerator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/runtime.h"
#include "tests/fakes/statuses.h"
#include "worker/device/cuda_accelerator.h"
#include "worker/device/pinned_pool.h"

namespace cohort {
namespace {

class AcceleratorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<Accelerator>> opened =
        OpenCudaAccelerator(0, [this] { return stream_; });
    if (!opened.ok()) GTEST_SKIP() << opened.status().message();
    accelerator_ = *std::move(opened);
    ASSERT_EQ(kernels::cuda::NewStream(&stream_), 0);
    pool_ = std::make_unique<PinnedPool>(*accelerator_);
  }
  void TearDown() override {
    for (void* memory : memory_) kernels::cuda::FreeOnDevice(memory);
    pool_.reset();
    if (stream_ != nullptr) kernels::cuda::DestroyStream(stream_);
  }

  float* OnDevice(int64_t count) {
    void* memory = nullptr;
    EXPECT_EQ(kernels::cuda::AllocateOnDevice(4 * count, &memory), 0);
    memory_.push_back(memory);
    return static_cast<float*>(memory);
  }

  CUstream_st* stream_ = nullptr;
  std::unique_ptr<Accelerator> accelerator_;
  std::unique_ptr<PinnedPool> pool_;
  std::vector<void*> memory_;
};

TEST_F(AcceleratorTest, CopyLaneFollowsTheComputeLaneAndIsFollowed) {
  constexpr int64_t kCount = 1 << 20;
  float* const device = OnDevice(kCount);
  float* const other = OnDevice(kCount);
  const auto in = *pool_->Take(4 * kCount);
  const auto out = *pool_->Take(4 * kCount);
  std::iota(in->as<float>(), in->as<float>() + kCount, 0.0F);
  const auto computed = *accelerator_->NewEvent();
  const auto copied = *accelerator_->NewEvent();
  Accelerator& lanes = *accelerator_;
  // In through one lane, across and out through the other, and out again
  // through the first.
  ExpectOk(lanes.Copy(Lane::kCompute, device, in->memory(), 4 * kCount));
  ASSERT_TRUE(lanes.Record(Lane::kCompute, *computed).ok());
  ASSERT_TRUE(lanes.WaitFor(Lane::kCopy, *computed).ok());
  ASSERT_TRUE(lanes.Copy(Lane::kCopy, other, device, 4 * kCount).ok());
  ASSERT_TRUE(lanes.Record(Lane::kCopy, *copied).ok());
  ASSERT_TRUE(lanes.WaitFor(Lane::kCompute, *copied).ok());
  ExpectOk(lanes.Copy(Lane::kCompute, out->memory(), other, 4 * kCount));
  ASSERT_TRUE(pool_->MarkUse(Lane::kCompute, *out).ok());
  ASSERT_TRUE(lanes.Await(out->event()).ok());
  EXPECT_TRUE(*lanes.HasHappened(out->event()));
  for (int64_t i = 0; i < kCount; i += 997) {
    ASSERT_EQ(out->as<float>()[i], static_cast<float>(i));
  }
}

TEST_F(AcceleratorTest, SlicesArePackedIntoPinnedMemoryAndBack) {
  constexpr int64_t kCount = 1000;
  float* const from = OnDevice(kCount);
  float* const to = OnDevice(kCount);
  const auto in = *pool_->Take(4 * kCount);
  const auto packed = *pool_->Take(4 * kCount);
  const auto out = *pool_->Take(4 * kCount);
  std::iota(in->as<float>(), in->as<float>() + kCount, 1.0F);
  Accelerator& lanes = *accelerator_;
  ASSERT_TRUE(lanes.Copy(Lane::kCopy, from, in->memory(), 4 * kCount).ok());
  const auto segments = [](float* memory) {
    return std::vector<kernels::cuda::PackSegment>{
        {.tensor = memory, .count = 3, .offset = 997},
        {.tensor = memory + 3, .count = 997, .offset = 0}};
  };
  ExpectOk(lanes.Pack(Lane::kCopy, segments(from), packed->as<float>()));
  ExpectOk(lanes.Unpack(Lane::kCopy, packed->as<float>(), segments(to)));
  ASSERT_TRUE(lanes.Copy(Lane::kCopy, out->memory(), to, 4 * kCount).ok());
  ASSERT_TRUE(pool_->MarkUse(Lane::kCopy, *out).ok());
  ASSERT_TRUE(lanes.Await(out->event()).ok());
  EXPECT_EQ(packed->as<float>()[0], 4.0F);
  EXPECT_EQ(packed->as<float>()[997], 1.0F);
  for (int64_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(out->as<float>()[i], static_cast<float>(i + 1));
  }
}

// As where a slice has no gradient: the host has filled its place.
TEST_F(AcceleratorTest, PackingLeavesGapsAsTheyAre) {
  constexpr int64_t kCount = 1000;
  float* const from = OnDevice(kCount);
  const auto in = *pool_->Take(4 * kCount);
  const auto packed = *pool_->Take(4 * kCount);
  std::iota(in->as<float>(), in->as<float>() + kCount, 1.0F);
  std::fill_n(packed->as<float>(), kCount, -1.0F);
  Accelerator& lanes = *accelerator_;
  ASSERT_TRUE(lanes.Copy(Lane::kCopy, from, in->memory(), 4 * kCount).ok());
  ExpectOk(lanes.Pack(Lane::kCopy,
                      {{.tensor = from, .count = 400, .offset = 0},
                       {.tensor = from + 400, .count = 500, .offset = 500}},
                      packed->as<float>()));
  ASSERT_TRUE(pool_->MarkUse(Lane::kCopy, *packed).ok());
  ASSERT_TRUE(lanes.Await(packed->event()).ok());
  for (int64_t i = 0; i < kCount; ++i) {
    const float wanted = i < 400   ? static_cast<float>(i + 1)
                         : i < 500 ? -1.0F
                                   : static_cast<float>(i - 99);
    ASSERT_EQ(packed->as<float>()[i], wanted) << i;
  }
}

TEST_F(AcceleratorTest, MomentsArriveInPinnedMemory) {
  const kernels::BatchShape shape{.outer = 64, .channels = 48, .inner = 49};
  const int64_t count = shape.count() * shape.channels;
  float* const x = OnDevice(count);
  const auto in = *pool_->Take(4 * count);
  for (int64_t i = 0; i < count; ++i) {
    in->as<float>()[i] = static_cast<float>((i * 7919) % 1009);
  }
  std::vector<double> mean(48);
  std::vector<double> m2(48);
  kernels::CpuBackend().Moments({.shape = shape,
                                 .x = in->memory(),
                                 .mean = mean.data(),
                                 .m2 = m2.data()});
  Accelerator& lanes = *accelerator_;
  ASSERT_TRUE(lanes.Copy(Lane::kCompute, x, in->memory(), 4 * count).ok());
  // Twice: the workspace must be ready for reuse.
  for (int i = 0; i < 2; ++i) {
    const auto out = *pool_->Take(2 * 48 * 8);
    auto* const seen = out->as<double>();
    ExpectOk(
        lanes.Moments({.shape = shape, .x = x, .mean = seen, .m2 = seen + 48}));
    ASSERT_TRUE(pool_->MarkUse(Lane::kCompute, *out).ok());
    ASSERT_TRUE(lanes.Await(out->event()).ok());
    for (size_t c = 0; c < 48; ++c) {
      // Batches of float32 sums: 64 roundings of 6e-8.
      EXPECT_NEAR(seen[c], mean[c], 4e-6 * mean[c]);
      EXPECT_NEAR(seen[48 + c], m2[c], 4e-6 * m2[c]);
    }
  }
}

TEST(CudaAcceleratorTest, GpuThatIsNotThereIsAnError) {
  const absl::Status status =
      OpenCudaAccelerator(99, [] { return nullptr; }).status();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("cuda:99"), absl::string_view::npos);
}

}  // namespace
}  // namespace cohort
