#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "tests/kernels/backend_matrix.h"
#include "tests/kernels/reference/reference_backend.h"
#include "tests/kernels/sample_data.h"

namespace cohort::kernels {
namespace {

using testing::Each;
using testing::ElementsAre;

// Gradients as they lie in received slices: at any byte.
class ByteGradients {
 public:
  ByteGradients(const std::vector<std::vector<float>>& gradients,
                int64_t offset_bytes) {
    for (const std::vector<float>& gradient : gradients) {
      // Exactly as long as needed, so that a sanitizer sees a read beyond it.
      const size_t gradient_bytes = gradient.size() * sizeof(float);
      std::vector<std::byte> bytes(offset_bytes + gradient_bytes);
      if (gradient_bytes > 0) {
        std::memcpy(bytes.data() + offset_bytes, gradient.data(),
                    gradient_bytes);
      }
      storage_.push_back(std::move(bytes));
      pointers_.push_back(storage_.back().data() + offset_bytes);
    }
  }

  absl::Span<const std::byte* const> pointers() const { return pointers_; }

 private:
  std::vector<std::vector<std::byte>> storage_;
  std::vector<const std::byte*> pointers_;
};

struct Folded {
  bool finite = false;
  std::vector<float> weights;
  std::vector<float> velocity;

  friend bool operator==(const Folded&, const Folded&) = default;
};

struct FoldInput {
  SgdStep step;
  std::vector<std::vector<float>> gradients;
  std::vector<float> weights;
  std::vector<float> velocity;
  int64_t offset_bytes = 0;
  bool streaming = false;
};

Folded Fold(const Backend& backend, const FoldInput& in) {
  const ByteGradients gradients(in.gradients, in.offset_bytes);
  Folded out;
  out.weights.resize(in.weights.size());
  out.velocity.resize(in.velocity.size());
  const bool has_velocity = in.step.momentum != 0;
  out.finite = backend.FoldSgd(
      in.step, {.gradients = gradients.pointers(),
                .count = static_cast<int64_t>(in.weights.size()),
                .weights_in = in.weights.data(),
                .weights_out = out.weights.data(),
                .velocity_in = has_velocity ? in.velocity.data() : nullptr,
                .velocity_out = has_velocity ? out.velocity.data() : nullptr,
                .streaming = in.streaming});
  return out;
}

FoldInput RandomInput(int64_t count, int contributors, const SgdStep& step) {
  Numbers numbers(count * 31 + contributors);
  FoldInput in;
  in.step = step;
  for (int k = 0; k < contributors; ++k) {
    in.gradients.push_back(numbers.Take<float>(count));
  }
  in.weights = numbers.Take<float>(count);
  in.velocity = numbers.Take<float>(count);
  return in;
}

constexpr int64_t kCounts[] = {0, 1, 31, 32, 33, 65, 1000003};

class FoldSgdTest : public BackendTest {};

// Compares with PyTorch's formula in float64.
//
// Tolerance: float32 rounds at most ten times on the way (sum, scale, decay
// twice, momentum four times, rate, difference), each time by 2^-24 of a value
// that is no larger than `magnitude`.
void ExpectFormula(const FoldInput& in, const Folded& out) {
  const SgdStep& s = in.step;
  const double scale = s.gradient_scale, decay = s.weight_decay;
  const double momentum = s.momentum, rate = s.learning_rate;
  int64_t wrong = 0;
  for (size_t i = 0; i < in.weights.size(); ++i) {
    double sum = 0;
    for (const std::vector<float>& gradient : in.gradients) sum += gradient[i];
    const double w = in.weights[i];
    const double g = scale * sum + decay * w;
    double change = g;
    double magnitude = std::abs(scale * sum) + std::abs(decay * w);
    if (momentum != 0) {
      const double v = momentum * in.velocity[i] + g;
      magnitude += std::abs(momentum * in.velocity[i]);
      if (std::abs(out.velocity[i] - v) > 10 * 0x1p-24 * magnitude) ++wrong;
      change = s.nesterov ? g + momentum * v : v;
      magnitude *= 2;
    }
    const double want = w - rate * change;
    magnitude = std::abs(w) + rate * magnitude;
    if (std::abs(out.weights[i] - want) > 10 * 0x1p-24 * magnitude) ++wrong;
  }
  EXPECT_EQ(wrong, 0) << "of " << in.weights.size();
}

TEST_P(FoldSgdTest, FollowsTheFormulaAtEveryCount) {
  for (const SgdStep& step : {kPlain, kMomentum, kNesterov}) {
    for (int64_t count : kCounts) {
      // Eight are read side by side.
      for (int contributors : {1, 2, 8, 9, 17}) {
        if (count > 65 && contributors > 9) continue;
        SCOPED_TRACE(absl::StrCat(count, " elements, ", contributors,
                                  " contributors, momentum ", step.momentum));
        const FoldInput in = RandomInput(count, contributors, step);
        const Folded out = Fold(backend(), in);
        EXPECT_TRUE(out.finite);
        ExpectFormula(in, out);
      }
    }
  }
}

// Server and replay may run on different machines: bits must not differ.
TEST_P(FoldSgdTest, HasTheBitsOfTheReferenceAndOfItself) {
  for (const SgdStep& step : {kPlain, kMomentum, kNesterov}) {
    for (int64_t count : kCounts) {
      SCOPED_TRACE(absl::StrCat(count, " elements"));
      const FoldInput in = RandomInput(count, 11, step);
      const Folded out = Fold(backend(), in);
      EXPECT_TRUE(out == Fold(ReferenceBackend(), in));
      FoldInput streaming = in;
      streaming.streaming = true;
      EXPECT_TRUE(out == Fold(backend(), streaming));
    }
  }
}

// From 64 Ki elements on, results pass the caches by, where vectors are
// aligned.
TEST_P(FoldSgdTest, StreamsResultsToAnyElement) {
  constexpr int64_t kCount = 2048 + 5;
  const FoldInput in = RandomInput(kCount, 2, kMomentum);
  const Folded want = Fold(backend(), in);
  const ByteGradients gradients(in.gradients, 0);
  for (const auto& [of_weights, of_velocity] :
       {std::pair(0, 0), {1, 1}, {15, 15}, {16, 16}, {0, 1}, {3, 0}}) {
    std::vector<float> weights(kCount + 32, -1);
    std::vector<float> velocity(kCount + 32, -1);
    EXPECT_TRUE(backend().FoldSgd(
        in.step, {.gradients = gradients.pointers(),
                  .count = kCount,
                  .weights_in = in.weights.data(),
                  .weights_out = weights.data() + of_weights,
                  .velocity_in = in.velocity.data(),
                  .velocity_out = velocity.data() + of_velocity,
                  .streaming = true}));
    const auto check = [&](const std::vector<float>& out, int64_t begin,
                           const std::vector<float>& values) {
      EXPECT_TRUE(std::equal(values.begin(), values.end(), out.begin() + begin))
          << of_weights << ", " << of_velocity;
      EXPECT_EQ(std::count(out.begin(), out.begin() + begin, -1), begin);
      EXPECT_EQ(std::count(out.begin() + begin + kCount, out.end(), -1),
                32 - begin);
    };
    check(weights, of_weights, want.weights);
    check(velocity, of_velocity, want.velocity);
  }
}

TEST_P(FoldSgdTest, ReportsANonfiniteGradientWhileItStreams) {
  constexpr int64_t kCount = 2048 + 5;
  const FoldInput good = RandomInput(kCount, 2, kMomentum);
  for (int64_t position : {int64_t{0}, kCount / 2, kCount - 1}) {
    FoldInput in = good;
    in.gradients[1][static_cast<size_t>(position)] =
        std::numeric_limits<float>::infinity();
    in.streaming = true;
    EXPECT_FALSE(Fold(backend(), in).finite) << position;
  }
}

TEST_P(FoldSgdTest, ReadsGradientsAtAnyByte) {
  FoldInput in = RandomInput(1001, 3, kMomentum);
  const Folded aligned = Fold(backend(), in);
  for (int64_t offset_bytes : {1, 2, 3, 4, 7}) {
    in.offset_bytes = offset_bytes;
    EXPECT_TRUE(Fold(backend(), in) == aligned) << offset_bytes;
  }
}

// g = 0.5*(2+4) + 0.5*2 = 4.
FoldInput SmallInput() {
  // More elements than any vector has lanes; all alike.
  constexpr int kCount = 67;
  FoldInput in;
  in.step = {
      .gradient_scale = 0.5f, .learning_rate = 0.25f, .weight_decay = 0.5f};
  in.gradients = {std::vector<float>(kCount, 2), std::vector<float>(kCount, 4)};
  in.weights.assign(kCount, 2);
  in.velocity.assign(kCount, 4);
  return in;
}

TEST_P(FoldSgdTest, PlainStepSubtractsRateTimesGradient) {
  const Folded out = Fold(backend(), SmallInput());
  EXPECT_TRUE(out.finite);
  EXPECT_THAT(out.weights, Each(1));  // 2 - 0.25*4
}

TEST_P(FoldSgdTest, MomentumKeepsAVelocity) {
  FoldInput in = SmallInput();
  in.step.momentum = 0.5f;
  const Folded out = Fold(backend(), in);
  EXPECT_THAT(out.velocity, Each(6));    // 0.5*4 + 4
  EXPECT_THAT(out.weights, Each(0.5f));  // 2 - 0.25*6
}

TEST_P(FoldSgdTest, NesterovLooksAhead) {
  FoldInput in = SmallInput();
  in.step.momentum = 0.5f;
  in.step.nesterov = true;
  const Folded out = Fold(backend(), in);
  EXPECT_THAT(out.velocity, Each(6));
  EXPECT_THAT(out.weights, Each(0.25f));  // 2 - 0.25*(4 + 0.5*6)
}

TEST_P(FoldSgdTest, WithoutContributorsOnlyDecays) {
  FoldInput in = SmallInput();
  in.gradients.clear();
  const Folded out = Fold(backend(), in);
  EXPECT_TRUE(out.finite);
  EXPECT_THAT(out.weights, Each(1.75f));  // 2 - 0.25*(0.5*2)
}

TEST_P(FoldSgdTest, OutputsMayBeInputs) {
  const FoldInput in = RandomInput(1001, 2, kNesterov);
  const Folded want = Fold(backend(), in);
  const ByteGradients gradients(in.gradients, 0);
  std::vector<float> weights = in.weights;
  std::vector<float> velocity = in.velocity;
  EXPECT_TRUE(backend().FoldSgd(in.step, {.gradients = gradients.pointers(),
                                          .count = 1001,
                                          .weights_in = weights.data(),
                                          .weights_out = weights.data(),
                                          .velocity_in = velocity.data(),
                                          .velocity_out = velocity.data()}));
  EXPECT_EQ(weights, want.weights);
  EXPECT_EQ(velocity, want.velocity);
}

// One after another: 2^30 + 1 needs more than float32's 24 bits, 2^60 + 1 more
// than float64's 53.
TEST_P(FoldSgdTest, SumsInFloat64InContributorOrder) {
  constexpr float kBig = 0x1p30f;
  constexpr float kHuge = 0x1p60f;
  FoldInput in;
  in.step = {.gradient_scale = 1, .learning_rate = 1};
  in.gradients = {{kBig, kHuge, kHuge}, {1, 1, -kHuge}, {-kBig, -kHuge, 1}};
  in.weights = {0, 0, 0};
  EXPECT_THAT(Fold(backend(), in).weights, ElementsAre(-1, 0, -1));
}

TEST_P(FoldSgdTest, ReportsANonfiniteGradientAtEveryPosition) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const SgdStep& step : {kPlain, kMomentum, kNesterov}) {
    const FoldInput good = RandomInput(67, 9, step);
    for (size_t position = 0; position < 67; ++position) {
      for (float bad : {kInfinity, -kInfinity, kNan}) {
        for (int contributor : {0, 8}) {
          FoldInput in = good;
          in.gradients[contributor][position] = bad;
          EXPECT_FALSE(Fold(backend(), in).finite)
              << bad << " at " << position << " of " << contributor;
        }
      }
    }
  }
}

// Every contribution is finite, their sum in float32 is not.
TEST_P(FoldSgdTest, ReportsAnOverflowOfTheSum) {
  for (size_t position : {0, 66}) {
    FoldInput in = RandomInput(67, 2, kPlain);
    in.gradients[0][position] = -3e38f;
    in.gradients[1][position] = -3e38f;
    EXPECT_FALSE(Fold(backend(), in).finite) << position;
  }
}

TEST_P(FoldSgdTest, LargeGradientsThatCancelAreFinite) {
  FoldInput in = RandomInput(67, 3, kPlain);
  in.gradients[0][5] = 3e38f;
  in.gradients[1][5] = 3e38f;
  in.gradients[2][5] = -3.2e38f;
  EXPECT_TRUE(Fold(backend(), in).finite);
}

TEST_P(FoldSgdTest, NameTellsTheInstructionSet) {
  EXPECT_EQ(backend().name(), GetParam().name);
}

INSTANTIATE_TEST_SUITE_P(Backends, FoldSgdTest,
                         testing::ValuesIn(AllBackends()), BackendCaseName);

}  // namespace
}  // namespace cohort::kernels
