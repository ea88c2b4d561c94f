#include "kernels/cuda/checks.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/stream_plan.h"
#include "tests/fakes/statuses.h"

namespace cohort::kernels::cuda {
namespace {

using testing::HasSubstr;

alignas(16) char memory[1 << 16];
const Queue kQueue = {.workspace = memory,
                      .workspace_bytes = sizeof(memory),
                      .multiprocessors = 4};

std::string MessageOf(const BatchShape& shape, DataType type, const void* x,
                      const void* mean = memory, const Queue& queue = kQueue) {
  const auto call = CheckCall(shape, type, {{"x", x}}, {{"mean", mean}}, queue);
  EXPECT_TRUE(call.ok() || absl::IsInvalidArgument(call.status()));
  return std::string(call.status().message());
}

TEST(ChecksTest, GoodCallHasAPlan) {
  const auto call =
      OkValue(CheckCall({2, 3, 4}, DataType::kFloat32, {{"x", memory}},
                        {{"mean", memory}}, kQueue));
  EXPECT_FALSE(call.empty);
  EXPECT_GT(call.plan.blocks(), 0);
}

TEST(ChecksTest, EmptyBatchNeedsNoTensor) {
  const auto call =
      OkValue(CheckCall({0, 3, 4}, DataType::kFloat32, {{"x", nullptr}},
                        {{"mean", memory}}, kQueue));
  EXPECT_TRUE(call.empty);
}

TEST(ChecksTest, WrongCallsSayWhatTheySawAndWant) {
  constexpr auto kFloat = DataType::kFloat32;
  EXPECT_THAT(MessageOf({1, 0, 1}, kFloat, memory), HasSubstr("[1][0][1]"));
  EXPECT_THAT(MessageOf({-1, 2, 1}, kFloat, memory), HasSubstr("[-1][2][1]"));
  EXPECT_THAT(MessageOf({int64_t{1} << 30, 1 << 10, 2}, kFloat, memory),
              HasSubstr("2^40"));
  EXPECT_THAT(
      MessageOf({int64_t{1} << 62, int64_t{1} << 62, 4}, kFloat, memory),
      HasSubstr("2^40"));
  EXPECT_THAT(MessageOf({1, 1, 1}, DataType::kFloat64, memory),
              HasSubstr("float64"));
  EXPECT_THAT(MessageOf({1, 1, 1}, kFloat, nullptr), HasSubstr("x: null"));
  EXPECT_THAT(MessageOf({1, 1, 1}, kFloat, memory, nullptr),
              HasSubstr("mean: null"));
  EXPECT_THAT(MessageOf({1, 1, 1}, kFloat, memory + 2),
              HasSubstr("2 bytes behind"));
  EXPECT_THAT(MessageOf({1, 1, 1}, kFloat, memory, memory + 4),
              HasSubstr("mean: lies 4 bytes behind"));
  EXPECT_THAT(MessageOf({1, 1, 1}, kFloat, memory, memory, {}),
              HasSubstr("multiprocessors"));
}

// 2^32 runs of one channel each would be more blocks than a launch has.
TEST(ChecksTest, MoreBlocksThanALaunchHasAreRefused) {
  EXPECT_THAT(MessageOf({1, int64_t{1} << 31, 512}, DataType::kFloat16, memory),
              HasSubstr("blocks"));
}

TEST(ChecksTest, WorkspaceMustBeThereAndSuffice) {
  const Plan plan = MakePlan({1 << 12, 64, 1}, {8, 0}, 132);
  const auto message = [&](const Queue& queue) {
    return std::string(CheckWorkspace(plan, queue).message());
  };
  EXPECT_THAT(message({}), HasSubstr("workspace: null"));
  EXPECT_THAT(message({.workspace = memory + 8, .workspace_bytes = 1 << 30}),
              HasSubstr("8 bytes behind"));
  EXPECT_THAT(message({.workspace = memory, .workspace_bytes = 100}),
              HasSubstr("got 100 bytes, want "));
  EXPECT_EQ(message({.workspace = memory, .workspace_bytes = 1 << 30}), "");
}

TEST(ChecksTest, WrongSegmentsAreRefused) {
  float values[8] = {};
  const auto message = [&](const PackSegment& segment, float* packed) {
    return std::string(PlanPack({segment}, packed).status().message());
  };
  EXPECT_EQ(message({values, 8, 0}, values), "");
  EXPECT_THAT(message({values, -1, 0}, values), HasSubstr("-1 elements"));
  EXPECT_THAT(message({nullptr, 1, 0}, values), HasSubstr("segment: null"));
  EXPECT_THAT(message({values, 1, 0}, nullptr), HasSubstr("packed: null"));
  EXPECT_THAT(
      message(
          {reinterpret_cast<float*>(reinterpret_cast<char*>(values) + 2), 1, 0},
          values),
      HasSubstr("2 bytes behind"));
}

// 2^33 elements, in blocks of 8192: all in one launch.
TEST(StreamPlanTest, AdjacentSegmentsAreOneRange) {
  const auto ranges = [](const std::vector<PackSegment>& segments) {
    std::vector<std::pair<int64_t, int64_t>> found;
    for (const PackedRange& range : PackedRanges(segments)) {
      found.emplace_back(range.offset, range.count);
    }
    return found;
  };
  using Pairs = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(ranges({}), Pairs());
  EXPECT_EQ(ranges({{.count = 3, .offset = 997}, {.count = 997, .offset = 0}}),
            (Pairs{{0, 1000}}));
  // A gradient that is absent leaves a gap, which must stay as it is.
  EXPECT_EQ(ranges({{.count = 4, .offset = 0},
                    {.count = 5, .offset = 6},
                    {.count = 0, .offset = 11},
                    {.count = 2, .offset = 11}}),
            (Pairs{{0, 4}, {6, 7}}));
  EXPECT_EQ(ranges({{.count = 8, .offset = 2}, {.count = 3, .offset = 4}}),
            (Pairs{{2, 8}}));
}

TEST(StreamPlanTest, SegmentsAbove2To31AreCut) {
  float value = 0;
  const auto launches = OkValue(
      PlanPack({{&value, int64_t{1} << 33, 0}, {&value, 5, 7}}, &value));
  ASSERT_EQ(launches.size(), 1);
  const PackLaunch& launch = launches.front();
  EXPECT_EQ(launch.plan.blocks, (1 << 20) + 1);
  EXPECT_EQ(SegmentOfBlock(launch.args, 0), 0);
  EXPECT_EQ(SegmentOfBlock(launch.args, (1 << 20) - 1), 0);
  EXPECT_EQ(SegmentOfBlock(launch.args, 1 << 20), 1);
}

}  // namespace
}  // namespace cohort::kernels::cuda
