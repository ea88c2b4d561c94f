#include "worker/train/loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/fakes/statuses.h"
#include "worker/datasets/dataset.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kClasses = 4;

CrossEntropy LossOf(const LossOptions& options) {
  return *CrossEntropy::Make(options, kClasses);
}

struct Sample {
  // float64.
  at::Tensor logits;
  at::Tensor labels;
};

// About one label in five is ignored. `shape` is the shape of the labels.
Sample Random(std::vector<int64_t> shape, uint64_t seed) {
  torch::manual_seed(seed);
  Sample sample{
      .labels = torch::randint(kIgnoredLabel, kClasses, shape, torch::kLong)};
  shape.insert(shape.begin() + 1, kClasses);
  sample.logits = 3 * torch::randn(shape, torch::kDouble);
  return sample;
}

// All relevant combinations, with weights that float32 holds exactly: their
// rounding is the same in the sum and in the weight, but a float64 reference
// would not have it.
std::vector<LossOptions> AllOptions() {
  const std::vector<double> weights = {0.5, 2, 0, 1.25};
  return {{},
          {.label_smoothing = 0.1},
          {.class_weights = weights},
          {.class_weights = weights, .label_smoothing = 0.3}};
}

double WeightOfClass(const LossOptions& options, int64_t c) {
  return options.class_weights.empty()
             ? 1
             : options.class_weights[static_cast<size_t>(c)];
}

struct ByHand {
  double sum = 0;
  double weight = 0;
};

// The definition, element by element in float64. Labels [n, positions] with
// logits [n, classes, positions].
ByHand Definition(const LossOptions& options, const Sample& sample) {
  const int64_t n = sample.labels.size(0);
  const at::Tensor labels = sample.labels.reshape({n, -1});
  const at::Tensor logits = sample.logits.reshape({n, kClasses, -1});
  const double e = options.label_smoothing;
  ByHand result;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t at = 0; at < labels.size(1); ++at) {
      const auto y = labels[i][at].item<int64_t>();
      if (y == kIgnoredLabel) continue;
      std::vector<double> z;
      double total = 0;
      for (int64_t c = 0; c < kClasses; ++c) {
        z.push_back(logits[i][c][at].item<double>());
        total += std::exp(z.back());
      }
      for (int64_t c = 0; c < kClasses; ++c) {
        const double share = (c == y ? 1 - e : 0) + e / kClasses;
        result.sum -= share * WeightOfClass(options, c) *
                      (z[static_cast<size_t>(c)] - std::log(total));
      }
      result.weight += WeightOfClass(options, y);
    }
  }
  return result;
}

struct Outcome {
  double sum = 0;
  at::Tensor gradient;
};

Outcome OutcomeOf(const LossOptions& options, const Sample& sample) {
  const at::Tensor logits = sample.logits.detach().clone().requires_grad_();
  const at::Tensor sum = *LossOf(options).Sum(logits, sample.labels);
  (0.25 * sum).backward();
  return {.sum = sum.item<double>(), .gradient = logits.grad()};
}

// The same by LibTorch's operators.
Outcome OutcomeOfLibTorch(const LossOptions& options, const Sample& sample) {
  const at::Tensor logits = sample.logits.detach().clone().requires_grad_();
  auto torch_options = torch::nn::functional::CrossEntropyFuncOptions()
                           .reduction(torch::kSum)
                           .ignore_index(kIgnoredLabel)
                           .label_smoothing(options.label_smoothing);
  if (!options.class_weights.empty()) {
    torch_options.weight(
        torch::tensor(options.class_weights, logits.options()));
  }
  const at::Tensor sum = torch::nn::functional::cross_entropy(
      logits, sample.labels, torch_options);
  (0.25 * sum).backward();
  return {.sum = sum.item<double>(), .gradient = logits.grad()};
}

double MaxDifference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(torch::kDouble) - b.to(torch::kDouble))
      .abs()
      .max()
      .item<double>();
}

TEST(CrossEntropyTest, SumAndWeightAreThoseOfTheDefinition) {
  for (const LossOptions& options : AllOptions()) {
    for (const Sample& sample :
         {Random({9}, 1), Random({2, 3, 5}, 2), Random({40}, 3)}) {
      const ByHand wanted = Definition(options, sample);
      // float64 rounding of at most 160 terms of about 10.
      EXPECT_NEAR(OutcomeOf(options, sample).sum, wanted.sum, 1e-12);
      EXPECT_EQ(*LossOf(options).WeightOf(sample.labels), wanted.weight);
    }
  }
}

TEST(CrossEntropyTest, SumAndGradientAreLibTorchs) {
  for (const LossOptions& options : AllOptions()) {
    for (const Sample& sample : {Random({9}, 4), Random({2, 3, 5}, 5)}) {
      const Outcome seen = OutcomeOf(options, sample);
      const Outcome wanted = OutcomeOfLibTorch(options, sample);
      EXPECT_NEAR(seen.sum, wanted.sum, 1e-12);
      // Elements are below 1; float64 rounding of a few operations.
      EXPECT_LT(MaxDifference(seen.gradient, wanted.gradient), 1e-15);
    }
  }
}

// With float32 logits the sum is still float64, over terms with a rounding of
// some 2^-24 of 10 each.
TEST(CrossEntropyTest, Float32IsNearFloat64) {
  for (const LossOptions& options : AllOptions()) {
    Sample sample = Random({2, 16, 16}, 6);
    // Values that float32 holds exactly.
    sample.logits = sample.logits.to(torch::kFloat).to(torch::kDouble);
    const Outcome wanted = OutcomeOf(options, sample);
    sample.logits = sample.logits.to(torch::kFloat);
    const Outcome seen = OutcomeOf(options, sample);
    EXPECT_NEAR(seen.sum, wanted.sum, 512 * 1e-6);
    EXPECT_EQ(seen.gradient.scalar_type(), torch::kFloat);
    // 2^-24 times a few operations on numbers below 1.
    EXPECT_LT(MaxDifference(seen.gradient, wanted.gradient), 3e-7);
  }
}

// Narrow logits are widened: the loss equals that of their values in float32.
TEST(CrossEntropyTest, NarrowLogitsGiveTheLossOfTheirValues) {
  for (const auto type : {torch::kBFloat16, torch::kHalf}) {
    Sample sample = Random({2, 3, 5}, 7);
    sample.logits = sample.logits.to(type);
    const Outcome seen = OutcomeOf({}, sample);
    sample.logits = sample.logits.to(torch::kFloat);
    const Outcome wanted = OutcomeOf({}, sample);
    EXPECT_EQ(seen.sum, wanted.sum);
    EXPECT_EQ(seen.gradient.scalar_type(), type);
    EXPECT_EQ(MaxDifference(seen.gradient, wanted.gradient.to(type)), 0);
  }
}

// Two parts give the same result as one batch, which makes unequal batches
// exact.
TEST(CrossEntropyTest, SumsWeightsAndGradientsOfPartsAddUp) {
  const Sample whole = Random({5, 3, 4}, 8);
  for (const LossOptions& options : AllOptions()) {
    const Outcome all = OutcomeOf(options, whole);
    const auto part = [&whole](int64_t begin, int64_t end) {
      return Sample{.logits = whole.logits.slice(0, begin, end),
                    .labels = whole.labels.slice(0, begin, end)};
    };
    const Outcome a = OutcomeOf(options, part(0, 1));
    const Outcome b = OutcomeOf(options, part(1, 5));
    EXPECT_NEAR(a.sum + b.sum, all.sum, 1e-12);
    EXPECT_EQ(MaxDifference(at::cat({a.gradient, b.gradient}), all.gradient),
              0);
    const CrossEntropy loss = LossOf(options);
    EXPECT_EQ(
        *loss.WeightOf(part(0, 1).labels) + *loss.WeightOf(part(1, 5).labels),
        *loss.WeightOf(whole.labels));
  }
}

TEST(CrossEntropyTest, IgnoredLabelsAddNothing) {
  for (const LossOptions& options : AllOptions()) {
    Sample sample = Random({2, 3, 5}, 9);
    sample.labels.fill_(kIgnoredLabel);
    const Outcome seen = OutcomeOf(options, sample);
    EXPECT_EQ(seen.sum, 0);
    EXPECT_EQ(seen.gradient.abs().max().item<double>(), 0);
    EXPECT_EQ(*LossOf(options).WeightOf(sample.labels), 0);
  }
}

TEST(CrossEntropyTest, ABatchMayBeEmpty) {
  for (const LossOptions& options : AllOptions()) {
    for (const Sample& sample : {Random({0}, 1), Random({0, 2, 2}, 1)}) {
      const Outcome seen = OutcomeOf(options, sample);
      EXPECT_EQ(seen.sum, 0);
      EXPECT_EQ(seen.gradient.sizes(), sample.logits.sizes());
      EXPECT_EQ(*LossOf(options).WeightOf(sample.labels), 0);
    }
  }
}

TEST(CrossEntropyTest, LargeLogitsDoNotOverflow) {
  const Sample sample{.logits = torch::tensor({{1e4F, 0.0F, 0.0F, 0.0F},
                                               {0.0F, -1e4F, 0.0F, 1e4F}}),
                      .labels = torch::tensor({0, 1}, torch::kLong)};
  const Outcome seen = OutcomeOf({}, sample);
  EXPECT_EQ(seen.sum, 2e4);
  EXPECT_EQ(MaxDifference(
                seen.gradient,
                torch::tensor({{0.0, 0.0, 0.0, 0.0}, {0.0, -0.25, 0.0, 0.25}})),
            0);
}

TEST(CrossEntropyTest, LogitsMayLieAnyHow) {
  Sample sample = Random({2, 3, 5}, 10);
  const Outcome wanted = OutcomeOf({}, sample);
  sample.logits = sample.logits.contiguous(torch::MemoryFormat::ChannelsLast);
  const Outcome seen = OutcomeOf({}, sample);
  EXPECT_NEAR(seen.sum, wanted.sum, 1e-12);
  EXPECT_LT(MaxDifference(seen.gradient, wanted.gradient), 1e-15);
}

TEST(CrossEntropyTest, LabelsThatAreNoClassAreRefused) {
  const CrossEntropy loss = LossOf({});
  for (const int64_t label : {int64_t{4}, int64_t{-2}, int64_t{255}}) {
    EXPECT_THAT(loss.WeightOf(torch::tensor({0L, label})),
                IsError(kInvalidArgument,
                        absl::StrCat("class ", label, ", want 0 to 3")));
  }
}

TEST(CrossEntropyTest, ShapesThatDoNotFitAreRefused) {
  const CrossEntropy loss = LossOf({});
  EXPECT_THAT(loss.Sum(torch::zeros({2, 4, 3, 3}),
                       torch::zeros({2, 3, 5}, torch::kLong)),
              IsError(kInvalidArgument, "logits [2,4,3,3] for labels [2,3,5]"));
  EXPECT_FALSE(
      loss.Sum(torch::zeros({2, 5}), torch::zeros({2}, torch::kLong)).ok());
}

TEST(CrossEntropyTest, BadOptionsAreNamed) {
  const auto message = [](const LossOptions& options) {
    const absl::Status status = CrossEntropy::Make(options, kClasses).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(message({.class_weights = {1, 2, 3}}),
              HasSubstr("--class_weights: got 3 weights, want 4"));
  EXPECT_THAT(message({.class_weights = {1, 2, 3, -1}}), HasSubstr("got -1"));
  EXPECT_THAT(message({.class_weights = {1, 2, 3, 1e39}}),
              HasSubstr("finite numbers"));
  EXPECT_THAT(message({.class_weights = {0, 0, 0, 1e-60}}),
              HasSubstr("none above 0"));
  EXPECT_THAT(message({.label_smoothing = 1}),
              HasSubstr("label smoothing: got 1"));
  message({.label_smoothing = -0.1});
  message({.label_smoothing = std::numeric_limits<double>::quiet_NaN()});
}

TEST(CrossEntropyTest, TextTellsWhatMakesTwoDiffer) {
  EXPECT_EQ(LossOf({}).text(), "cross-entropy");
  EXPECT_EQ(
      LossOf({.class_weights = {1, 0.1, 2, 4}, .label_smoothing = 0.05}).text(),
      "cross-entropy, label smoothing 0.05, class weights 1,0.100000001,2,4");
}

}  // namespace
}  // namespace cohort
