#include "tests/bench/exchange_bench.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/float_buffer.h"
#include "common/status_macros.h"
#include "server/main/server.h"
#include "worker/client/client.h"

namespace cohort::bench {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

SteadyTime Now() { return std::chrono::steady_clock::now(); }

double Seconds(SteadyTime from, SteadyTime to) {
  return std::chrono::duration<double>(to - from).count();
}

struct RunShape {
  int32_t workers = 1;
  // Elements of the parameters, and channels of the one batch-norm layer.
  std::vector<int64_t> parameters;
  int64_t channels = 0;
  int32_t steps = 1;
  // Rendezvous a step, and how many are waited for at once.
  int32_t calls = 0;
  int32_t together = 1;
};

ModelLayout LayoutOf(const RunShape& shape) {
  ModelLayout layout;
  for (size_t i = 0; i < shape.parameters.size(); ++i) {
    layout.parameters.push_back(
        {.name = absl::StrCat("parameter", i), .shape = {shape.parameters[i]}});
  }
  if (shape.channels > 0) {
    layout.batch_norms.push_back(
        {.name = "bn", .channels = shape.channels, .affine = false});
  }
  return layout;
}

// Pushes a constant gradient whenever it is told to train.
class BenchWorker {
 public:
  BenchWorker(std::string server, Rank rank, const RunShape& shape)
      : server_(std::move(server)), rank_(rank), shape_(shape) {}

  absl::Status Run() {
    COHORT_ASSIGN_OR_RETURN(
        client_,
        MakeGrpcClient({.server = server_, .rank = rank_, .batch_size = 1}));
    COHORT_RETURN_IF_ERROR(client_->Join().status());
    COHORT_RETURN_IF_ERROR(Register());
    for (;;) {
      const SteadyTime start = Now();
      COHORT_ASSIGN_OR_RETURN(const Assignment next, client_->NextAssignment());
      if (next.kind == AssignmentKind::kFinished) break;
      COHORT_RETURN_IF_ERROR(Rendezvous(next));
      COHORT_RETURN_IF_ERROR(Push(next));
      step_seconds.push_back(Seconds(start, Now()));
    }
    client_->Leave("done");
    return absl::OkStatus();
  }

  std::vector<double> step_seconds;
  std::vector<double> rendezvous_seconds;

 private:
  absl::Status Register() {
    const ModelLayout layout = LayoutOf(shape_);
    std::vector<std::vector<float>> values;
    std::vector<absl::Span<const float>> spans;
    for (int64_t elements : shape_.parameters) {
      values.emplace_back(static_cast<size_t>(elements), 0.0f);
    }
    for (const std::vector<float>& v : values) spans.emplace_back(v);
    COHORT_ASSIGN_OR_RETURN(
        const Registration registration,
        client_->Register(
            layout,
            {.dataset = "bench",
             .dataset_digest = "0",
             .train_samples = int64_t{shape_.steps} * shape_.workers},
            spans, {}));
    for (const Partition& partition : registration.partitions) {
      auto buffer = std::make_shared<FloatBuffer>(partition.elements);
      std::fill_n(buffer->data(), buffer->size(), 1e-3f);
      gradients_.push_back(RopeOf(buffer));
    }
    return absl::OkStatus();
  }

  absl::Status Rendezvous(const Assignment& step) {
    const auto channels = static_cast<size_t>(shape_.channels);
    const CallMoments one{
        .moments = {.count = 1,
                    .first = std::vector<double>(channels, 1.0),
                    .second = std::vector<double>(channels, 1.0)}};
    std::vector<CallMoments> local(static_cast<size_t>(shape_.together), one);
    for (int32_t call = 0; call < shape_.calls;) {
      for (CallMoments& of : local) of.call = call++;
      const SteadyTime start = Now();
      COHORT_RETURN_IF_ERROR(
          client_
              ->Reduce({.step = step.version, .attempt = step.attempt}, local)
              .status());
      rendezvous_seconds.push_back(Seconds(start, Now()));
    }
    return absl::OkStatus();
  }

  absl::Status Push(const Assignment& step) {
    COHORT_RETURN_IF_ERROR(client_->OpenPush(
        {.version = step.version, .samples = 1, .loss_weight = 1}));
    for (size_t p = 0; p < gradients_.size(); ++p) {
      COHORT_RETURN_IF_ERROR(
          client_->SendGradient(static_cast<int32_t>(p), gradients_[p], {}));
    }
    PushClosing closing;
    if (shape_.channels > 0) closing.batch_norm_calls = {shape_.calls};
    return client_->ClosePush(closing).status();
  }

  const std::string server_;
  const Rank rank_;
  const RunShape shape_;
  std::unique_ptr<Client> client_;
  std::vector<ByteRope> gradients_;
};

absl::StatusOr<BenchWorker> RunShaped(const RunShape& shape) {
  std::ostringstream progress;
  ServerOptions options;
  options.listen = "127.0.0.1:0";
  options.coordinator.workers = shape.workers;
  options.coordinator.epochs = 1;
  options.coordinator.optimizer.kind = OptimizerKind::kSgd;
  options.coordinator.optimizer.weight_decay = 0;
  COHORT_ASSIGN_OR_RETURN(const std::unique_ptr<Server> server,
                          StartServer(options, progress));
  std::vector<BenchWorker> workers;
  for (int32_t r = 0; r < shape.workers; ++r) {
    workers.emplace_back(server->address(), Rank(r), shape);
  }
  std::vector<absl::Status> statuses(workers.size());
  {
    std::vector<std::jthread> threads;
    for (size_t r = 0; r < workers.size(); ++r) {
      threads.emplace_back(
          [&workers, &statuses, r] { statuses[r] = workers[r].Run(); });
    }
  }
  server->Wait();
  for (const absl::Status& status : statuses) COHORT_RETURN_IF_ERROR(status);
  return std::move(workers.front());
}

}  // namespace

absl::StatusOr<std::vector<double>> ExchangeStepSeconds(int32_t workers,
                                                        int64_t elements,
                                                        int32_t steps) {
  // Parameters of 2 MiB, as a network of this size has many.
  RunShape shape{.workers = workers, .steps = steps + 2};
  constexpr int64_t kParameter = int64_t{1} << 19;
  for (int64_t left = elements; left > 0; left -= kParameter) {
    shape.parameters.push_back(std::min(left, kParameter));
  }
  COHORT_ASSIGN_OR_RETURN(const BenchWorker worker, RunShaped(shape));
  // The first steps map fresh memory.
  return std::vector<double>(worker.step_seconds.begin() + 2,
                             worker.step_seconds.end());
}

absl::StatusOr<std::vector<double>> RendezvousSeconds(
    const RendezvousShape& shape) {
  constexpr int32_t kWarmUp = 200;
  const RunShape run{.workers = 2,
                     .parameters = {1},
                     .channels = shape.channels,
                     .steps = 1,
                     .calls = (shape.rounds + kWarmUp) * shape.together,
                     .together = shape.together};
  COHORT_ASSIGN_OR_RETURN(const BenchWorker worker, RunShaped(run));
  return std::vector<double>(worker.rendezvous_seconds.begin() + kWarmUp,
                             worker.rendezvous_seconds.end());
}

}  // namespace cohort::bench
