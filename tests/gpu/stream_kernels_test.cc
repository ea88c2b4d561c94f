#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "tests/gpu/machine.h"
#include "tests/kernels/sample_data.h"

namespace cohort::kernels::cuda {
namespace {

class PackTest : public MachineTest {};

// Parameters of uneven sizes behind one another, as in a message.
const std::vector<int64_t>& SegmentCounts() {
  static const auto& counts =
      *new std::vector<int64_t>{1, 7, 64, 0, 8192, 8193, 3, 40000, 16, 5};
  return counts;
}

TEST_P(PackTest, CopiesBitsInAndOut) {
  int64_t total = 0;
  for (int64_t count : SegmentCounts()) total += count;
  const auto values = Numbers(3).Take<float>(total);
  std::vector<Tensor<float>> from;
  std::vector<Tensor<float>> to;
  std::vector<PackSegment> sources;
  std::vector<PackSegment> targets;
  int64_t offset = 0;
  for (int64_t count : SegmentCounts()) {
    const auto shift = static_cast<int32_t>(count % 3);
    const std::vector<float> part(values.begin() + offset,
                                  values.begin() + offset + count);
    from.emplace_back(machine(), part, shift);
    to.emplace_back(machine(), std::vector<float>(part.size()), shift);
    sources.push_back({from.back().get(), count, offset});
    targets.push_back({to.back().get(), count, offset});
    offset += count;
  }
  const Tensor<float> packed(machine(), std::vector<float>(values.size()));
  EXPECT_TRUE(machine().Pack(sources, packed.get()).ok());
  EXPECT_TRUE(packed.Take() == values);
  EXPECT_TRUE(machine().Unpack(packed.get(), targets).ok());
  for (size_t i = 0; i < to.size(); ++i) {
    EXPECT_TRUE(to[i].Take() == from[i].Take()) << i;
  }
}

// More segments than fit into one launch.
TEST_P(PackTest, TakesAnyNumberOfSegments) {
  constexpr int64_t kSegments = 1300;
  const auto values = Numbers(5).Take<float>(kSegments * 3);
  const Tensor<float> from(machine(), values);
  const Tensor<float> packed(machine(), std::vector<float>(values.size()));
  std::vector<PackSegment> segments;
  // Backwards, so that the order of segments matters.
  std::vector<float> want(values.size());
  for (int64_t s = 0; s < kSegments; ++s) {
    const int64_t offset = (kSegments - 1 - s) * 3;
    segments.push_back({from.get() + s * 3, 3, offset});
    for (int64_t i = 0; i < 3; ++i) want[offset + i] = values[s * 3 + i];
  }
  EXPECT_TRUE(machine().Pack(segments, packed.get()).ok());
  EXPECT_TRUE(packed.Take() == want);
}

INSTANTIATE_TEST_SUITE_P(Machines, PackTest, testing::ValuesIn(AllMachines()),
                         MachineCaseName);

}  // namespace
}  // namespace cohort::kernels::cuda
