#include "tests/bench/training_bench.h"

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "common/status_macros.h"
#include "tests/fakes/forwarding_client.h"
#include "tests/integration/cluster.h"

namespace cohort::bench {
namespace {

// Steps before the clock starts: oneDNN compiles, memory is mapped.
constexpr int64_t kWarmUp = 5;

using SteadyTime = std::chrono::steady_clock::time_point;

// Notes when each push of one worker was answered, and pauses before each
// assignment.
class TimingClient final : public ForwardingClient {
 public:
  TimingClient(std::unique_ptr<Client> client, std::vector<SteadyTime>* times,
               absl::Duration pause)
      : ForwardingClient(std::move(client)), times_(times), pause_(pause) {}

  absl::StatusOr<Assignment> NextAssignment() override {
    absl::StatusOr<Assignment> told = next().NextAssignment();
    if (told.ok() && told->kind == AssignmentKind::kTrain) {
      MutexLock lock(mu_);
      never_.WaitFor(mu_, pause_);
    }
    return told;
  }
  absl::StatusOr<PushResult> ClosePush(const PushClosing& closing) override {
    absl::StatusOr<PushResult> result = next().ClosePush(closing);
    if (times_ != nullptr) times_->push_back(std::chrono::steady_clock::now());
    return result;
  }

 private:
  std::vector<SteadyTime>* times_;
  const absl::Duration pause_;
  Mutex mu_;
  CondVar never_;
};

}  // namespace

absl::StatusOr<double> TrainingStepSeconds(const TrainingSetup& setup) {
  COHORT_ASSIGN_OR_RETURN(
      const std::unique_ptr<Dataset> dataset,
      MakeDataset({.name = "synthetic",
                   .train_limit =
                       (setup.steps + kWarmUp) * kTrainingBatch * setup.workers,
                   .test_limit = 0}));
  std::vector<SteadyTime> times;
  ClusterOptions options;
  options.batch_sizes.assign(static_cast<size_t>(setup.workers),
                             kTrainingBatch);
  options.model = "cnn";
  options.dataset = dataset.get();
  options.server.coordinator.epochs = 1;
  options.server.coordinator.policy = setup.policy;
  options.wrap = [&](std::unique_ptr<Client> client, Rank rank) {
    const bool paused = rank.value() == setup.workers - 1;
    return std::make_unique<TimingClient>(
        std::move(client), rank == Rank(0) ? &times : nullptr,
        paused ? setup.pause : absl::ZeroDuration());
  };
  COHORT_RETURN_IF_ERROR(RunCluster(std::move(options)).status());
  const std::chrono::duration<double> seconds =
      times.back() - times[kWarmUp - 1];
  return seconds.count() / static_cast<double>(times.size() - kWarmUp);
}

}  // namespace cohort::bench
