// cohort-exchange-worker: a worker of cohort_bench.py that pushes a constant
// gradient for every training assignment. Prints the seconds of each step and
// each rendezvous.

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/cli/command_line.h"
#include "common/host_memory.h"
#include "common/log/log.h"
#include "common/status_macros.h"
#include "worker/client/client.h"
#include "worker/session/host_model.h"
#include "worker/session/worker_session.h"

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
ABSL_FLAG(absl::Duration, gap, absl::ZeroDuration(),
          "of computing before each wait");

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
  absl::Duration gap;
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

// Received weights are not copied.
class BenchModel final : public HostModel {
 public:
  using HostModel::HostModel;
  absl::Status Load(absl::Span<const ByteRope> /*weights*/) override {
    return absl::OkStatus();
  }
};

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
    session_.emplace(*client_, WorkerSession::Options());
    COHORT_RETURN_IF_ERROR(session_->Join().status());
    COHORT_RETURN_IF_ERROR(Register());
    for (;;) {
      const SteadyTime start = Now();
      COHORT_ASSIGN_OR_RETURN(const Assignment next,
                              session_->NextAssignment());
      if (next.kind == AssignmentKind::kFinished) break;
      session_->Begin(next);
      COHORT_RETURN_IF_ERROR(Meet());
      COHORT_RETURN_IF_ERROR(Push());
      step_seconds.push_back(Seconds(start, Now()));
    }
    session_->Leave({.reason = "done"});
    return absl::OkStatus();
  }

  std::vector<double> step_seconds;
  std::vector<double> rendezvous_seconds;

 private:
  absl::Status Register() {
    ModelLayout layout = LayoutOf(shape_);
    std::vector<absl::Span<float>> parameters;
    for (const auto& parameter : layout.parameters) {
      numbers_.emplace_back(static_cast<size_t>(parameter.shape[0]), 1e-3f);
      parameters.push_back(absl::MakeSpan(numbers_.back()));
    }
    model_.emplace(std::move(parameters), [this](size_t parameter) {
      return HostModel::ParameterGradient{.data = numbers_[parameter].data()};
    });
    return session_->Register(
        std::move(layout),
        {.dataset = "bench",
         .dataset_digest = "0",
         .train_samples = int64_t{shape_.steps} * shape_.workers},
        model_->Values(), {}, *model_);
  }

  absl::Status Meet() {
    const auto channels = static_cast<size_t>(shape_.channels);
    const Contribution one{
        .moments = {.count = 2,
                    .first = std::vector<double>(channels, 1.0),
                    .second = std::vector<double>(channels, 1.0)}};
    std::vector<Contribution> local(static_cast<size_t>(shape_.together), one);
    for (int32_t call = 0; call < shape_.calls;) {
      for (Contribution& of : local) of.place.call = call++;
      const SteadyTime computes = Now();
      while (Now() - computes < absl::ToChronoNanoseconds(shape_.gap)) {
      }
      const SteadyTime start = Now();
      COHORT_RETURN_IF_ERROR(session_->Reduce(local).status());
      rendezvous_seconds.push_back(Seconds(start, Now()));
    }
    return absl::OkStatus();
  }

  absl::Status Push() {
    COHORT_RETURN_IF_ERROR(session_->Open({.samples = 1, .loss_weight = 1}));
    for (size_t i = 0; i < numbers_.size(); ++i) {
      COHORT_RETURN_IF_ERROR(session_->Finish(i));
    }
    PushClosing closing;
    if (shape_.channels > 0) closing.batch_norm_calls = {shape_.calls};
    const absl::Status status = session_->Close(std::move(closing)).status();
    session_->End(status);
    return status;
  }

  const std::string server_;
  const Rank rank_;
  const RunShape shape_;
  const LocalMode local_;
  // By parameter: its values, and its gradient.
  std::vector<std::vector<float>> numbers_;
  std::unique_ptr<Client> client_;
  std::optional<BenchModel> model_;
  std::optional<WorkerSession> session_;
};

int Main(absl::Span<char* const> arguments) {
  const absl::StatusOr<HelpRequest> read = SetFlags(arguments);
  absl::Status status = read.status();
  if (status.ok()) {
    SetLogLevel(LogLevel::kWarning);
    // As cohort-worker does.
    PrepareTransport(
        [](absl::string_view text) { Log(LogLevel::kDebug, text); });
    KeepFreedMemory();
    BenchWorker worker(absl::GetFlag(FLAGS_server),
                       Rank(absl::GetFlag(FLAGS_rank)),
                       {.workers = absl::GetFlag(FLAGS_workers),
                        .steps = absl::GetFlag(FLAGS_steps),
                        .elements = absl::GetFlag(FLAGS_elements),
                        .channels = absl::GetFlag(FLAGS_channels),
                        .calls = absl::GetFlag(FLAGS_calls),
                        .together = absl::GetFlag(FLAGS_together),
                        .gap = absl::GetFlag(FLAGS_gap)},
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
