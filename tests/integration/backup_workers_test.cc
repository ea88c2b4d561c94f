// Steps that need only the first K pushes train on exactly their samples.

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "tests/fakes/owning_client.h"
#include "tests/fakes/statuses.h"
#include "tests/integration/cluster.h"
#include "tests/integration/reference_training.h"
#include "worker/train/threads.h"

namespace cohort {
namespace {

constexpr int64_t kSamples = 96;
constexpr Rank kSlow{2};

// Records which ranges went into which version, as reported to the workers.
class Accepted {
 public:
  void Note(Version version, Rank rank, const IndexRange& range) {
    MutexLock lock(mu_);
    by_version_[version][rank] = range;
    changed_.NotifyAll();
  }
  // Blocks until `count` pushes went into `version`.
  void Await(Version version, size_t count) {
    MutexLock lock(mu_);
    while (by_version_[version].size() < count) changed_.Wait(mu_);
  }
  std::vector<ReferenceStep> Steps() const {
    MutexLock lock(mu_);
    std::vector<ReferenceStep> steps;
    for (const auto& [version, ranges] : by_version_) {
      ReferenceStep step;
      for (const auto& [rank, range] : ranges) step.ranges.push_back(range);
      steps.push_back(std::move(step));
    }
    return steps;
  }
  bool Has(Rank rank) const {
    MutexLock lock(mu_);
    for (const auto& [version, ranges] : by_version_) {
      if (ranges.contains(rank)) return true;
    }
    return false;
  }

 private:
  mutable Mutex mu_;
  CondVar changed_;
  std::map<Version, std::map<Rank, IndexRange>> by_version_
      ABSL_GUARDED_BY(mu_);
};

// The slow worker begins a step only once the others have finished it.
class WatchedClient final : public OwningClient {
 public:
  WatchedClient(std::unique_ptr<Client> client, Rank rank, Accepted& accepted)
      : OwningClient(std::move(client)), rank_(rank), accepted_(accepted) {}

  absl::StatusOr<Assignment> NextAssignment() override {
    absl::StatusOr<Assignment> told = next().NextAssignment();
    if (told.ok()) told_ = *told;
    if (rank_ == kSlow && told_.kind == AssignmentKind::kTrain) {
      accepted_.Await(told_.version.Next(), 2);
    }
    return told;
  }
  absl::StatusOr<PushResult> ClosePush(const PushClosing& closing) override {
    absl::StatusOr<PushResult> result = next().ClosePush(closing);
    if (result.ok() && result->verdict.verdict == Verdict::kApplied) {
      accepted_.Note(result->verdict.version, rank_, told_.range);
    }
    return result;
  }

 private:
  const Rank rank_;
  Accepted& accepted_;
  Assignment told_;
};

class BackupWorkersTest : public testing::TestWithParam<NormalizationKind> {};

TEST_P(BackupWorkersTest, WeightsAreThoseOfTheAcceptedSamples) {
  SetArithmeticThreads(1);
  const auto dataset = *MakeDataset(
      {.name = "synthetic", .synthetic_train = kSamples, .synthetic_test = 0});
  Accepted accepted;
  ClusterOptions options{.batch_sizes = {4, 4, 4}, .dataset = dataset.get()};
  CoordinatorOptions& run = options.server.coordinator;
  run.epochs = 1;
  run.policy = {.pushes_min = 2, .normalization = GetParam()};
  run.optimizer.schedule = ScheduleKind::kConstant;
  options.wrap = [&accepted](std::unique_ptr<Client> client, Rank rank) {
    return std::make_unique<WatchedClient>(std::move(client), rank, accepted);
  };
  const RunSummary summary = OkValue(RunCluster(options));
  // Eight steps of 12 samples; 8 samples of each step are used.
  EXPECT_EQ(summary.snapshot->version, Version(8));
  const std::vector<ReferenceStep> steps = accepted.Steps();
  ASSERT_EQ(steps.size(), 8);
  for (const ReferenceStep& step : steps) EXPECT_EQ(step.ranges.size(), 2);
  EXPECT_FALSE(accepted.Has(kSlow));

  const bool local = GetParam() == NormalizationKind::kLocal;
  const StateTensors wanted = TrainReference({.model = "smooth",
                                              .dataset = dataset.get(),
                                              .optimizer = run.optimizer,
                                              .local = local},
                                             steps);
  // Eight steps in float32, as in the parity tests.
  for (const auto& [name, tensor] : StateOf(summary)) {
    const bool moving = name.find("running") != std::string::npos ||
                        name.find("num_batches") != std::string::npos;
    if (local && moving) continue;
    EXPECT_LE(RelativeDistance(tensor, wanted.at(name)), 1e-4) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Normalizations, BackupWorkersTest,
                         testing::Values(NormalizationKind::kGlobal,
                                         NormalizationKind::kLocal),
                         [](const auto& info) {
                           return info.param == NormalizationKind::kGlobal
                                      ? "Global"
                                      : "Local";
                         });

}  // namespace
}  // namespace cohort
