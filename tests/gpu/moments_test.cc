#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/statuses.h"
#include "tests/gpu/machine.h"
#include "tests/gpu/shapes.h"
#include "tests/kernels/sample_data.h"

namespace cohort::kernels::cuda {
namespace {

using testing::Each;

template <typename T>
Pairs MomentsOf(Machine& machine, const Layout& layout,
                const std::vector<T>& values) {
  const Tensor<T> x(machine, values, layout.shift);
  const std::vector<double> unwritten(layout.shape.channels, 7);
  const Tensor<double> mean(machine, unwritten), m2(machine, unwritten);
  ExpectOk(machine.Moments({.shape = layout.shape,
                            .type = TypeOf<T>(),
                            .x = x.get(),
                            .mean = mean.get(),
                            .m2 = m2.get()}));
  Pairs pairs = {mean.Take(), m2.Take()};
  machine.Clear();
  return pairs;
}

template <typename T>
Pairs ExactMomentsOf(const Layout& layout, const std::vector<T>& values) {
  const auto [mean, m2] = TwoPassMoments(layout.shape, values);
  return {{mean.begin(), mean.end()}, {m2.begin(), m2.end()}};
}

// A batch of at most 64 elements is summed in float32 around one of them. Each
// addition errs by 2^-24 of a sum of at most 64 deviations. The same holds for
// the squares, and their sum around the pivot is a few times M2.
constexpr double kBatchError = 64 * 0x1p-24;

void ExpectNear(const Pairs& got, const Pairs& want, const BatchShape& shape,
                double amplitude) {
  const double n = static_cast<double>(shape.count());
  for (int64_t c = 0; c < shape.channels; ++c) {
    ASSERT_NEAR(got.first[c], want.first[c], kBatchError * amplitude) << c;
    ASSERT_NEAR(got.second[c], want.second[c],
                kBatchError * (want.second[c] + amplitude * amplitude) +
                    n * amplitude * amplitude * 1e-12)
        << c;
    ASSERT_GE(got.second[c], 0) << c;
  }
}

class MomentsTest : public MachineTest {};

TEST_P(MomentsTest, AgreeWithTheOracleInEveryLayout) {
  const int64_t elements_max = machine().elements_max();
  const bool every_shape = elements_max >= 1 << 20;
  for (const Layout& layout : Layouts(elements_max, every_shape)) {
    ForEachTensorType([&]<typename T>(std::type_identity<T>) {
      SCOPED_TRACE(absl::StrCat(Describe(layout), " of ", TypeName<T>()));
      const auto x = Numbers(5).Take<T>(Elements(layout.shape), 3);
      const Pairs got = MomentsOf(machine(), layout, x);
      ExpectNear(got, ExactMomentsOf(layout, x), layout.shape, 1);
    });
  }
}

TEST_P(MomentsTest, RepeatBitForBit) {
  for (const Layout& layout : Layouts(machine().elements_max())) {
    const auto x = Numbers(6).Take<float>(Elements(layout.shape));
    EXPECT_TRUE(MomentsOf(machine(), layout, x) ==
                MomentsOf(machine(), layout, x))
        << Describe(layout);
  }
}

// Deviation 1 around 1e4: raw moments in float32 would give variance 0.
TEST_P(MomentsTest, KeepTheVarianceFarFromZero) {
  for (int64_t inner : {1, 49, 3136}) {
    const Layout layout = {{.outer = 12, .channels = 3, .inner = inner}};
    const auto x =
        Numbers(8).Take<float>(Elements(layout.shape), 1e4, std::sqrt(3.0));
    ExpectNear(MomentsOf(machine(), layout, x), ExactMomentsOf(layout, x),
               layout.shape, std::sqrt(3.0));
  }
}

// The first element, which is the shift and the first batch's pivot, is 1e6
// deviations away. The squares of the batch's other 63 elements around it add
// up to 63 times M2, which multiplies float32's rounding errors.
TEST_P(MomentsTest, OutlierAsFirstElementSpoilsNothing) {
  for (int64_t inner : {1, 49, 3136}) {
    const Layout layout = {{.outer = 6, .channels = 5, .inner = inner}};
    auto x = Numbers(9).Take<float>(Elements(layout.shape));
    for (int64_t c = 0; c < 5; ++c) x[c * inner] = 1e6F;
    const Pairs got = MomentsOf(machine(), layout, x);
    const Pairs want = ExactMomentsOf(layout, x);
    for (int64_t c = 0; c < 5; ++c) {
      EXPECT_NEAR(got.first[c] / want.first[c], 1, kBatchError);
      EXPECT_NEAR(got.second[c] / want.second[c], 1, 64 * kBatchError);
    }
  }
}

TEST_P(MomentsTest, ConstantChannelHasNoVarianceAtAll) {
  for (const Layout& layout : Layouts(machine().elements_max())) {
    const std::vector<float> x(Elements(layout.shape), 0.1F);
    const Pairs got = MomentsOf(machine(), layout, x);
    EXPECT_THAT(got.first, Each(static_cast<double>(0.1F))) << Describe(layout);
    EXPECT_THAT(got.second, Each(0.0)) << Describe(layout);
  }
}

TEST_P(MomentsTest, NonfiniteElementSpoilsItsChannelOnly) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (int64_t inner : {1, 7, 49, 600}) {
    const Layout layout = {{.outer = 37, .channels = 5, .inner = inner}, 1};
    const int64_t all = Elements(layout.shape);
    for (int64_t bad : {int64_t{0}, all / 3, all / 2, all - 1}) {
      for (float value : {kNan, kInfinity}) {
        auto x = Numbers(9).Take<float>(all);
        x[bad] = value;
        const Pairs got = MomentsOf(machine(), layout, x);
        for (int64_t c = 0; c < 5; ++c) {
          const bool spoilt = c == ChannelOf(layout.shape, bad);
          EXPECT_EQ(std::isfinite(got.first[c]), !spoilt) << Describe(layout);
          EXPECT_EQ(std::isfinite(got.second[c]), !spoilt) << Describe(layout);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Machines, MomentsTest,
                         testing::ValuesIn(AllMachines()), MachineCaseName);

}  // namespace
}  // namespace cohort::kernels::cuda
