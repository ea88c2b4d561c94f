#include "tests/bench/training_bench.h"

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "tests/fakes/forwarding_client.h"
#include "tests/integration/cluster.h"

namespace cohort::bench {
namespace {

constexpr int64_t kBatch = 64;
// Steps before the clock starts: oneDNN compiles, memory is mapped.
constexpr int64_t kWarmUp = 5;

using SteadyTime = std::chrono::steady_clock::time_point;

// Notes when each push of one worker was answered.
class TimingClient final : public ForwardingClient {
 public:
  TimingClient(std::unique_ptr<Client> client, std::vector<SteadyTime>* times)
      : ForwardingClient(std::move(client)), times_(times) {}

  absl::StatusOr<PushResult> ClosePush(const PushClosing& closing) override {
    absl::StatusOr<PushResult> result = next().ClosePush(closing);
    if (times_ != nullptr) times_->push_back(std::chrono::steady_clock::now());
    return result;
  }

 private:
  std::vector<SteadyTime>* times_;
};

}  // namespace

absl::StatusOr<double> TrainingImagesPerSecond(int32_t workers, int32_t steps) {
  const int64_t global_batch = kBatch * workers;
  COHORT_ASSIGN_OR_RETURN(
      const std::unique_ptr<Dataset> dataset,
      MakeDataset({.name = "synthetic",
                   .train_limit = (steps + kWarmUp) * global_batch,
                   .test_limit = 0}));
  std::vector<SteadyTime> times;
  ClusterOptions options;
  options.batch_sizes.assign(static_cast<size_t>(workers), kBatch);
  options.model = "cnn";
  options.dataset = dataset.get();
  options.server.coordinator.epochs = 1;
  options.wrap = [&times](std::unique_ptr<Client> client, Rank rank) {
    return std::make_unique<TimingClient>(std::move(client),
                                          rank == Rank(0) ? &times : nullptr);
  };
  COHORT_RETURN_IF_ERROR(RunCluster(std::move(options)).status());
  const std::chrono::duration<double> seconds =
      times.back() - times[kWarmUp - 1];
  return static_cast<double>(steps * global_batch) / seconds.count();
}

}  // namespace cohort::bench
