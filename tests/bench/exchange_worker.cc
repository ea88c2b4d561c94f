// cohort-exchange-worker: a worker of cohort_bench.py that pushes a constant
// gradient for every training assignment. Prints the seconds of each step and
// each rendezvous.

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "common/cli/command_line.h"
#include "common/float_buffer.h"
#include "common/log/log.h"
#include "common/status_macros.h"
#include "worker/client/client.h"

ABSL_FLAG(std::string, server, "", "its address");
ABSL_FLAG(int32_t, rank, 0, "of this worker");
ABSL_FLAG(std::string, local, "tcp", "how gradients and weights travel");
ABSL_FLAG(int32_t, workers, 1, "of the run");
ABSL_FLAG(int32_t, steps, 1, "of the run");
ABSL_FLAG(int64_t, elements, 1, "float32 weights, in parameters of 2 MiB");
ABSL_FLAG(int64_t, channels, 0,
          "of the one batch-norm layer; 0: there is none");
ABSL_FLAG(int32_t, calls, 0, "rendezvous a step");
ABSL_FLAG(int32_t, together, 1, "how many of them share a wait");

namespace cohort::bench {
namespace {

// The work of all workers of a run. They do no arithmetic.
struct RunShape {
  int32_t workers = 1;
  int32_t steps = 1;
  int64_t elements = 1;
  int64_t channels = 0;
  int32_t calls = 0;
  int32_t together = 1;
};

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
  // As in a typical network of 100 MB.
  constexpr int64_t kParameter = int64_t{1} << 19;
  ModelLayout layout;
  for (int64_t begin = 0; begin < shape.elements; begin += kParameter) {
    layout.parameters.push_back(
        {.name = absl::StrCat("parameter", begin),
         .shape = {std::min(kParameter, shape.elements - begin)}});
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
    for (const auto& parameter : layout.parameters) {
      values.emplace_back(static_cast<size_t>(parameter.shape[0]), 0.0f);
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
  const absl::StatusOr<HelpRequest> read = SetFlags(arguments);
  absl::Status status = read.status();
  if (status.ok()) {
    SetLogLevel(LogLevel::kWarning);
    BenchWorker worker(absl::GetFlag(FLAGS_server),
                       Rank(absl::GetFlag(FLAGS_rank)),
                       {.workers = absl::GetFlag(FLAGS_workers),
                        .steps = absl::GetFlag(FLAGS_steps),
                        .elements = absl::GetFlag(FLAGS_elements),
                        .channels = absl::GetFlag(FLAGS_channels),
                        .calls = absl::GetFlag(FLAGS_calls),
                        .together = absl::GetFlag(FLAGS_together)},
                       LocalModeNamed(absl::GetFlag(FLAGS_local)));
    status = worker.Run();
    for (double s : worker.step_seconds) absl::PrintF("step %.9f\n", s);
    for (double s : worker.rendezvous_seconds) {
      absl::PrintF("rendezvous %.9f\n", s);
    }
  }
  if (status.ok()) return kExitOk;
  absl::FPrintF(stderr, "cohort-exchange-worker: %s\n", status.message());
  return kExitFailure;
}

}  // namespace
}  // namespace cohort::bench

int main(int argc, char** argv) {
  return cohort::bench::Main(
      absl::MakeConstSpan(argv, static_cast<size_t>(argc)));
}
