// Compares every optimizer with its formula in float64, through whole
// transactions.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/float_buffer.h"
#include "kernels/optimizer_rules.h"
#include "server/core/optimizer/gradient_scales.h"
#include "server/core/optimizer/group_options.h"
#include "server/core/optimizer/slots.h"
#include "server/core/settings/settings.h"
#include "tests/core/small_run.h"
#include "tests/fakes/statuses.h"
#include "tests/kernels/reference/optimizer_oracle.h"
#include "tests/kernels/reference/reference_backend.h"

namespace cohort {
namespace {

using ::testing::Each;

using Doubles = std::vector<double>;

double Norm(const Doubles& values) {
  double squares = 0;
  for (double value : values) squares += value * value;
  return std::sqrt(squares);
}

// An independent implementation: float64, whole parameters, one loop.
class Reference {
 public:
  Reference(const OptimizerOptions& options, const SmallRun& run)
      : options_(options), layout_(run.layout()) {
    for (const std::vector<float>& one : run.weights()) {
      weights.emplace_back(one.begin(), one.end());
      square_.emplace_back(one.size(), 0.0);
      states_.emplace_back(one.size());
    }
  }

  std::vector<Doubles> weights;

  void Apply(const std::vector<ParameterValues>& gradients,
             const SmallRun::Step& step) {
    std::vector<Doubles> mean = Mean(gradients, step);
    Compensate(step, mean);
    double squares = 0;
    for (size_t k = 0; k < mean.size(); ++k) {
      if (!Trains(k)) continue;
      for (double g : mean[k]) squares += g * g;
    }
    const double norm = std::sqrt(squares);
    const double clip = options_.clip_norm > 0 && norm > options_.clip_norm
                            ? options_.clip_norm / norm
                            : 1;
    ++steps_;
    for (size_t k = 0; k < mean.size(); ++k) {
      if (!Trains(k)) continue;
      for (double& g : mean[k]) g *= clip;
      Update(k, mean[k], step);
    }
  }

 private:
  bool Trains(size_t k) const { return layout_.parameters[k].trainable; }

  std::vector<Doubles> Mean(const std::vector<ParameterValues>& gradients,
                            const SmallRun::Step& step) const {
    std::vector<Doubles> mean = weights;
    for (size_t k = 0; k < mean.size(); ++k) {
      for (size_t i = 0; i < mean[k].size(); ++i) {
        double sum = 0;
        for (const ParameterValues& rank : gradients) sum += rank[k][i];
        mean[k][i] = sum * SmallRun::kLossReference / step.loss_weight;
      }
    }
    return mean;
  }

  void Compensate(const SmallRun::Step& step, std::vector<Doubles>& mean) {
    if (read.empty()) return;
    for (size_t k = 0; k < mean.size(); ++k) {
      for (size_t i = 0; i < mean[k].size(); ++i) {
        const double g = mean[k][i];
        double lambda = step.compensation;
        if (step.adaptive) {
          square_[k][i] = 0.95 * square_[k][i] + 0.05 * g * g;
          lambda /= std::sqrt(square_[k][i] + 1e-7);
        }
        mean[k][i] = g + lambda * g * g * (weights[k][i] - read[k][i]);
      }
    }
  }

  void Update(size_t k, const Doubles& gradient, const SmallRun::Step& step) {
    const OptimizerOptions& o = options_;
    const ParameterSpec& parameter = layout_.parameters[k];
    const bool exempt = parameter.decay_exempt;
    const double decay = exempt && !o.decay_everything
                             ? 0
                             : o.weight_decay * parameter.decay_multiplier;
    double ratio = 1;
    if (o.kind == OptimizerKind::kLars && !exempt) {
      const double norm = Norm(weights[k]);
      ratio = o.numbers.lars_trust * norm / (Norm(gradient) + decay * norm);
    }
    const double rate = step.learning_rate * parameter.rate_multiplier;
    const kernels::OracleStep update{.kind = o.kind,
                                     .numbers = o.numbers,
                                     .rate = rate,
                                     .decay = ratio * decay,
                                     .update = steps_};
    const double scale = ratio * step.weight * (o.numbers.maximize ? -1 : 1);
    const Doubles before = weights[k];
    for (size_t i = 0; i < gradient.size(); ++i) {
      kernels::OracleElement element{weights[k][i], states_[k][i]};
      kernels::OracleUpdate(update, scale * gradient[i], element);
      weights[k][i] = element.weight;
      states_[k][i] = element.state;
    }
    if (o.kind != OptimizerKind::kLamb || exempt) return;
    // As long as the weights, times the rate.
    Doubles moved = before;
    for (size_t i = 0; i < moved.size(); ++i) moved[i] -= weights[k][i];
    const double length = rate * Norm(before) / Norm(moved);
    for (size_t i = 0; i < moved.size(); ++i) {
      weights[k][i] = before[i] - length * moved[i];
    }
  }

 public:
  // Weights that the gradients were computed at; if empty, no compensation.
  std::vector<Doubles> read;

 private:
  const OptimizerOptions options_;
  const ModelLayout layout_;
  std::vector<Doubles> square_;
  std::vector<std::vector<std::array<double, 4>>> states_;
  double steps_ = 0;
};

std::vector<ParameterValues> TwoRanks(const SmallRun& run, int step) {
  return {RandomValues(run.layout(), static_cast<uint64_t>(100 + 2 * step), 1),
          RandomValues(run.layout(), static_cast<uint64_t>(101 + 2 * step), 1)};
}

std::vector<Doubles> Wide(const ParameterValues& values) {
  std::vector<Doubles> wide;
  for (const std::vector<float>& one : values) {
    wide.emplace_back(one.begin(), one.end());
  }
  return wide;
}

// Largest difference of any weight.
double Difference(const SmallRun& run, const Reference& reference) {
  double largest = 0;
  const ParameterValues weights = run.weights();
  for (size_t k = 0; k < weights.size(); ++k) {
    for (size_t i = 0; i < weights[k].size(); ++i) {
      largest =
          std::max(largest, std::abs(weights[k][i] - reference.weights[k][i]));
    }
  }
  return largest;
}

constexpr int kSteps = 10;
// Weights stay below 4, and each step rounds a dozen float32 values of at most
// that size, by 2^-24 each. Adam's quotient of moments is of the order of 1,
// except for elements with tiny gradients, which are the reason for a factor of
// ten. Any term of the formulas is larger than 1e-3.
constexpr double kTolerance = kSteps * 12 * 4 * 0x1p-24;

const OptimizerOptions kBase{.weight_decay = 0.05};

OptimizerOptions With(OptimizerKind kind, double clip_norm = 0) {
  OptimizerOptions options = kBase;
  options.kind = kind;
  options.clip_norm = clip_norm;
  return options;
}

const std::vector<OptimizerOptions>& AllOptions() {
  static const auto& all = *[] {
    auto* list = new std::vector<OptimizerOptions>;
    for (const kernels::OptimizerCase& c : kernels::OptimizerCases()) {
      for (double clip_norm : {0.0, 5.0}) {
        list->push_back(With(c.kind, clip_norm));
        list->back().numbers = c.numbers;
      }
    }
    OptimizerOptions decays = With(OptimizerKind::kAdam);
    decays.decay_everything = true;
    list->push_back(decays);
    return list;
  }();
  return all;
}

std::string Describe(const OptimizerOptions& options) {
  return kernels::OptimizerCase{options.kind, options.numbers}.name() +
         (options.clip_norm > 0 ? ", clipped" : "");
}

SmallRun::Step StepFor(const OptimizerOptions& options) {
  return {.learning_rate =
              kernels::OptimizerCase{options.kind, options.numbers}.rate()};
}

TEST(OptimizerTest, FollowsItsFormulaInFloat64) {
  for (const OptimizerOptions& options : AllOptions()) {
    SCOPED_TRACE(Describe(options));
    for (const kernels::Backend* backend :
         {&kernels::ReferenceBackend(), &kernels::CpuBackend()}) {
      SmallRun run(options, *backend);
      Reference reference(options, run);
      const ParameterValues before = run.weights();
      for (int step = 0; step < kSteps; ++step) {
        const auto gradients = TwoRanks(run, step);
        ASSERT_FALSE(run.Apply(gradients, StepFor(options)).has_value());
        reference.Apply(gradients, StepFor(options));
      }
      EXPECT_LT(Difference(run, reference), kTolerance) << backend->name();
      EXPECT_NE(run.weights()[0], before[0]);
      // This parameter is not trained.
      EXPECT_EQ(run.weights()[3], before[3]);
    }
  }
}

TEST(OptimizerTest, TheMemoryOfEveryKindOfSlotCounts) {
  Slots all;
  int64_t bytes = 0;
  for (const SlotKind& kind : AllSlots()) {
    Slots one;
    one.*kind.buffer = std::make_shared<FloatBuffer>(3);
    EXPECT_EQ(BytesOf(one), 12) << kind.name;
    all.*kind.buffer = one.*kind.buffer;
    bytes += 12;
  }
  EXPECT_EQ(BytesOf(all), bytes);
  EXPECT_EQ(BytesOf(Slots()), 0);
}

TEST(OptimizerTest, BackendsAgreeToTheBit) {
  for (const OptimizerOptions& options : AllOptions()) {
    SmallRun one(options, kernels::ReferenceBackend());
    SmallRun other(options, kernels::CpuBackend());
    for (int step = 0; step < kSteps; ++step) {
      one.Apply(TwoRanks(one, step), StepFor(options));
      other.Apply(TwoRanks(other, step), StepFor(options));
    }
    EXPECT_EQ(one.weights(), other.weights()) << Describe(options);
  }
}

TEST(OptimizerTest, TheNormIsExactOverAllPartitions) {
  SmallRun run(With(OptimizerKind::kMomentum, 1e30), kernels::CpuBackend());
  const auto gradients = TwoRanks(run, 0);
  run.Apply(gradients, {});
  double squares = 0;
  for (size_t k = 0; k < run.layout().parameters.size(); ++k) {
    if (!run.layout().parameters[k].trainable) continue;
    for (size_t i = 0; i < gradients[0][k].size(); ++i) {
      // Rounded like the mean gradient.
      const float g =
          0.5f * static_cast<float>(static_cast<double>(gradients[0][k][i]) +
                                    static_cast<double>(gradients[1][k][i]));
      squares += static_cast<double>(g) * g;
    }
  }
  // Float64 sums of 7200 squares in two orders.
  EXPECT_NEAR(*run.gradient_norm(), std::sqrt(squares), 1e-12 * squares);
}

TEST(OptimizerTest, ShortGradientsAreNotClipped) {
  SmallRun clipped(With(OptimizerKind::kMomentum, 1e6), kernels::CpuBackend());
  SmallRun plain(With(OptimizerKind::kMomentum), kernels::CpuBackend());
  for (int step = 0; step < 3; ++step) {
    clipped.Apply(TwoRanks(clipped, step), {});
    plain.Apply(TwoRanks(plain, step), {});
  }
  EXPECT_EQ(clipped.weights(), plain.weights());
}

TEST(OptimizerTest, AClippedGradientHasTheNormThatWasAskedFor) {
  SmallRun run(With(OptimizerKind::kSgd, 2), kernels::CpuBackend());
  OptimizerOptions plain = With(OptimizerKind::kSgd, 2);
  plain.weight_decay = 0;
  run.Change(plain);
  const ParameterValues before = run.weights();
  run.Apply(TwoRanks(run, 0), {.learning_rate = 1});
  double squares = 0;
  const ParameterValues after = run.weights();
  for (size_t k = 0; k < before.size(); ++k) {
    const double rate = run.layout().parameters[k].rate_multiplier;
    for (size_t i = 0; i < before[k].size(); ++i) {
      squares += std::pow((before[k][i] - after[k][i]) / rate, 2);
    }
  }
  // Weights below 2 are rounded by up to 2^-24 each.
  EXPECT_NEAR(std::sqrt(squares), 2, 1e-5);
}

TEST(OptimizerTest, StaleGradientsAreCompensated) {
  for (bool adaptive : {false, true}) {
    for (double clip_norm : {0.0, 5.0}) {
      const PolicyOptions policy{
          .aggregation = AggregationKind::kAsync,
          .staleness = {.rule = StalenessRule::kCompensate,
                        .compensation_adaptive = adaptive}};
      const OptimizerOptions options =
          With(OptimizerKind::kMomentum, clip_norm);
      SmallRun run(options, kernels::CpuBackend(), policy);
      Reference reference(options, run);
      SharedSnapshot read = run.snapshot();
      ParameterValues read_weights = run.weights();
      for (int step = 0; step < kSteps; ++step) {
        const auto gradients = TwoRanks(run, step);
        reference.read = Wide(read_weights);
        // The weights that the next step reads are one version old when it is
        // applied.
        const SmallRun::Step options_of_step{
            .read = read, .compensation = 0.5, .adaptive = adaptive};
        read = run.snapshot();
        read_weights = run.weights();
        run.Apply(gradients, options_of_step);
        reference.Apply(gradients, options_of_step);
      }
      // Adaptive: the root of a small mean square multiplies its error.
      EXPECT_LT(Difference(run, reference), 4 * kTolerance)
          << (adaptive ? "adaptive" : "constant") << " " << clip_norm;
    }
  }
}

// A gradient of weight 1/2 has half its effect, in this step and through the
// velocity in all later ones.
TEST(OptimizerTest, AWeightDampsTheGradient) {
  for (const OptimizerOptions& options : AllOptions()) {
    SmallRun run(options, kernels::CpuBackend());
    Reference reference(options, run);
    for (int step = 0; step < kSteps; ++step) {
      SmallRun::Step how = StepFor(options);
      how.weight = step % 2 == 0 ? 0.25 : 1;
      run.Apply(TwoRanks(run, step), how);
      reference.Apply(TwoRanks(run, step), how);
    }
    EXPECT_LT(Difference(run, reference), kTolerance) << Describe(options);
  }
}

TEST(OptimizerTest, NamedParametersAreNotDecayed) {
  OptimizerOptions options = With(OptimizerKind::kSgd);
  options.decay_everything = true;
  options.no_decay = {"fc.*", "c?nv.weight"};
  SmallRun run(options, kernels::CpuBackend());
  const ParameterValues before = run.weights();
  // Only decay changes the weights.
  run.Apply({RandomValues(run.layout(), 1, 0)}, {.learning_rate = 1});
  const ParameterValues after = run.weights();
  for (size_t k : {0u, 5u, 6u}) EXPECT_EQ(after[k], before[k]);
  for (size_t k : {1u, 2u, 4u}) {
    const double rate = run.layout().parameters[k].rate_multiplier;
    EXPECT_NEAR(after[k][0], (1 - 0.05 * rate) * before[k][0], 1e-6);
  }
}

TEST(OptimizerTest, DecayIsMultipliedByTheParametersFactor) {
  for (const OptimizerOptions& options : AllOptions()) {
    SmallRun run(options, kernels::CpuBackend());
    const ParameterSpec& plain = run.layout().parameters[0];
    ASSERT_EQ(plain.rate_multiplier, 1);
    const GroupOptions groups(options, {});
    EXPECT_EQ(groups.DecayOf(plain), options.weight_decay);
    const ParameterSpec& own = run.layout().parameters[5];
    EXPECT_EQ(groups.DecayOf(own), 3 * options.weight_decay);
    // A program's is that of the group, and exemptions stay.
    const GroupOptions changed(
        options, {{.group = 0, .name = "weight_decay", .value = 0.25}});
    for (const ParameterSpec& parameter : run.layout().parameters) {
      EXPECT_EQ(changed.DecayOf(parameter),
                groups.DecayOf(parameter) == 0 ? 0 : 0.25);
    }
  }
}

// The numbers of a rule that may change, by name.
std::vector<std::string> ChangeableNumbers(const OptimizerOptions& options) {
  std::vector<std::string> names;
  for (const kernels::TorchClass& made :
       kernels::RuleOf(options.kind).torch_classes) {
    for (const kernels::TorchArgument& argument : made.arguments) {
      const std::vector<GroupNumber> one = {
          {.group = 0, .name = argument.number, .value = 0.5}};
      if (CheckGroupNumbers(one, options, 1).ok()) {
        names.push_back(argument.number);
      }
    }
  }
  return names;
}

TEST(OptimizerTest, ANumberOfOneStepActsAsASettingThatIsChangedAndBack) {
  int changed = 0;
  for (const OptimizerOptions& options : AllOptions()) {
    for (const std::string& name : ChangeableNumbers(options)) {
      SCOPED_TRACE(absl::StrCat(OptimizerName(options.kind), " ", name));
      CoordinatorOptions with{.optimizer = options};
      ASSERT_TRUE(SetSetting(name, "0.5", with).ok());
      SmallRun sent(options, kernels::CpuBackend());
      SmallRun set(options, kernels::CpuBackend());
      for (uint64_t step = 0; step < 3; ++step) {
        const std::vector<ParameterValues> gradients = {
            RandomValues(sent.layout(), step, 1)};
        SmallRun::Step with_number;
        if (step == 1) {
          with_number.numbers = {{.group = 0, .name = name, .value = 0.5}};
          set.Change(with.optimizer);
        }
        sent.Apply(gradients, with_number);
        set.Apply(gradients, {});
        set.Change(options);
        ASSERT_EQ(sent.weights(), set.weights());
      }
      ++changed;
    }
  }
  EXPECT_GT(changed, 20);
}

TEST(OptimizerTest, AdamCountsTheUpdatesOfEachParameter) {
  SmallRun run(With(OptimizerKind::kAdam), kernels::CpuBackend());
  const ParameterValues before = run.weights();
  const auto updates = [&run] {
    std::vector<int64_t> counts(run.layout().parameters.size());
    for (size_t p = 0; p < run.snapshot()->slots.size(); ++p) {
      const std::vector<int64_t>& of = run.snapshot()->slots[p].updates;
      for (size_t i = 0; i < of.size(); ++i) {
        counts[static_cast<size_t>(
            run.model()->partitions[p].slices[i].parameter)] = of[i];
      }
    }
    return counts;
  };
  run.Apply(TwoRanks(run, 0), {.absent = {5}});
  EXPECT_EQ(run.weights()[5], before[5]);
  run.Apply(TwoRanks(run, 1), {});
  EXPECT_EQ(updates(), (std::vector<int64_t>{2, 2, 2, 0, 2, 1, 2}));
  // A first update is rate * g / |g|, whenever it comes, plus decay.
  OptimizerOptions plain = With(OptimizerKind::kAdam);
  plain.weight_decay = 0;
  SmallRun late(plain, kernels::CpuBackend());
  late.Apply(TwoRanks(late, 0), {.absent = {5}});
  late.Apply(TwoRanks(late, 1), {.learning_rate = 0.125});
  EXPECT_NEAR(std::abs(late.weights()[5][0] - before[5][0]),
              0.125 * late.layout().parameters[5].rate_multiplier, 1e-5);
}

TEST(OptimizerTest, NonfiniteNamesRankAndParameterInTwoPasses) {
  for (const OptimizerOptions& options : AllOptions()) {
    SmallRun run(options, kernels::CpuBackend());
    const ParameterValues before = run.weights();
    auto gradients = TwoRanks(run, 0);
    gradients[1][4][6000] = std::numeric_limits<float>::infinity();
    const auto bad = run.Apply(gradients, {});
    ASSERT_TRUE(bad.has_value()) << Describe(options);
    EXPECT_EQ(bad->rank, Rank(1));
    const Partition& partition =
        run.model()->partitions[static_cast<size_t>(bad->partition)];
    EXPECT_EQ(partition.slices[static_cast<size_t>(bad->slice)].parameter, 4);
    EXPECT_EQ(run.weights(), before);
  }
}

TEST(SlotsTest, TheSameSlotsStayAndOthersStartFromZero) {
  SmallRun run(With(OptimizerKind::kMomentum), kernels::CpuBackend());
  run.Apply(TwoRanks(run, 0), {});
  const ParameterValues velocity = run.slot(&Slots::velocity);
  run.Change(With(OptimizerKind::kNesterov));
  EXPECT_EQ(run.slot(&Slots::velocity), velocity);
  run.Change(With(OptimizerKind::kSgd));
  EXPECT_TRUE(SlotsHeld(run.snapshot()->slots).empty());
  run.Change(With(OptimizerKind::kMomentum));
  const ParameterValues fresh = run.slot(&Slots::velocity);
  EXPECT_THAT(fresh[4], Each(0));
  // Parameters that are not trained have none.
  EXPECT_TRUE(fresh[3].empty());
}

TEST(SlotsTest, OnlyFittingOptimizersFollowEachOther) {
  const auto allowed = [](OptimizerKind from, OptimizerKind to) {
    return CheckSlots(SlotsOf(from), to).ok();
  };
  using enum OptimizerKind;
  EXPECT_TRUE(allowed(kMomentum, kNesterov));
  EXPECT_TRUE(allowed(kAdamW, kAdam));
  for (const kernels::OptimizerRule& from : kernels::OptimizerRules()) {
    SCOPED_TRACE(OptimizerName(from.kind));
    EXPECT_TRUE(allowed(from.kind, kSgd));
    EXPECT_TRUE(allowed(kSgd, from.kind));
    for (const kernels::OptimizerRule& to : kernels::OptimizerRules()) {
      if (from.kind == kSgd || to.kind == kSgd) continue;
      EXPECT_EQ(allowed(from.kind, to.kind),
                SlotsOf(from.kind) == SlotsOf(to.kind))
          << OptimizerName(to.kind);
    }
  }
  EXPECT_THAT(CheckSlots(SlotsOf(kMomentum), kAdam),
              IsError(kFailedPrecondition, "--optimizer: got adam"));
}

TEST(SlotsTest, WhatSomeNumbersNeedComesAndGoesWithThem) {
  OptimizerOptions options = With(OptimizerKind::kRmsProp);
  SmallRun run(options, kernels::CpuBackend());
  run.Apply(TwoRanks(run, 0), {});
  const ParameterValues square = run.slot(&Slots::rms_square);
  EXPECT_NE(square[0][0], 0);
  options.numbers.rmsprop_momentum = 0.9;
  run.Change(options);
  EXPECT_EQ(run.slot(&Slots::rms_square), square);
  EXPECT_EQ(run.slot(&Slots::rms_velocity)[0][0], 0);
  const std::vector<SlotKind> held = SlotsHeld(run.snapshot()->slots);
  EXPECT_EQ(held.size(), 2u);
  EXPECT_TRUE(CheckSlots(held, OptimizerKind::kRmsProp).ok());
  EXPECT_FALSE(CheckSlots(held, OptimizerKind::kMomentum).ok());
  run.Change(With(OptimizerKind::kRmsProp));
  EXPECT_EQ(run.slot(&Slots::rms_square), square);
  EXPECT_EQ(SlotsHeld(run.snapshot()->slots).size(), 1u);
}

TEST(SlotsTest, StartFromTheValueOfTheirNumber) {
  OptimizerOptions options = With(OptimizerKind::kAdagrad);
  options.numbers.adagrad_initial = 0.25;
  SmallRun run(options, kernels::CpuBackend());
  EXPECT_THAT(run.slot(&Slots::square_sum)[4], Each(0.25f));
}

TEST(SlotsTest, ThePolicyAddsItsOwn) {
  const OptimizerOptions momentum = With(OptimizerKind::kMomentum);
  EXPECT_EQ(SlotsOf(momentum, {}).size(), 1u);
  const PolicyOptions adaptive{.aggregation = AggregationKind::kAsync,
                               .staleness = {.rule = StalenessRule::kCompensate,
                                             .compensation_adaptive = true}};
  const PolicyOptions rounded{.wire = ElementType::kBFloat16};
  for (const auto& [policy, name] :
       {std::pair(adaptive, "mean_square"), {rounded, "remainder"}}) {
    const std::vector<SlotKind> slots = SlotsOf(momentum, policy);
    ASSERT_EQ(slots.size(), 2u);
    EXPECT_STREQ(slots[1].name, name);
    EXPECT_TRUE(CheckSlots(slots, OptimizerKind::kNesterov).ok());
    EXPECT_FALSE(CheckSlots(slots, OptimizerKind::kAdam).ok());
  }
}

}  // namespace
}  // namespace cohort
