// A worker that dies inside a rendezvous, over real gRPC.

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <utility>

#include "common/mutex.h"
#include "tests/fakes/owning_client.h"
#include "tests/fakes/statuses.h"
#include "tests/integration/cluster.h"

namespace cohort {
namespace {

constexpr Rank kVictim{2};

// Records which ranks were in the repeated step.
class Repeaters {
 public:
  void Repeats(Rank rank) {
    MutexLock lock(mu_);
    ranks_.insert(rank);
  }
  std::set<Rank> ranks() const {
    MutexLock lock(mu_);
    return ranks_;
  }

 private:
  mutable Mutex mu_;
  std::set<Rank> ranks_ ABSL_GUARDED_BY(mu_);
};

// Dies in the first rendezvous of the last layer, where the others wait for it;
// or only records.
class MortalClient final : public OwningClient {
 public:
  MortalClient(std::unique_ptr<Client> client, Rank rank, Repeaters& repeaters)
      : OwningClient(std::move(client)), rank_(rank), repeaters_(repeaters) {}

  absl::StatusOr<std::vector<Moments>> Reduce(
      const ReducePass& pass, absl::Span<const Contribution> local) override {
    if (rank_ == kVictim && local.front().place.layer == 2) {
      Die();
      return absl::InternalError("died");
    }
    if (pass.attempt > Attempt(0)) repeaters_.Repeats(rank_);
    return next().Reduce(pass, local);
  }

 private:
  const Rank rank_;
  Repeaters& repeaters_;
};

ClusterOptions ContinuingRun(const Dataset& dataset,
                             std::vector<int64_t> batch_sizes) {
  ClusterOptions options{.batch_sizes = std::move(batch_sizes),
                         .dataset = &dataset};
  options.server.coordinator.epochs = 2;
  options.server.coordinator.on_worker_loss = OnWorkerLoss::kContinue;
  return options;
}

TEST(WorkerLossTest, ContinuingEqualsARunOfTheSurvivorsAlone) {
  const auto dataset = *MakeDataset(
      {.name = "synthetic", .synthetic_train = 100, .synthetic_test = 20});
  const RunSummary alone = OkValue(RunCluster(ContinuingRun(*dataset, {5, 4})));

  Repeaters repeaters;
  ClusterOptions options = ContinuingRun(*dataset, {5, 4, 5});
  options.expendable = {kVictim};
  // Only the broken stream can reveal the loss: the lease outlasts the test.
  options.server.coordinator.lease = absl::Hours(1);
  options.wrap = [&repeaters](std::unique_ptr<Client> client, Rank rank) {
    return std::make_unique<MortalClient>(std::move(client), rank, repeaters);
  };
  const RunSummary survived = OkValue(RunCluster(options));
  EXPECT_EQ(survived.snapshot->version, alone.snapshot->version);
  EXPECT_EQ(Sha256(survived), Sha256(alone));

  EXPECT_EQ(repeaters.ranks(), (std::set<Rank>{Rank(0), Rank(1)}));
}

}  // namespace
}  // namespace cohort
