// cohort-exchange-worker ADDRESS RANK SHAPE LOCAL: a worker of cohort-bench
// that pushes a constant gradient for every training assignment. Prints the
// seconds of each step and each rendezvous.

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "common/cli/command_line.h"
#include "common/float_buffer.h"
#include "common/log/log.h"
#include "common/status_macros.h"
#include "tests/bench/run_shape.h"
#include "worker/client/client.h"

namespace cohort::bench {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

SteadyTime Now() { return std::chrono::steady_clock::now(); }

double Seconds(SteadyTime from, SteadyTime to) {
  return std::chrono::duration<double>(to - from).count();
}

// Empty if it is not set.
std::string Variable(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

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

// Pushes a constant gradient for every training assignment.
class BenchWorker {
 public:
  BenchWorker(std::string server, Rank rank, const RunShape& shape,
              LocalMode local)
      : server_(std::move(server)), rank_(rank), shape_(shape), local_(local) {}

  absl::Status Run() {
    COHORT_ASSIGN_OR_RETURN(
        client_, MakeGrpcClient({.server = server_,
                                 .tls = {.cert = Variable("COHORT_TLS_CERT"),
                                         .key = Variable("COHORT_TLS_KEY"),
                                         .ca = Variable("COHORT_TLS_CA")},
                                 .rank = rank_,
                                 .batch_size = 1,
                                 .local = local_}));
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
    client_->Leave({.reason = "done"});
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
    const Contribution one{
        .moments = {.count = 2,
                    .first = std::vector<double>(channels, 1.0),
                    .second = std::vector<double>(channels, 1.0)}};
    std::vector<Contribution> local(static_cast<size_t>(shape_.together), one);
    for (int32_t call = 0; call < shape_.calls;) {
      for (Contribution& of : local) of.place.call = call++;
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
    if (shape_.channels > 0) {
      closing.batch_norm_calls = {shape_.calls};
      closing.contributions = shape_.calls;
    }
    return client_->ClosePush(closing).status();
  }

  const std::string server_;
  const Rank rank_;
  const RunShape shape_;
  const LocalMode local_;
  std::unique_ptr<Client> client_;
  std::vector<ByteRope> gradients_;
};

int Main(absl::Span<char* const> arguments) {
  int32_t rank = 0;
  if (arguments.size() != 5 || !absl::SimpleAtoi(arguments[2], &rank)) {
    absl::FPrintF(stderr,
                  "usage: cohort-exchange-worker ADDRESS RANK SHAPE LOCAL\n");
    return kExitUsage;
  }
  const absl::StatusOr<RunShape> shape = ShapeFromText(arguments[3]);
  if (!shape.ok()) {
    absl::FPrintF(stderr, "%s\n", shape.status().message());
    return kExitConfig;
  }
  SetLogLevel(LogLevel::kWarning);
  BenchWorker worker(arguments[1], Rank(rank), *shape,
                     LocalModeNamed(arguments[4]));
  const absl::Status status = worker.Run();
  if (!status.ok()) {
    absl::FPrintF(stderr, "rank %d: %s\n", rank, status.message());
    return kExitFailure;
  }
  for (double s : worker.step_seconds) absl::PrintF("step %.9f\n", s);
  for (double s : worker.rendezvous_seconds) {
    absl::PrintF("rendezvous %.9f\n", s);
  }
  return kExitOk;
}

}  // namespace
}  // namespace cohort::bench

int main(int argc, char** argv) {
  return cohort::bench::Main(absl::MakeSpan(argv, static_cast<size_t>(argc)));
}
