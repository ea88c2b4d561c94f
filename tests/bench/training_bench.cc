#include "tests/bench/training_bench.h"

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "common/status_macros.h"
#include "tests/bench/tcp_baseline.h"
#include "tests/fakes/owning_client.h"
#include "tests/integration/cluster.h"

namespace cohort::bench {
namespace {

// Steps before the clock starts: oneDNN compiles, and memory is mapped.
constexpr int64_t kWarmUp = 5;

using Steady = std::chrono::steady_clock;

double SecondsBetween(Steady::time_point begin, Steady::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

// When each push of one worker was closed, and when it was answered.
struct PushTimes {
  std::vector<Steady::time_point> closed;
  std::vector<Steady::time_point> answered;
};

// Records the times of one worker. If configured, pauses before each
// assignment, also for each of its samples, and holds gradients back.
class TimingClient final : public OwningClient {
 public:
  TimingClient(std::unique_ptr<Client> client, PushTimes* times,
               absl::Duration pause, absl::Duration sample_pause, bool hold)
      : OwningClient(std::move(client)),
        times_(times),
        pause_(pause),
        sample_pause_(sample_pause),
        hold_(hold) {}

  absl::StatusOr<Assignment> NextAssignment() override {
    absl::StatusOr<Assignment> told = next().NextAssignment();
    if (told.ok() && told->kind == AssignmentKind::kTrain) {
      MutexLock lock(mu_);
      never_.WaitFor(mu_, pause_ + told->range.size() * sample_pause_);
    }
    return told;
  }
  absl::Status SendGradient(int32_t partition, ByteRope gradient,
                            absl::Span<const int32_t> absent) override {
    if (!hold_) {
      return next().SendGradient(partition, std::move(gradient), absent);
    }
    held_.push_back({.partition = partition,
                     .gradient = std::move(gradient),
                     .absent = {absent.begin(), absent.end()}});
    return absl::OkStatus();
  }
  absl::StatusOr<PushResult> ClosePush(const PushClosing& closing) override {
    if (times_ != nullptr) times_->closed.push_back(Steady::now());
    for (Held& held : std::exchange(held_, {})) {
      COHORT_RETURN_IF_ERROR(next().SendGradient(
          held.partition, std::move(held.gradient), held.absent));
    }
    absl::StatusOr<PushResult> result = next().ClosePush(closing);
    if (times_ != nullptr) times_->answered.push_back(Steady::now());
    return result;
  }

 private:
  struct Held {
    int32_t partition = 0;
    ByteRope gradient;
    std::vector<int32_t> absent;
  };

  PushTimes* const times_;
  const absl::Duration pause_;
  const absl::Duration sample_pause_;
  const bool hold_;
  std::vector<Held> held_;
  Mutex mu_;
  CondVar never_;
};

}  // namespace

absl::StatusOr<TrainingSeconds> TimeTraining(const TrainingSetup& setup) {
  COHORT_ASSIGN_OR_RETURN(
      const std::unique_ptr<Dataset> dataset,
      MakeDataset({.name = "synthetic",
                   .synthetic_train = (setup.steps + kWarmUp) *
                                      setup.batch_size * setup.workers,
                   .synthetic_test = 0}));
  PushTimes times;
  ClusterOptions options;
  options.batch_sizes.assign(static_cast<size_t>(setup.workers),
                             setup.batch_size);
  options.model = setup.model;
  options.dataset = dataset.get();
  options.server.coordinator.epochs = 1;
  options.server.coordinator.policy = setup.policy;
  options.wrap = [&](std::unique_ptr<Client> client, Rank rank) {
    const bool slow = rank.value() == setup.workers - 1;
    return std::make_unique<TimingClient>(
        std::move(client), rank == Rank(0) ? &times : nullptr,
        slow ? setup.pause : absl::ZeroDuration(),
        (slow ? 3 : 1) * setup.sample_pause, setup.send_after_backward);
  };
  COHORT_RETURN_IF_ERROR(RunCluster(std::move(options)).status());
  std::vector<double> exposed;
  for (size_t i = kWarmUp; i < times.answered.size(); ++i) {
    exposed.push_back(SecondsBetween(times.closed[i], times.answered[i]));
  }
  return TrainingSeconds{
      .step =
          SecondsBetween(times.answered[kWarmUp - 1], times.answered.back()) /
          static_cast<double>(times.answered.size() - kWarmUp),
      .exposed = Quantile(exposed, 0.5)};
}

}  // namespace cohort::bench
