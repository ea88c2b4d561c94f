// LAMB through whole transactions, against its paper in float64: 20 steps of
// uneven pushes, with everything that norms depend on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/backend.h"
#include "server/core/optimizer/gradient_scales.h"
#include "server/core/optimizer/slots.h"
#include "tests/core/small_run.h"

namespace cohort {
namespace {

using ::testing::DoubleEq;
using ::testing::Each;
using ::testing::Pointwise;

using Doubles = std::vector<double>;

constexpr int kLambSteps = 20;
constexpr double kLambRate = 0.05;
constexpr double kLambDecay = 0.05;
constexpr double kBeta1 = 0.9;
constexpr double kBeta2 = 0.98;
constexpr double kEpsilon = 1e-4;
constexpr size_t kBig = 4;
// Each step rounds two dozen float32 values below 4, by 2^-24 each.
constexpr double kLambTolerance = kLambSteps * 24 * 4 * 0x1p-24;

OptimizerOptions Lamb(double clip_norm = 0) {
  return {.kind = OptimizerKind::kLamb,
          .numbers = {.adam_beta1 = kBeta1,
                      .adam_beta2 = kBeta2,
                      .lamb_epsilon = kEpsilon},
          .weight_decay = kLambDecay,
          .clip_norm = clip_norm};
}

// Two ranks' gradients and the weights of their losses.
struct LambPushes {
  std::vector<ParameterValues> gradients;
  double loss_weight = 0;
};

LambPushes UnevenPushes(const SmallRun& run, int step) {
  const auto seed = static_cast<uint64_t>(500 + 2 * step);
  return {{RandomValues(run.layout(), seed, 3),
           RandomValues(run.layout(), seed + 1, 0.5)},
          static_cast<double>(3 + step % 4)};
}

// Algorithm 2 of the paper, a parameter at a time.
class Paper {
 public:
  Paper(const SmallRun& run, bool masked)
      : layout_(run.layout()), masked_(masked) {
    for (const std::vector<float>& one : run.weights()) {
      weights.emplace_back(one.begin(), one.end());
      m_.emplace_back(one.size());
      v_.emplace_back(one.size());
      updates_.push_back(0);
    }
  }

  std::vector<Doubles> weights;

  void Apply(const LambPushes& pushes, const std::vector<int32_t>& absent,
             double clip_norm) {
    std::vector<Doubles> mean;
    double squares = 0;
    for (size_t k = 0; k < weights.size(); ++k) {
      mean.emplace_back(weights[k].size());
      for (size_t i = 0; Moves(k, absent) && i < mean[k].size(); ++i) {
        if (Frozen(k, i)) continue;
        const double sum = static_cast<double>(pushes.gradients[0][k][i]) +
                           static_cast<double>(pushes.gradients[1][k][i]);
        mean[k][i] = sum * SmallRun::kLossReference / pushes.loss_weight;
        squares += mean[k][i] * mean[k][i];
      }
    }
    const double norm = std::sqrt(squares);
    const double clip =
        clip_norm > 0 && norm > clip_norm ? clip_norm / norm : 1;
    for (size_t k = 0; k < weights.size(); ++k) {
      if (Moves(k, absent)) Update(k, mean[k], clip);
    }
  }

 private:
  bool Moves(size_t k, const std::vector<int32_t>& absent) const {
    for (int32_t one : absent) {
      if (static_cast<size_t>(one) == k) return false;
    }
    return layout_.parameters[k].trainable;
  }
  // "big.weight[:,7]" of rows of 100.
  bool Frozen(size_t k, size_t i) const {
    return masked_ && k == kBig && i % 100 == 7;
  }

  void Update(size_t k, const Doubles& gradient, double clip) {
    const ParameterSpec& parameter = layout_.parameters[k];
    const double decay =
        parameter.decay_exempt ? 0 : kLambDecay * parameter.decay_multiplier;
    const auto t = static_cast<double>(++updates_[k]);
    Doubles update(gradient.size());
    double weight_squares = 0;
    double update_squares = 0;
    for (size_t i = 0; i < gradient.size(); ++i) {
      if (Frozen(k, i)) continue;
      const double g = clip * gradient[i];
      m_[k][i] += (1 - kBeta1) * (g - m_[k][i]);
      v_[k][i] += (1 - kBeta2) * (g * g - v_[k][i]);
      const double m_hat = m_[k][i] / (1 - std::pow(kBeta1, t));
      const double v_hat = v_[k][i] / (1 - std::pow(kBeta2, t));
      update[i] = m_hat / (std::sqrt(v_hat) + kEpsilon) + decay * weights[k][i];
      weight_squares += weights[k][i] * weights[k][i];
      update_squares += update[i] * update[i];
    }
    const double ratio =
        parameter.decay_exempt ? 1 : std::sqrt(weight_squares / update_squares);
    const double rate = kLambRate * parameter.rate_multiplier;
    for (size_t i = 0; i < update.size(); ++i) {
      weights[k][i] -= rate * ratio * update[i];
    }
  }

  const ModelLayout layout_;
  const bool masked_;
  std::vector<Doubles> m_;
  std::vector<Doubles> v_;
  // By parameter: those that had a gradient.
  std::vector<int> updates_;
};

double Farthest(const ParameterValues& seen,
                const std::vector<Doubles>& wanted) {
  double largest = 0;
  for (size_t k = 0; k < seen.size(); ++k) {
    for (size_t i = 0; i < seen[k].size(); ++i) {
      largest = std::max(largest, std::abs(seen[k][i] - wanted[k][i]));
    }
  }
  return largest;
}

// In some steps a parameter has no gradient: one that is whole in a partition,
// or one that is divided.
std::vector<int32_t> AbsentAt(int step) {
  if (step % 5 == 3) return {5};
  if (step % 7 == 4) return {static_cast<int32_t>(kBig)};
  return {};
}

TEST(LambTest, FollowsItsPaperInFloat64) {
  for (const double clip_norm : {0.0, 5.0}) {
    for (const bool masked : {false, true}) {
      OptimizerOptions options = Lamb(clip_norm);
      if (masked) options.freeze = {"big.weight[:,7]"};
      SmallRun run(options, kernels::CpuBackend());
      Paper paper(run, masked);
      for (int step = 0; step < kLambSteps; ++step) {
        const LambPushes pushes = UnevenPushes(run, step);
        ASSERT_FALSE(
            run.Apply(pushes.gradients, {.learning_rate = kLambRate,
                                         .loss_weight = pushes.loss_weight,
                                         .absent = AbsentAt(step)})
                .has_value());
        paper.Apply(pushes, AbsentAt(step), clip_norm);
        EXPECT_TRUE(run.gradient_norm().has_value());
      }
      EXPECT_LT(Farthest(run.weights(), paper.weights), kLambTolerance)
          << clip_norm << (masked ? " masked" : "");
    }
  }
}

// The changes are rounded to 8 bits, and what that leaves over is not lost: it
// stays below half a unit of a change of at most 0.2.
TEST(LambTest, ChangesInBFloat16AddUpToIt) {
  SmallRun run(Lamb(), kernels::CpuBackend(), {.wire = ElementType::kBFloat16});
  Paper paper(run, false);
  for (int step = 0; step < kLambSteps; ++step) {
    const LambPushes pushes = UnevenPushes(run, step);
    run.Apply(pushes.gradients,
              {.learning_rate = kLambRate, .loss_weight = pushes.loss_weight});
    paper.Apply(pushes, {}, 0);
  }
  EXPECT_LT(Farthest(run.weights(), paper.weights), 0.2 * 0x1p-8);
}

// A change between the two keeps what they have gathered.
TEST(LambTest, ContinuesWithTheMomentsOfAdamW) {
  OptimizerOptions adamw = Lamb();
  adamw.kind = OptimizerKind::kAdamW;
  SmallRun run(adamw, kernels::CpuBackend());
  const LambPushes pushes = UnevenPushes(run, 0);
  run.Apply(pushes.gradients, {});
  const ParameterValues first = run.slot(&Slots::first_moment);
  EXPECT_TRUE(
      CheckSlots(SlotsHeld(run.snapshot()->slots), OptimizerKind::kLamb).ok());
  run.Change(Lamb());
  EXPECT_EQ(run.slot(&Slots::first_moment), first);
  EXPECT_THAT(run.snapshot()->slots[0].updates, Each(1));
  run.Apply(pushes.gradients, {});
  EXPECT_THAT(run.snapshot()->slots[0].updates, Each(2));
}

// Squares 9 of the weights and 4 of the update in each slice.
TEST(LambTest, TheRatioIsOfTheNormsOfAWholeParameter) {
  const SmallRun run(Lamb(), kernels::CpuBackend());
  const std::vector<Partition>& partitions = run.model()->partitions;
  GradientNorms norms;
  for (const Partition& partition : partitions) {
    std::vector<SliceNorm>& of = norms.emplace_back();
    for (const Slice& slice : partition.slices) {
      of.push_back({.gradient = slice.parameter == 5 ? 0.0 : 4.0,
                    .weights = slice.parameter == 0 ? 0.0 : 9.0});
    }
  }
  const ModelLayout& layout = run.layout();
  // 1 of a parameter of zeros, of those that are exempt, and without an update.
  EXPECT_THAT(UpdateRatios(norms, GroupOptions(Lamb(), {}), layout, partitions),
              Pointwise(DoubleEq(), {1.0, 1.0, 1.0, 1.5, 1.5, 1.0, 1.0}));
  // The clipping knows nothing of them.
  EXPECT_EQ(ScalesOf(norms, GroupOptions(Lamb(), {}), layout, partitions),
            GradientScales());
}

TEST(LambTest, AnUpdateThatOverflowsChangesNothing) {
  OptimizerOptions options = Lamb();
  options.weight_decay = 1e20;
  SmallRun run(options, kernels::CpuBackend());
  ASSERT_FALSE(
      run.Apply(UnevenPushes(run, 0).gradients, {.learning_rate = 1e20})
          .has_value());
  const ParameterValues before = run.weights();
  const auto bad = run.Apply(UnevenPushes(run, 1).gradients, {});
  ASSERT_TRUE(bad.has_value());
  EXPECT_EQ(bad->rank, std::nullopt);
  EXPECT_EQ(run.weights(), before);
}

}  // namespace
}  // namespace cohort
