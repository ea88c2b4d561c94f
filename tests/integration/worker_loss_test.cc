// A worker that dies inside a rendezvous, over real gRPC.

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <utility>

#include "common/clock.h"
#include "common/mutex.h"
#include "tests/fakes/forwarding_client.h"
#include "tests/integration/cluster.h"

namespace cohort {
namespace {

constexpr Rank kVictim{2};

// When the victim died, and when each other rank was in the repeated step.
class Times {
 public:
  void Died() {
    MutexLock lock(mu_);
    died_ = clock_.Now();
  }
  void Repeats(Rank rank) {
    MutexLock lock(mu_);
    repeated_.try_emplace(rank, clock_.Now());
  }
  // By rank: from the death to its first rendezvous of the repetition.
  std::map<Rank, absl::Duration> Delays() const {
    MutexLock lock(mu_);
    std::map<Rank, absl::Duration> delays;
    for (const auto& [rank, at] : repeated_) delays[rank] = at - died_;
    return delays;
  }

 private:
  SteadyClock clock_;
  mutable Mutex mu_;
  Instant died_ ABSL_GUARDED_BY(mu_);
  std::map<Rank, Instant> repeated_ ABSL_GUARDED_BY(mu_);
};

// Dies in the first rendezvous of the last layer, where the others wait for
// it; or only watches.
class MortalClient final : public ForwardingClient {
 public:
  MortalClient(std::unique_ptr<Client> client, Rank rank, Times& times)
      : ForwardingClient(std::move(client)), rank_(rank), times_(times) {}

  absl::StatusOr<std::vector<Moments>> Reduce(
      const ReducePass& pass, absl::Span<const CallMoments> local) override {
    if (rank_ == kVictim && local.front().layer == 2) {
      times_.Died();
      Die();
      return absl::InternalError("died");
    }
    if (pass.attempt > Attempt(0)) times_.Repeats(rank_);
    return next().Reduce(pass, local);
  }

 private:
  const Rank rank_;
  Times& times_;
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
  const auto dataset =
      *MakeDataset({.name = "synthetic", .train_limit = 100, .test_limit = 20});
  const absl::StatusOr<RunSummary> alone =
      RunCluster(ContinuingRun(*dataset, {5, 4}));
  ASSERT_TRUE(alone.ok()) << alone.status();

  Times times;
  ClusterOptions options = ContinuingRun(*dataset, {5, 4, 5});
  options.expendable = {kVictim};
  options.wrap = [&times](std::unique_ptr<Client> client, Rank rank) {
    return std::make_unique<MortalClient>(std::move(client), rank, times);
  };
  const absl::StatusOr<RunSummary> survived = RunCluster(options);
  ASSERT_TRUE(survived.ok()) << survived.status();
  EXPECT_EQ(survived->snapshot->version, alone->snapshot->version);
  EXPECT_EQ(Sha256(*survived), Sha256(*alone));

  const std::map<Rank, absl::Duration> delays = times.Delays();
  ASSERT_EQ(delays.size(), 2);
  for (const auto& [rank, delay] : delays) {
    // A broken stream tells, long before the lease does.
    EXPECT_LT(delay, options.server.coordinator.lease / 2)
        << "rank " << rank.value();
    RecordProperty("repeated_after_ms", absl::ToInt64Milliseconds(delay));
  }
}

}  // namespace
}  // namespace cohort
