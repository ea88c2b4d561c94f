// cohort-bench: the cost of the exchange, compared with the speed of the
// machine. All ratios compare numbers of one run; absolute numbers depend on
// the machine.

#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/cli/command_line.h"
#include "common/formats/file_system.h"
#include "common/log/log.h"
#include "common/security/authority.h"
#include "common/status_macros.h"
#include "tests/bench/core_bench.h"
#include "tests/bench/exchange_bench.h"
#include "tests/bench/flag_list.h"
#include "tests/bench/kernel_bench.h"
#include "tests/bench/peer_processes.h"
#include "tests/bench/peers_bench.h"
#include "tests/bench/scrape_bench.h"
#include "tests/bench/tcp_baseline.h"
#include "tests/bench/training_bench.h"
#include "worker/train/threads.h"

ABSL_FLAG(int64_t, elements, 25'600'000,
          "float32 weights of the exchange (ResNet-50 has 25.6 million)");
ABSL_FLAG(std::string, server_program, "",
          "cohort-server of the exchange and the rendezvous, such as that of "
          "another build; empty: the one beside this program");
ABSL_FLAG(int32_t, steps, 10, "timed steps of each exchange");
ABSL_FLAG(int32_t, rounds, 5000, "timed rendezvous");
ABSL_FLAG(int64_t, channels, 64, "channels of the rendezvous");
ABSL_FLAG(int32_t, training_steps, 40, "timed training steps");
ABSL_FLAG(int32_t, pairs, 3,
          "timed pairs of runs in tls, local, wire, overlap, backup and peers");
ABSL_FLAG(int32_t, kernel_rounds, 21, "timed turns of each kernel");
ABSL_FLAG(int32_t, core_steps, 5, "timed steps of the core");
ABSL_FLAG(int32_t, core_workers, 1000,
          "the largest cohort of the core's table");
ABSL_FLAG(int32_t, core_partitions, 16'384,
          "partitions of the core's largest model");
ABSL_FLAG(std::string, ps_lite_program, "",
          "peers: a benchmark built from ps-lite (tests/bench/README.md); empty: "
          "ps-lite is skipped");
ABSL_FLAG(std::string, python, "python3,/usr/bin/python3",
          "peers: the interpreters to look for PyTorch in");
ABSL_FLAG(int32_t, load, 0, "peers: busy processes beside the contenders");
ABSL_FLAG(std::string, table, "",
          "the one table to make: exchange, rendezvous, tls, local, wire, "
          "training, overlap, backup, batch_norm, fold, scrape, core or peers; "
          "empty: all");

namespace cohort::bench {
namespace {

Served Plaintext() { return {.program = absl::GetFlag(FLAGS_server_program)}; }

absl::Status BenchExchange() {
  const int64_t elements = absl::GetFlag(FLAGS_elements);
  const int32_t steps = absl::GetFlag(FLAGS_steps);
  const int64_t bytes = elements * 4;
  const double copy = MemcpySeconds(bytes, steps);
  absl::PrintF("exchange of %.1f M float32 (median of %d steps, loopback)\n",
               static_cast<double>(elements) / 1e6, steps);
  absl::PrintF("%-10s %10s %10s %12s %12s\n", "workers", "s/step", "TCP s",
               "x memcpy", "x TCP");
  for (int32_t workers : {1, 2, 4}) {
    COHORT_ASSIGN_OR_RETURN(const double tcp,
                            TcpExchangeSeconds(workers, bytes, steps));
    COHORT_ASSIGN_OR_RETURN(
        const std::vector<double> seconds,
        ExchangeStepSeconds(Plaintext(), workers, elements, steps));
    const double median = Quantile(seconds, 0.5);
    absl::PrintF("%-10d %10.4f %10.4f %12.1f %12.2f\n", workers, median, tcp,
                 median / copy, median / tcp);
  }
  absl::PrintF("memcpy of the same bytes: %.4f s\n\n", copy);
  return absl::OkStatus();
}

// The way and number of contributions, and the times of Cohort and of bare TCP.
absl::Status BenchRendezvous() {
  const int64_t channels = absl::GetFlag(FLAGS_channels);
  const int32_t rounds = absl::GetFlag(FLAGS_rounds);
  absl::PrintF("rendezvous, %d channels, %d rounds, in microseconds\n",
               channels, rounds);
  absl::PrintF("%-8s %-9s %-5s %10s %10s %10s %10s %8s\n", "workers",
               "together", "way", "p50", "p99", "TCP p50", "TCP p99", "x TCP");
  for (const int32_t workers : {1, 2}) {
    COHORT_ASSIGN_OR_RETURN(
        const std::vector<double> tcp,
        TcpRendezvousSeconds(workers, channels * 16, rounds));
    for (const int32_t together : {1, 4}) {
      for (const char* const way : {"tcp", "shm"}) {
        Served served = Plaintext();
        served.local = way;
        COHORT_ASSIGN_OR_RETURN(const std::vector<double> cohort,
                                RendezvousSeconds(served, {.workers = workers,
                                                           .channels = channels,
                                                           .together = together,
                                                           .rounds = rounds}));
        const double p50 = Quantile(cohort, 0.5);
        const double bare = Quantile(tcp, 0.5);
        absl::PrintF("%-8d %-9d %-5s %10.1f %10.1f %10.1f %10.1f %8.2f\n",
                     workers, together, way, p50 * 1e6,
                     Quantile(cohort, 0.99) * 1e6, bare * 1e6,
                     Quantile(tcp, 0.99) * 1e6, p50 / bare);
      }
    }
  }
  absl::PrintF("\n");
  return absl::OkStatus();
}

// Certificates in a folder that ends with the program.
absl::StatusOr<Served> Encrypted(const std::string& folder) {
  COHORT_ASSIGN_OR_RETURN(
      const Authority authority,
      Authority::Create(RealFileSystem(), folder, "bench", absl::Hours(48)));
  Served served = Plaintext();
  COHORT_ASSIGN_OR_RETURN(served.server_tls,
                          authority.Issue({.domain = "bench",
                                           .run = "bench",
                                           .role = PeerRole::kServer,
                                           .number = 0},
                                          absl::Hours(24)));
  COHORT_ASSIGN_OR_RETURN(
      served.worker_tls,
      authority.Issue(
          {.domain = "bench", .run = "bench", .role = PeerRole::kWorker},
          absl::Hours(24)));
  return served;
}

// The cost of encryption: the same exchange and rendezvous without and with
// certificates, in turns, as ratios.
absl::Status BenchTls() {
  std::string folder =
      (std::filesystem::temp_directory_path() / "cohort-bench-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) {
    return absl::InternalError(absl::StrCat(folder, ": cannot be made"));
  }
  const absl::Cleanup remove = [&folder] {
    std::filesystem::remove_all(folder);
  };
  COHORT_ASSIGN_OR_RETURN(const Served encrypted, Encrypted(folder + "/pki"));
  const int64_t elements = absl::GetFlag(FLAGS_elements);
  const RendezvousShape shape{.channels = absl::GetFlag(FLAGS_channels),
                              .rounds = absl::GetFlag(FLAGS_rounds)};
  absl::PrintF("certificates against plaintext, 2 workers (pairs in turns)\n");
  absl::PrintF("%-12s %12s %12s %10s\n", "", "plaintext", "TLS", "x");
  for (int32_t pair = 0; pair < absl::GetFlag(FLAGS_pairs); ++pair) {
    double step[2] = {};
    double wait[2] = {};
    for (const int tls : {0, 1}) {
      const Served served = tls == 1 ? encrypted : Plaintext();
      COHORT_ASSIGN_OR_RETURN(
          const std::vector<double> steps,
          ExchangeStepSeconds(served, 2, elements, absl::GetFlag(FLAGS_steps)));
      COHORT_ASSIGN_OR_RETURN(const std::vector<double> waits,
                              RendezvousSeconds(served, shape));
      step[tls] = Quantile(steps, 0.5);
      wait[tls] = Quantile(waits, 0.5) * 1e6;
    }
    absl::PrintF("%-12s %12.4f %12.4f %10.2f\n", "s/step", step[0], step[1],
                 step[1] / step[0]);
    absl::PrintF("%-12s %12.1f %12.1f %10.2f\n", "us/wait p50", wait[0],
                 wait[1], wait[1] / wait[0]);
  }
  absl::PrintF("\n");
  return absl::OkStatus();
}

// One way of the exchange.
struct Way {
  const char* name = nullptr;
  Served served;
};

// The same exchange in two ways, in turns. CPU seconds are those of server and
// workers, with their start, by timed step.
absl::Status BenchWays(const Way& one, const Way& other) {
  const int64_t elements = absl::GetFlag(FLAGS_elements);
  const int32_t steps = absl::GetFlag(FLAGS_steps);
  absl::PrintF("%s and %s, exchange of %.1f M float32 (pairs in turns)\n",
               one.name, other.name, static_cast<double>(elements) / 1e6);
  absl::PrintF("%-8s %10s %10s %6s %10s %10s %6s %10s\n", "workers",
               absl::StrCat(one.name, " s"), absl::StrCat(other.name, " s"),
               "x", absl::StrCat(one.name, " cpu"),
               absl::StrCat(other.name, " cpu"), "x", "x memcpy");
  for (const int32_t workers : {1, 2}) {
    for (int32_t pair = 0; pair < absl::GetFlag(FLAGS_pairs); ++pair) {
      double step[2] = {};
      double cpu[2] = {};
      for (const int turn : {0, 1}) {
        const Served& served = turn == 0 ? one.served : other.served;
        const double before = ChildrenCpuSeconds();
        COHORT_ASSIGN_OR_RETURN(
            const std::vector<double> seconds,
            ExchangeStepSeconds(served, workers, elements, steps));
        step[turn] = Quantile(seconds, 0.5);
        cpu[turn] = (ChildrenCpuSeconds() - before) / steps;
      }
      absl::PrintF("%-8d %10.4f %10.4f %6.2f %10.4f %10.4f %6.2f %10.1f\n",
                   workers, step[0], step[1], step[1] / step[0], cpu[0], cpu[1],
                   cpu[1] / cpu[0],
                   step[1] / MemcpySeconds(elements * 4, steps));
    }
  }
  absl::PrintF("\n");
  return absl::OkStatus();
}

absl::Status BenchLocal() {
  Served shared = Plaintext();
  shared.local = "shm";
  return BenchWays({"TCP", Plaintext()}, {"shm", shared});
}

absl::Status BenchWire() {
  Served rounded = Plaintext();
  rounded.wire = "bf16";
  return BenchWays({"float32", Plaintext()}, {"bf16", rounded});
}

absl::Status BenchTraining() {
  const int32_t steps = absl::GetFlag(FLAGS_training_steps);
  absl::PrintF(
      "training of cnn, 64 images a worker, sync, global batch norm\n");
  absl::PrintF("%-10s %12s %12s\n", "workers", "images/s", "x one");
  double one = 0;
  for (int32_t workers : {1, 2}) {
    COHORT_ASSIGN_OR_RETURN(const TrainingSeconds seconds,
                            TimeTraining({.workers = workers, .steps = steps}));
    const double rate =
        static_cast<double>(kTrainingBatch) * workers / seconds.step;
    if (workers == 1) one = rate;
    absl::PrintF("%-10d %12.0f %12.2f\n", workers, rate, rate / one);
  }
  return absl::OkStatus();
}

struct BackupSeconds {
  double alone = 0;
  double with_slow = 0;
};

// Measures a pair in turns, because a machine's speed changes over minutes.
absl::StatusOr<BackupSeconds> TimeBackupWorkers(NormalizationKind kind) {
  const int32_t steps = absl::GetFlag(FLAGS_training_steps);
  COHORT_ASSIGN_OR_RETURN(
      const TrainingSeconds alone,
      TimeTraining(
          {.workers = 2, .steps = steps, .policy = {.normalization = kind}}));
  COHORT_ASSIGN_OR_RETURN(
      const TrainingSeconds with_slow,
      TimeTraining({.workers = 3,
                    .steps = steps,
                    .policy = {.pushes_min = 2, .normalization = kind},
                    .pause = absl::Seconds(10 * alone.step)}));
  return BackupSeconds{.alone = alone.step, .with_slow = with_slow.step};
}

// The part of the exchange that the backward pass hides: the same steps with
// gradients sent during it, and after it.
absl::Status BenchOverlap() {
  const int32_t steps = absl::GetFlag(FLAGS_training_steps);
  const int32_t pairs = absl::GetFlag(FLAGS_pairs);
  absl::PrintF(
      "\nexchange that is left after the backward pass of resnet18, 4 images a "
      "worker\n(median of %d pairs)\n",
      pairs);
  absl::PrintF("%-10s %14s %14s %12s\n", "workers", "sent after s",
               "sent during s", "hidden");
  for (int32_t workers : {1, 2}) {
    std::vector<double> after;
    std::vector<double> during;
    for (int pair = 0; pair < pairs; ++pair) {
      for (const bool send_after : {true, false}) {
        COHORT_ASSIGN_OR_RETURN(
            const TrainingSeconds seconds,
            TimeTraining({.workers = workers,
                          .model = "resnet18",
                          .batch_size = 4,
                          .steps = steps,
                          .send_after_backward = send_after}));
        (send_after ? after : during).push_back(seconds.exposed);
      }
    }
    const double exposed_after = Quantile(after, 0.5);
    const double exposed_during = Quantile(during, 0.5);
    absl::PrintF("%-10d %14.4f %14.4f %10.0f %%\n", workers, exposed_after,
                 exposed_during, 100 * (1 - exposed_during / exposed_after));
  }
  return absl::OkStatus();
}

// One worker of three takes ten times as long as the others.
absl::Status BenchBackupWorkers() {
  const int32_t pairs = absl::GetFlag(FLAGS_pairs);
  absl::PrintF(
      "\nsteps of cnn that need the first 2 pushes (--min_pushes=2): 2 "
      "workers,\nand with a third that is 10 times slower (median of %d "
      "pairs)\n",
      pairs);
  absl::PrintF("%-14s %12s %12s %12s\n", "normalisation", "2 alone s",
               "with slow s", "x alone");
  for (const NormalizationKind kind :
       {NormalizationKind::kGlobal, NormalizationKind::kLocal}) {
    std::vector<double> alone;
    std::vector<double> with_slow;
    std::vector<double> ratios;
    for (int pair = 0; pair < pairs; ++pair) {
      COHORT_ASSIGN_OR_RETURN(const BackupSeconds seconds,
                              TimeBackupWorkers(kind));
      alone.push_back(seconds.alone);
      with_slow.push_back(seconds.with_slow);
      ratios.push_back(seconds.with_slow / seconds.alone);
    }
    absl::PrintF("%-14s %12.4f %12.4f %12.2f\n",
                 kind == NormalizationKind::kGlobal ? "global" : "local",
                 Quantile(alone, 0.5), Quantile(with_slow, 0.5),
                 Quantile(ratios, 0.5));
  }
  return absl::OkStatus();
}

// One thread. 3 and 5 sweeps over the tensor are the minimum for forward and
// backward passes with statistics of a whole cohort.
absl::Status BenchBatchNorm() {
  const int32_t rounds = absl::GetFlag(FLAGS_kernel_rounds);
  absl::PrintF(
      "\nbatch norm of float32 in training, beside LibTorch's (medians of %d "
      "turns)\n",
      rounds);
  absl::PrintF("%-22s %6s %9s %8s %9s %8s %8s\n", "images x channels", "MiB",
               "forward s", "x torch", "backw. s", "x torch", "both x");
  for (const BatchNormSetup& size : {
           BatchNormSetup{.images = 16, .channels = 64, .side = 16},
           BatchNormSetup{.images = 32, .channels = 512, .side = 8},
           BatchNormSetup{.images = 32, .channels = 64, .side = 32},
           BatchNormSetup{.images = 64, .channels = 2048, .side = 7},
           BatchNormSetup{.images = 2, .channels = 64, .side = 256},
       }) {
    for (const bool channels_last : {false, true}) {
      BatchNormSetup setup = size;
      setup.channels_last = channels_last;
      const BatchNormDuel duel = TimeBatchNorm(setup, rounds);
      const std::string name =
          absl::StrFormat("%dx%d %s", setup.images, setup.channels,
                          channels_last ? "channels_last" : "NCHW");
      absl::PrintF("%-22s %6.1f %9.6f %8.2f %9.6f %8.2f %8.2f\n", name,
                   setup.Mebibytes(), duel.forward.cohort, duel.forward.Ratio(),
                   duel.backward.cohort, duel.backward.Ratio(),
                   duel.both.Ratio());
    }
  }
  return absl::OkStatus();
}

absl::Status BenchFold() {
  const int32_t rounds = absl::GetFlag(FLAGS_kernel_rounds);
  const int64_t elements = absl::GetFlag(FLAGS_elements);
  absl::PrintF(
      "\nfold and update of %.1f M float32, with gradients whole and in 17 "
      "pieces a MiB,\nbeside a sweep over the same memory (medians of %d "
      "turns)\n",
      static_cast<double>(elements) / 1e6, rounds);
  absl::PrintF("%-10s %8s %10s %10s %10s %10s %10s\n", "optimizer", "workers",
               "whole s", "pieces s", "sweep s", "x whole", "x sweep");
  for (const FoldRule rule :
       {FoldRule::kSgd, FoldRule::kMomentum, FoldRule::kAdam}) {
    const char* name = rule == FoldRule::kAdam       ? "adam"
                       : rule == FoldRule::kMomentum ? "momentum"
                                                     : "sgd";
    for (const int32_t workers : {1, 2, 4, 16}) {
      const FoldTimes times = TimeFold(
          {.rule = rule, .contributors = workers, .elements = elements},
          rounds);
      absl::PrintF("%-10s %8d %10.4f %10.4f %10.4f %10.2f %10.2f\n", name,
                   workers, times.whole, times.pieces, times.sweep,
                   times.whole / times.pieces, times.sweep / times.pieces);
    }
  }
  return absl::OkStatus();
}

// The cost of one scrape a second.
absl::Status BenchScrape() {
  const int32_t scrapes = absl::GetFlag(FLAGS_kernel_rounds);
  absl::PrintF("\nscrape of a server's metrics (medians and means of %d)\n",
               scrapes);
  absl::PrintF("%-10s %10s %10s %10s %14s %16s\n", "workers", "page KiB", "ms",
               "CPU ms", "% of a core", "% for gathering");
  for (const int32_t workers : {2, 1000}) {
    COHORT_ASSIGN_OR_RETURN(const ScrapeCost cost,
                            TimeScrapes(workers, scrapes));
    absl::PrintF("%-10d %10d %10.2f %10.2f %14.2f %16.2f\n", workers,
                 cost.page_bytes / 1024, 1000 * cost.seconds,
                 1000 * cost.cpu_seconds, 100 * cost.cpu_seconds,
                 4 * 100 * cost.gather_cpu_seconds);
  }
  return absl::OkStatus();
}

// The state machine alone: costs that grow with the number of ranks.
// The cost of a message must not grow with the model.
absl::Status BenchLargeModels() {
  constexpr int32_t kWorkers = 8;
  absl::PrintF("\nevents of the core with %d workers, by size of the model\n",
               kWorkers);
  absl::PrintF("%-10s %-16s %10s %12s\n", "partitions", "event", "mean ns",
               "longest us");
  for (const int32_t partitions : {4, absl::GetFlag(FLAGS_core_partitions) / 16,
                                   absl::GetFlag(FLAGS_core_partitions)}) {
    COHORT_ASSIGN_OR_RETURN(
        const auto costs,
        MeasureCore(
            {.workers = kWorkers, .steps = 2, .partitions = partitions}));
    for (const char* const event : {"open", "gradient", "fold done", "close"}) {
      const EventCosts& cost = costs.at(event);
      absl::PrintF("%-10d %-16s %10.0f %12.1f\n", partitions, event,
                   cost.mean_ns, cost.longest_ns / 1e3);
    }
  }
  return absl::OkStatus();
}

absl::Status BenchCore() {
  const int32_t steps = absl::GetFlag(FLAGS_core_steps);
  absl::PrintF(
      "\nevents of the core in %d steps of ResNet-50's batch norm (CPU time; "
      "\"last\": rank 0\ncontributes last, so that nothing is folded "
      "before)\n",
      steps);
  absl::PrintF("%-8s %-6s %-16s %10s %12s %12s\n", "workers", "order", "event",
               "mean ns", "longest us", "allocations");
  for (const int32_t workers : {2, 8, 64, absl::GetFlag(FLAGS_core_workers)}) {
    for (const ArrivalOrder order :
         {ArrivalOrder::kAscending, ArrivalOrder::kFirstLast}) {
      COHORT_ASSIGN_OR_RETURN(
          const auto costs,
          MeasureCore({.workers = workers, .steps = steps, .order = order}));
      for (const auto& [event, cost] : costs) {
        absl::PrintF("%-8d %-6s %-16s %10.0f %12.1f %12.1f\n", workers,
                     order == ArrivalOrder::kFirstLast ? "last" : "rank", event,
                     cost.mean_ns, cost.longest_ns / 1e3,
                     cost.mean_allocations);
      }
    }
  }
  return BenchLargeModels();
}

absl::Status BenchOtherSystems() {
  return BenchPeers({.elements = absl::GetFlag(FLAGS_elements),
                     .steps = absl::GetFlag(FLAGS_steps),
                     .pairs = absl::GetFlag(FLAGS_pairs),
                     .channels = absl::GetFlag(FLAGS_channels),
                     .rounds = absl::GetFlag(FLAGS_rounds),
                     .server_program = absl::GetFlag(FLAGS_server_program),
                     .ps_lite_program = absl::GetFlag(FLAGS_ps_lite_program),
                     .python = absl::GetFlag(FLAGS_python),
                     .load = absl::GetFlag(FLAGS_load)});
}

struct Table {
  const char* name = nullptr;
  absl::Status (*make)() = nullptr;
};

absl::Status RunTables() {
  const std::string wanted = absl::GetFlag(FLAGS_table);
  bool found = false;
  for (const Table& table :
       {Table{"exchange", BenchExchange}, Table{"rendezvous", BenchRendezvous},
        Table{"tls", BenchTls}, Table{"local", BenchLocal},
        Table{"wire", BenchWire}, Table{"training", BenchTraining},
        Table{"overlap", BenchOverlap}, Table{"backup", BenchBackupWorkers},
        Table{"batch_norm", BenchBatchNorm}, Table{"fold", BenchFold},
        Table{"scrape", BenchScrape}, Table{"core", BenchCore},
        Table{"peers", BenchOtherSystems}}) {
    if (!wanted.empty() && wanted != table.name) continue;
    found = true;
    COHORT_RETURN_IF_ERROR(table.make());
  }
  if (found) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--table: got \"", wanted,
      "\", want exchange, rendezvous, tls, local, wire, training, overlap, "
      "backup, batch_norm, fold, scrape, core or peers"));
}

void PrintHelp() {
  absl::PrintF(
      "cohort-bench: times the exchange, the rendezvous, training and the\n"
      "kernels, beside plain TCP, memory, LibTorch and other "
      "systems\n\nExamples:\n"
      "  cohort-bench\n  cohort-bench --table=batch_norm\n"
      "  cohort-bench --elements=1000000\n\nFlags with their defaults:\n");
  PrintFlagsOf("cohort_bench.cc");
}

int Main(absl::Span<char* const> arguments) {
  const absl::StatusOr<HelpRequest> help = SetFlags(arguments);
  if (!help.ok()) {
    absl::FPrintF(stderr, "cohort-bench: %s\n", help.status().message());
    return ExitCodeOf(help.status());
  }
  if (help->asked) {
    PrintHelp();
    return kExitOk;
  }
  SetArithmeticThreads(1);
  for (const int64_t number :
       {absl::GetFlag(FLAGS_elements), absl::GetFlag(FLAGS_channels),
        int64_t{absl::GetFlag(FLAGS_steps)},
        int64_t{absl::GetFlag(FLAGS_rounds)},
        int64_t{absl::GetFlag(FLAGS_training_steps)},
        int64_t{absl::GetFlag(FLAGS_pairs)},
        int64_t{absl::GetFlag(FLAGS_kernel_rounds)}}) {
    if (number >= 1) continue;
    absl::FPrintF(stderr,
                  "cohort-bench: got %d for a number of elements, steps, "
                  "rounds or pairs, want at least 1\n",
                  number);
    return kExitUsage;
  }
  // Otherwise the servers and workers of this process would log between rows.
  SetLogLevel(LogLevel::kWarning);
  const absl::Status status = RunTables();
  if (status.ok()) return kExitOk;
  absl::FPrintF(stderr, "cohort-bench: %s\n", status.message());
  return kExitFailure;
}

}  // namespace
}  // namespace cohort::bench

int main(int argc, char** argv) {
  return cohort::bench::Main(
      absl::MakeConstSpan(argv, static_cast<size_t>(argc)));
}
