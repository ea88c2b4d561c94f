// W workers train like one process with the joined batch.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/integration/cluster.h"
#include "tests/integration/reference_training.h"
#include "worker/train/threads.h"

namespace cohort {
namespace {

constexpr int64_t kBatch = 32;

std::unique_ptr<Dataset> Synthetic(int64_t samples) {
  SetArithmeticThreads(1);
  return *MakeDataset(
      {.name = "synthetic", .synthetic_train = samples, .synthetic_test = 0});
}

struct ParityCase {
  std::string name;
  std::vector<int64_t> batch_sizes;
  OptimizerKind optimizer = OptimizerKind::kMomentum;
  // Weights by rank, as --shares, and later ones by version.
  std::vector<int64_t> shares = {};
  std::vector<PlannedChange> changes = {};
};

void PrintTo(const ParityCase& c, std::ostream* os) { *os << c.name; }

RunSummary TrainCohort(const ParityCase& c, const std::string& model,
                       const Dataset& dataset) {
  ClusterOptions options{
      .batch_sizes = c.batch_sizes, .model = model, .dataset = &dataset};
  options.server.coordinator.epochs = 1;
  options.server.coordinator.optimizer.kind = c.optimizer;
  options.server.coordinator.policy.shares.weights = c.shares;
  options.server.coordinator.planned = c.changes;
  absl::StatusOr<RunSummary> summary = RunCluster(options);
  EXPECT_TRUE(summary.ok()) << summary.status();
  return *std::move(summary);
}

ReferenceOptions ReferenceFor(const ParityCase& c, const std::string& model,
                              const Dataset& dataset) {
  OptimizerOptions optimizer;
  optimizer.kind = c.optimizer;
  return {.model = model,
          .dataset = &dataset,
          .batch_size = kBatch,
          .optimizer = optimizer};
}

// The distance allowed from float64, by tensor name; 1e-5 for all others.
void ExpectFloat64AfterOneStep(
    const ParityCase& split, const std::string& model,
    const std::map<std::string, double>& allowed = {}) {
  const auto dataset = Synthetic(kBatch);
  const StateTensors seen = StateOf(TrainCohort(split, model, *dataset));
  const StateTensors wanted =
      TrainReference(ReferenceFor(split, model, *dataset));
  ASSERT_EQ(seen.size(), wanted.size());
  EXPECT_LE(RelativeDistance(seen, wanted), 1e-5);
  for (const auto& [name, tensor] : wanted) {
    const auto found = allowed.find(name);
    const double bound =
        std::max(1e-5, found == allowed.end() ? 0 : found->second);
    EXPECT_LE(RelativeDistance(seen.at(name), tensor), bound) << name;
  }
}

// ReLU and max pooling amplify rounding. So the measure is one float32 process
// with the same batches: at most 4 times its distance from float64.
void ExpectAsCloseAsOneProcessAfter20Steps(const ParityCase& split,
                                           const std::string& model) {
  const auto dataset = Synthetic(20 * kBatch);
  ReferenceOptions reference = ReferenceFor(split, model, *dataset);
  const StateTensors exact = TrainReference(reference);
  reference.type = at::kFloat;
  const double one_process = RelativeDistance(TrainReference(reference), exact);
  const double cohort =
      RelativeDistance(StateOf(TrainCohort(split, model, *dataset)), exact);
  testing::Test::RecordProperty("one_process", absl::StrCat(one_process));
  testing::Test::RecordProperty("cohort", absl::StrCat(cohort));
  EXPECT_LE(cohort, 4 * one_process);
}

// float32 has 6e-8 a rounding. Through 20 steps of a function without kinks
// that stays far below 1e-4 of each tensor's norm, while any wrong weighting of
// unequal batches, moments or statistics is far above it.
void ExpectSmoothNetworkMatchesFloat64(const ParityCase& split,
                                       int64_t samples) {
  const auto dataset = Synthetic(samples);
  const StateTensors seen = StateOf(TrainCohort(split, "smooth", *dataset));
  const StateTensors wanted =
      TrainReference(ReferenceFor(split, "smooth", *dataset));
  ASSERT_EQ(seen.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) {
    EXPECT_LE(RelativeDistance(seen.at(name), tensor), 1e-4) << name;
  }
}

class ParityTest : public testing::TestWithParam<ParityCase> {};

TEST_P(ParityTest, SmoothNetworkMatchesFloat64After20Steps) {
  ExpectSmoothNetworkMatchesFloat64(GetParam(), 20 * kBatch);
}

TEST_P(ParityTest, CnnMatchesFloat64AfterOneStep) {
  ExpectFloat64AfterOneStep(GetParam(), "cnn");
}

INSTANTIATE_TEST_SUITE_P(
    Splits, ParityTest,
    testing::Values(ParityCase{.name = "One", .batch_sizes = {32}},
                    ParityCase{.name = "TwoEven", .batch_sizes = {16, 16}},
                    ParityCase{.name = "TwoUneven", .batch_sizes = {25, 7}},
                    ParityCase{.name = "FourEven", .batch_sizes = {8, 8, 8, 8}},
                    ParityCase{.name = "FourUneven",
                               .batch_sizes = {1, 13, 15, 3}},
                    ParityCase{.name = "EightEven",
                               .batch_sizes = {4, 4, 4, 4, 4, 4, 4, 4}},
                    ParityCase{.name = "EightUneven",
                               .batch_sizes = {9, 7, 5, 4, 3, 2, 1, 1}},
                    ParityCase{.name = "TwoEvenShared1To3",
                               .batch_sizes = {16, 16},
                               .shares = {1, 3}},
                    ParityCase{.name = "ThreeWhoseSharesChange",
                               .batch_sizes = {12, 10, 10},
                               .shares = {5, 2, 9},
                               .changes = {{.version = Version(4),
                                            .values = {{"shares", "1,30,1"}}},
                                           {.version = Version(11),
                                            .values = {{"shares", "none"}}}}},
                    ParityCase{.name = "Nesterov",
                               .batch_sizes = {20, 12},
                               .optimizer = OptimizerKind::kNesterov},
                    ParityCase{.name = "PlainSgd",
                               .batch_sizes = {20, 12},
                               .optimizer = OptimizerKind::kSgd}),
    [](const auto& info) { return info.param.name; });

TEST(ParityTest, CnnStaysAsCloseToFloat64AsOneProcessAfter20Steps) {
  ExpectAsCloseAsOneProcessAfter20Steps({.batch_sizes = {11, 9, 8, 4}}, "cnn");
}

class ResNetParityTest : public testing::TestWithParam<ParityCase> {};

// The biases of batch norm begin at 0, so after one step they consist only of a
// gradient that came through up to nineteen ReLUs. Rounding flips ReLUs, and
// differently on different processors. One float32 process shows how far that
// moves each bias, but it may flip no ReLU where the cohort flips one of a
// channel's thousands: 2e-4 of a bias has been seen. All biases together stay
// within 1e-5.
TEST_P(ResNetParityTest, MatchesFloat64AfterOneStep) {
  const auto dataset = Synthetic(kBatch);
  ReferenceOptions reference = ReferenceFor(GetParam(), "resnet20", *dataset);
  const StateTensors exact = TrainReference(reference);
  reference.type = at::kFloat;
  std::map<std::string, double> allowed;
  for (const auto& [name, tensor] : TrainReference(reference)) {
    allowed[name] = std::max(absl::EndsWith(name, ".bias") ? 1e-3 : 0,
                             4 * RelativeDistance(tensor, exact.at(name)));
  }
  ExpectFloat64AfterOneStep(GetParam(), "resnet20", allowed);
}

TEST_P(ResNetParityTest, StaysAsCloseToFloat64AsOneProcessAfter20Steps) {
  ExpectAsCloseAsOneProcessAfter20Steps(GetParam(), "resnet20");
}

INSTANTIATE_TEST_SUITE_P(
    Splits, ResNetParityTest,
    testing::Values(ParityCase{.name = "FourEven", .batch_sizes = {8, 8, 8, 8}},
                    ParityCase{.name = "FourUneven",
                               .batch_sizes = {17, 8, 6, 1}}),
    [](const auto& info) { return info.param.name; });

// The last step of an epoch is short: 2 * 32 + 17 samples.
TEST(ParityTest, ShortLastStepMatchesToo) {
  ExpectSmoothNetworkMatchesFloat64({.batch_sizes = {12, 11, 9}}, 81);
}

}  // namespace
}  // namespace cohort
