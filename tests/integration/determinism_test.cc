// Timing never affects the weights.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "common/permutation.h"
#include "tests/fakes/owning_client.h"
#include "tests/fakes/statuses.h"
#include "tests/integration/cluster.h"
#include "worker/train/threads.h"

namespace cohort {
namespace {

constexpr int kRuns = 50;
constexpr int64_t kSteps = 10;

// Delays every message of a worker by a random time, and sends the partitions
// of a push in random order, some of them twice.
class ErraticClient final : public OwningClient {
 public:
  ErraticClient(std::unique_ptr<Client> client, uint64_t seed)
      : OwningClient(std::move(client)), random_(seed) {}

  absl::StatusOr<Membership> Join() override {
    Pause();
    return next().Join();
  }
  absl::StatusOr<std::vector<Moments>> Reduce(
      const ReducePass& pass, absl::Span<const Contribution> local) override {
    Pause();
    return next().Reduce(pass, local);
  }
  absl::Status OpenPush(const PushOpening& opening) override {
    Pause();
    return next().OpenPush(opening);
  }
  absl::Status SendGradient(int32_t partition, ByteRope gradient,
                            absl::Span<const int32_t> absent) override {
    held_.push_back(
        {partition, std::move(gradient), {absent.begin(), absent.end()}});
    return absl::OkStatus();
  }
  absl::StatusOr<PushResult> ClosePush(const PushClosing& closing) override {
    for (size_t i = held_.size(); i > 1; --i) {
      std::swap(held_[i - 1], held_[random_.Below(i)]);
    }
    for (const Held& h : std::exchange(held_, {})) {
      const uint64_t times = 1 + random_.Below(2);
      for (uint64_t t = 0; t < times; ++t) {
        Pause();
        const absl::Status sent =
            next().SendGradient(h.partition, h.gradient, h.absent);
        if (!sent.ok()) return sent;
      }
    }
    return next().ClosePush(closing);
  }

 private:
  struct Held {
    int32_t partition = 0;
    ByteRope gradient;
    std::vector<int32_t> absent;
  };

  // Up to a millisecond: long compared with a message, short compared with a
  // test.
  void Pause() {
    MutexLock lock(mu_);
    never_.WaitFor(mu_, absl::Microseconds(random_.Below(1000)));
  }

  SplitMix64 random_;
  std::vector<Held> held_;
  Mutex mu_;
  CondVar never_;
};

ClusterOptions SmallRun(const Dataset& dataset) {
  ClusterOptions options{.batch_sizes = {5, 3, 4}, .dataset = &dataset};
  options.server.coordinator.epochs = 1;
  // Many partitions, so that their order matters.
  options.server.coordinator.partition_bytes = 512;
  return options;
}

TEST(DeterminismTest, FiftyRunsWithRandomTimingEndInTheSameSha256) {
  SetArithmeticThreads(1);
  const auto dataset = *MakeDataset({.name = "synthetic",
                                     .synthetic_train = kSteps * 12,
                                     .synthetic_test = 0});
  const RunSummary clean = OkValue(RunCluster(SmallRun(*dataset)));
  ASSERT_EQ(clean.snapshot->version, Version(kSteps));
  const std::string wanted = Sha256(clean);
  for (int run = 0; run < kRuns; ++run) {
    ClusterOptions options = SmallRun(*dataset);
    options.wrap = [run](std::unique_ptr<Client> client, Rank rank) {
      return std::make_unique<ErraticClient>(
          std::move(client), MixSeed(static_cast<uint64_t>(run),
                                     static_cast<uint64_t>(rank.value())));
    };
    const absl::StatusOr<RunSummary> summary = RunCluster(options);
    ASSERT_TRUE(summary.ok()) << "run " << run << ": " << summary.status();
    ASSERT_EQ(Sha256(*summary), wanted) << "run " << run;
  }
}

}  // namespace
}  // namespace cohort
