#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "tests/gpu/machine.h"
#include "tests/gpu/shapes.h"
#include "tests/kernels/sample_data.h"

namespace cohort::kernels::cuda {
namespace {

struct FoldCase {
  SgdStep step;
  std::vector<std::vector<float>> gradients;
  std::vector<float> weights;
  std::vector<float> velocity;
  int32_t shift = 0;
};

struct Folded {
  bool finite = false;
  std::vector<float> weights;
  std::vector<float> velocity;

  friend bool operator==(const Folded&, const Folded&) = default;
};

FoldCase RandomCase(int64_t count, int contributors, const SgdStep& step) {
  Numbers numbers(count * 31 + contributors);
  FoldCase in = {.step = step};
  for (int k = 0; k < contributors; ++k) {
    in.gradients.push_back(numbers.Take<float>(count));
  }
  in.weights = numbers.Take<float>(count);
  in.velocity = numbers.Take<float>(count);
  return in;
}

Folded FoldOn(Machine& machine, const FoldCase& in) {
  std::vector<Tensor<float>> tensors;
  std::vector<const std::byte*> gradients;
  for (const std::vector<float>& gradient : in.gradients) {
    tensors.emplace_back(machine, gradient, in.shift);
    gradients.push_back(
        reinterpret_cast<const std::byte*>(tensors.back().get()));
  }
  const Tensor<float> weights(machine, in.weights, in.shift);
  const Tensor<float> velocity(machine, in.velocity, in.shift);
  const Tensor<int32_t> nonfinite(machine, {0});
  const bool moves = in.step.momentum != 0;
  // Outputs overwrite inputs, as on a server without spare buffers.
  const absl::Status status =
      machine.FoldSgd(in.step,
                      {.gradients = gradients,
                       .count = static_cast<int64_t>(in.weights.size()),
                       .weights_in = weights.get(),
                       .weights_out = weights.get(),
                       .velocity_in = moves ? velocity.get() : nullptr,
                       .velocity_out = moves ? velocity.get() : nullptr},
                      nonfinite.get());
  EXPECT_TRUE(status.ok()) << status;
  Folded out = {nonfinite.Take()[0] == 0, weights.Take(), velocity.Take()};
  machine.Clear();
  return out;
}

Folded FoldByReference(const FoldCase& in) {
  std::vector<const std::byte*> gradients;
  for (const std::vector<float>& gradient : in.gradients) {
    gradients.push_back(reinterpret_cast<const std::byte*>(gradient.data()));
  }
  Folded out = {true, in.weights, in.velocity};
  const bool moves = in.step.momentum != 0;
  out.finite = ReferenceBackend().FoldSgd(
      in.step, {.gradients = gradients,
                .count = static_cast<int64_t>(in.weights.size()),
                .weights_in = in.weights.data(),
                .weights_out = out.weights.data(),
                .velocity_in = moves ? in.velocity.data() : nullptr,
                .velocity_out = moves ? out.velocity.data() : nullptr});
  return out;
}

class FoldTest : public MachineTest {};
class PackTest : public MachineTest {};

TEST_P(FoldTest, HasTheBitsOfTheReference) {
  for (const SgdStep& step : {kPlain, kMomentum, kNesterov}) {
    for (int64_t count : {0, 1, 3, 4, 1023, 40003}) {
      for (int contributors : {0, 1, 2, 9}) {
        for (int32_t shift : {0, 1}) {
          SCOPED_TRACE(absl::StrCat(count, " elements, ", contributors,
                                    " contributors, shifted by ", shift));
          FoldCase in = RandomCase(count, contributors, step);
          in.shift = shift;
          EXPECT_TRUE(FoldOn(machine(), in) == FoldByReference(in));
        }
      }
    }
  }
}

TEST_P(FoldTest, ReportsANonfiniteGradientAtEveryPosition) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (size_t position = 0; position < 11; ++position) {
    for (float bad :
         {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
      FoldCase in = RandomCase(11, 3, kMomentum);
      in.gradients[1][position] = bad;
      EXPECT_FALSE(FoldOn(machine(), in).finite) << position;
    }
  }
  FoldCase overflow = RandomCase(11, 2, kPlain);
  overflow.gradients[0][10] = overflow.gradients[1][10] = 3e38F;
  EXPECT_FALSE(FoldOn(machine(), overflow).finite);
}

TEST_P(FoldTest, SumsInFloat64InContributorOrder) {
  FoldCase in;
  in.step = {.gradient_scale = 1, .learning_rate = 1};
  in.gradients = {
      {0x1p30F, 0x1p60F, 0x1p60F}, {1, 1, -0x1p60F}, {-0x1p30F, -0x1p60F, 1}};
  in.weights = in.velocity = {0, 0, 0};
  EXPECT_EQ(FoldOn(machine(), in).weights, (std::vector<float>{-1, 0, -1}));
}

// Parameters of uneven sizes behind one another, as in a message.
const std::vector<int64_t>& SegmentCounts() {
  static const auto& counts =
      *new std::vector<int64_t>{1, 7, 64, 0, 8192, 8193, 3, 40000, 16, 5};
  return counts;
}

TEST_P(PackTest, PacksEveryTypeExactly) {
  ForEachTensorType([&]<typename T>(std::type_identity<T>) {
    Numbers numbers(3);
    std::vector<Tensor<T>> tensors;
    std::vector<PackSegment> segments;
    std::vector<float> want;
    for (int64_t count : SegmentCounts()) {
      const auto values = numbers.Take<T>(count);
      tensors.emplace_back(machine(), values, static_cast<int32_t>(count % 3));
      segments.push_back({.tensor = tensors.back().get(),
                          .count = count,
                          .offset = static_cast<int64_t>(want.size())});
      for (T value : values) {
        want.push_back(static_cast<float>(static_cast<double>(value)));
      }
    }
    const Tensor<float> packed(machine(), std::vector<float>(want.size()));
    EXPECT_TRUE(machine().Pack(TypeOf<T>(), segments, packed.get()).ok());
    EXPECT_TRUE(packed.Take() == want) << TypeName<T>();
    machine().Clear();
  });
}

TEST_P(PackTest, UnpacksRoundedToNearest) {
  ForEachTensorType([&]<typename T>(std::type_identity<T>) {
    int64_t total = 0;
    for (int64_t count : SegmentCounts()) total += count;
    const auto values = Numbers(4).Take<float>(total);
    const Tensor<float> packed(machine(), values);
    std::vector<Tensor<T>> tensors;
    std::vector<PackSegment> segments;
    int64_t offset = 0;
    for (int64_t count : SegmentCounts()) {
      tensors.emplace_back(machine(), std::vector<T>(count),
                           static_cast<int32_t>(count % 3));
      segments.push_back({tensors.back().get(), count, offset});
      offset += count;
    }
    EXPECT_TRUE(machine().Unpack(TypeOf<T>(), packed.get(), segments).ok());
    for (size_t s = 0; s < segments.size(); ++s) {
      const std::vector<T> got = tensors[s].Take();
      for (int64_t i = 0; i < segments[s].count; ++i) {
        const double value = values[segments[s].offset + i];
        ASSERT_TRUE(got[i] == T(value)) << TypeName<T>() << " " << value;
      }
    }
    machine().Clear();
  });
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
  EXPECT_TRUE(machine().Pack(DataType::kFloat32, segments, packed.get()).ok());
  EXPECT_TRUE(packed.Take() == want);
}

INSTANTIATE_TEST_SUITE_P(Machines, FoldTest, testing::ValuesIn(AllMachines()),
                         MachineCaseName);
INSTANTIATE_TEST_SUITE_P(Machines, PackTest, testing::ValuesIn(AllMachines()),
                         MachineCaseName);

}  // namespace
}  // namespace cohort::kernels::cuda
