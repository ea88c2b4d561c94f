// cohort-measure --what=NAME: one measurement in this process, for
// cohort_bench.py. Prints lines of a name and numbers; times are in seconds.

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/check.h"
#include "common/cli/command_line.h"
#include "common/log/log.h"
#include "common/status_macros.h"
#include "tests/bench/core_bench.h"
#include "tests/bench/kernel_bench.h"
#include "tests/bench/scrape_bench.h"
#include "tests/bench/tcp_baseline.h"
#include "tests/bench/training_bench.h"
#include "worker/train/threads.h"

ABSL_FLAG(std::string, what, "",
          "copy, tcp_exchange, tcp_rendezvous, training, batch_norm, fold, "
          "scrape or core");
ABSL_FLAG(int32_t, workers, 1, "peers, workers or contributors");
ABSL_FLAG(int32_t, rounds, 1, "timed rounds, steps or scrapes");
ABSL_FLAG(int64_t, elements, 1, "float32 that are copied, sent or folded");
ABSL_FLAG(std::string, model, "cnn", "training: the network");
ABSL_FLAG(int64_t, batch_size, 64, "training: images of a worker and step");
ABSL_FLAG(bool, local, false, "training: local normalisation");
ABSL_FLAG(int32_t, min_pushes, 0, "training: pushes that a step needs");
ABSL_FLAG(double, pause_s, 0, "training: of the last rank before each step");
ABSL_FLAG(double, sample_pause_s, 0,
          "training: of each rank for each sample; of the last three times");
ABSL_FLAG(std::vector<std::string>, shares, {}, "training: weights by rank");
ABSL_FLAG(bool, send_after, false,
          "training: hold gradients back until the backward pass is over");
ABSL_FLAG(int64_t, images, 1, "batch_norm: of the tensor");
ABSL_FLAG(int64_t, channels, 1, "batch_norm: of the tensor");
ABSL_FLAG(int64_t, side, 1, "batch_norm: of an image");
ABSL_FLAG(bool, channels_last, false, "batch_norm: the layout");
ABSL_FLAG(std::string, optimizer, "sgd", "fold: sgd, momentum or adam");
ABSL_FLAG(int32_t, partitions, 4, "core: of the model");
ABSL_FLAG(bool, first_last, false, "core: rank 0 contributes last");

namespace cohort::bench {
namespace {

void Print(const char* name, double value) {
  absl::PrintF("%s %.9f\n", name, value);
}

// Prints each step, and the CPU time of one.
absl::Status MeasureMachine(const std::string& what) {
  const int64_t bytes = 4 * absl::GetFlag(FLAGS_elements);
  const int32_t rounds = absl::GetFlag(FLAGS_rounds);
  const int32_t workers = absl::GetFlag(FLAGS_workers);
  const double before = ProcessSeconds();
  std::vector<double> steps;
  if (what == "copy") {
    steps = CopySeconds(bytes, rounds);
  } else if (what == "tcp_exchange") {
    COHORT_ASSIGN_OR_RETURN(steps, TcpExchangeSeconds(workers, bytes, rounds));
  } else {
    COHORT_ASSIGN_OR_RETURN(steps,
                            TcpRendezvousSeconds(workers, bytes, rounds));
  }
  for (const double step : steps) Print("step", step);
  Print("cpu", (ProcessSeconds() - before) / rounds);
  return absl::OkStatus();
}

absl::Status MeasureTraining() {
  ShareOptions shares;
  for (const std::string& weight : absl::GetFlag(FLAGS_shares)) {
    COHORT_CHECK(absl::SimpleAtoi(weight, &shares.weights.emplace_back()),
                 weight);
  }
  COHORT_ASSIGN_OR_RETURN(
      const TrainingSeconds seconds,
      TimeTraining(
          {.workers = absl::GetFlag(FLAGS_workers),
           .model = absl::GetFlag(FLAGS_model),
           .batch_size = absl::GetFlag(FLAGS_batch_size),
           .steps = absl::GetFlag(FLAGS_rounds),
           .policy = {.pushes_min = absl::GetFlag(FLAGS_min_pushes),
                      .shares = shares,
                      .normalization = absl::GetFlag(FLAGS_local)
                                           ? NormalizationKind::kLocal
                                           : NormalizationKind::kAuto},
           .pause = absl::Seconds(absl::GetFlag(FLAGS_pause_s)),
           .sample_pause = absl::Seconds(absl::GetFlag(FLAGS_sample_pause_s)),
           .send_after_backward = absl::GetFlag(FLAGS_send_after)}));
  Print("step", seconds.step);
  Print("exposed", seconds.exposed);
  return absl::OkStatus();
}

// Prints the times of Cohort and of LibTorch.
void MeasureBatchNorm() {
  const BatchNormDuel duel =
      TimeBatchNorm({.images = absl::GetFlag(FLAGS_images),
                     .channels = absl::GetFlag(FLAGS_channels),
                     .side = absl::GetFlag(FLAGS_side),
                     .channels_last = absl::GetFlag(FLAGS_channels_last)},
                    absl::GetFlag(FLAGS_rounds));
  for (const auto& [name, of] : {std::pair{"forward", duel.forward},
                                 {"backward", duel.backward},
                                 {"both", duel.both}}) {
    absl::PrintF("%s %.9f %.9f\n", name, of.cohort, of.other);
  }
}

absl::Status MeasureFold() {
  COHORT_ASSIGN_OR_RETURN(
      const OptimizerKind rule,
      ParseChoice<OptimizerKind>("optimizer", absl::GetFlag(FLAGS_optimizer),
                                 {{"sgd", OptimizerKind::kSgd},
                                  {"momentum", OptimizerKind::kMomentum},
                                  {"adam", OptimizerKind::kAdam}}));
  const FoldTimes times =
      TimeFold({.rule = rule,
                .contributors = absl::GetFlag(FLAGS_workers),
                .elements = absl::GetFlag(FLAGS_elements)},
               absl::GetFlag(FLAGS_rounds));
  Print("whole", times.whole);
  Print("pieces", times.pieces);
  Print("sweep", times.sweep);
  return absl::OkStatus();
}

absl::Status MeasureScrape() {
  COHORT_ASSIGN_OR_RETURN(
      const ScrapeCost cost,
      TimeScrapes(absl::GetFlag(FLAGS_workers), absl::GetFlag(FLAGS_rounds)));
  Print("page_bytes", static_cast<double>(cost.page_bytes));
  Print("seconds", cost.seconds);
  Print("cpu", cost.cpu_seconds);
  Print("gather_cpu", cost.gather_cpu_seconds);
  return absl::OkStatus();
}

// Prints mean and longest ns, and allocations, of each kind of event.
absl::Status PrintCore() {
  COHORT_ASSIGN_OR_RETURN(
      const auto costs,
      MeasureCore({.workers = absl::GetFlag(FLAGS_workers),
                   .steps = absl::GetFlag(FLAGS_rounds),
                   .partitions = absl::GetFlag(FLAGS_partitions),
                   .order = absl::GetFlag(FLAGS_first_last)
                                ? ArrivalOrder::kFirstLast
                                : ArrivalOrder::kAscending}));
  for (const auto& [event, cost] : costs) {
    absl::PrintF("%s %.1f %.1f %.2f\n", event, cost.mean_ns, cost.longest_ns,
                 cost.mean_allocations);
  }
  return absl::OkStatus();
}

absl::Status Measure(const std::string& what) {
  if (what == "copy" || what == "tcp_exchange" || what == "tcp_rendezvous") {
    return MeasureMachine(what);
  }
  if (what == "training") return MeasureTraining();
  if (what == "fold") return MeasureFold();
  if (what == "scrape") return MeasureScrape();
  if (what == "core") return PrintCore();
  if (what != "batch_norm")
    return absl::InvalidArgumentError("--what: " + what);
  MeasureBatchNorm();
  return absl::OkStatus();
}

int Main(absl::Span<char* const> arguments) {
  const absl::StatusOr<HelpRequest> read = SetFlags(arguments);
  absl::Status status = read.status();
  if (status.ok()) {
    SetArithmeticThreads(1);
    // Otherwise servers and workers of this process would log between lines.
    SetLogLevel(LogLevel::kWarning);
    status = Measure(absl::GetFlag(FLAGS_what));
  }
  if (status.ok()) return kExitOk;
  absl::FPrintF(stderr, "cohort-measure: %s\n", status.message());
  return kExitFailure;
}

}  // namespace
}  // namespace cohort::bench

int main(int argc, char** argv) {
  return cohort::bench::Main(
      absl::MakeConstSpan(argv, static_cast<size_t>(argc)));
}
