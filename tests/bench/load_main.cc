// cohort-load: a server with up to thousands of clients of the real library,
// as processes on this machine. Prints what the server spends on each.

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/cli/command_line.h"
#include "common/cli/file_limit.h"
#include "common/cli/lock_checks.h"
#include "common/log/log.h"
#include "common/status_macros.h"
#include "tests/bench/flag_list.h"
#include "tests/bench/load_clients.h"
#include "tests/bench/load_run.h"

ABSL_FLAG(
    std::string, table, "cost",
    "cost: what a worker costs the server, by the size of the cohort. "
    "deaths: many workers are killed in one step. stall: one worker reads "
    "nothing more. pulls: all read the weights at once");
ABSL_FLAG(std::string, clients, "8,1000",
          "cost: sizes of the cohort; the other tables use the last one");
ABSL_FLAG(int32_t, processes, 4, "processes that the clients are spread over");
ABSL_FLAG(int32_t, killed, 100, "deaths: workers that are killed");
ABSL_FLAG(int32_t, layers, 20, "batch-norm layers");
ABSL_FLAG(int64_t, channels, 64, "channels of each layer");
ABSL_FLAG(int64_t, elements, 20'000, "float32 weights");
ABSL_FLAG(int32_t, push_steps, 0,
          "timed steps that are a push only; 0: by the size of the cohort");
ABSL_FLAG(int32_t, rendezvous_steps, 0,
          "timed steps with batch norm; 0: by the size of the cohort");
ABSL_FLAG(int32_t, repeats, 1, "calls of each layer in those");
ABSL_FLAG(absl::Duration, rest, absl::Seconds(2),
          "time without messages other than heartbeats");
ABSL_FLAG(std::string, server_program, "",
          "cohort-server, such as that of another build; empty: the one beside "
          "this program");
ABSL_FLAG(std::string, server_flags, "",
          "further flags of the server, separated by blanks");
ABSL_FLAG(bool, check, false,
          "fail if a worker costs more descriptors, threads or memory than it "
          "should");
// Flags of a process of clients, which this program starts.
ABSL_FLAG(std::string, address, "", "run clients of the server there");
ABSL_FLAG(int32_t, server_process, 0, "its process id");
ABSL_FLAG(int32_t, first_rank, 0, "their lowest rank");

namespace cohort::bench {
namespace {

constexpr double kMicro = 1e6;
constexpr int64_t kKib = 1024;

std::vector<int32_t> Sizes() {
  std::vector<int32_t> sizes;
  for (absl::string_view size :
       absl::StrSplit(absl::GetFlag(FLAGS_clients), ',')) {
    int32_t number = 0;
    if (absl::SimpleAtoi(size, &number)) sizes.push_back(number);
  }
  return sizes;
}

LoadShape ShapeFromFlags() {
  return {.layers = absl::GetFlag(FLAGS_layers),
          .channels = absl::GetFlag(FLAGS_channels),
          .elements = absl::GetFlag(FLAGS_elements),
          .push_steps = absl::GetFlag(FLAGS_push_steps),
          .rendezvous_steps = absl::GetFlag(FLAGS_rendezvous_steps),
          .repeats = absl::GetFlag(FLAGS_repeats),
          .rest = absl::GetFlag(FLAGS_rest)};
}

// Enough contributions to time them.
LoadShape ShapeFor(int32_t workers) {
  constexpr int32_t kPushes = 8000;
  constexpr int32_t kContributions = 120'000;
  LoadShape shape = ShapeFromFlags();
  if (shape.push_steps == 0) {
    shape.push_steps = std::clamp(kPushes / workers, 4, 400);
  }
  if (shape.rendezvous_steps == 0) {
    shape.rendezvous_steps =
        std::clamp(kContributions / (2 * shape.layers * workers), 2, 100);
  }
  return shape;
}

LoadRun::Options OptionsFor(int32_t workers, const LoadShape& shape) {
  LoadRun::Options options{
      .server_program = absl::GetFlag(FLAGS_server_program),
      .workers = workers,
      .shape = shape};
  options.server_flags =
      absl::StrSplit(absl::GetFlag(FLAGS_server_flags), ' ', absl::SkipEmpty());
  return options;
}

LoadCost CostOf(const LoadReport& report, const std::string& kind) {
  const auto at = report.costs.find(kind);
  return at == report.costs.end() ? LoadCost() : at->second;
}

// CPU microseconds of the server a second that a worker does nothing.
double RestMicroseconds(const LoadReport& report, int32_t workers) {
  const LoadCost rest = CostOf(report, "rest");
  return rest.seconds <= 0
             ? 0
             : kMicro * rest.cpu_seconds / (rest.seconds * workers);
}

// The same for one contribution or push of one worker: all, and without what
// the time that it takes would have cost at rest.
struct Each {
  double all = 0;
  double further = 0;
};
Each MicrosecondsEach(const LoadReport& report, const std::string& kind,
                      int32_t workers) {
  const LoadCost cost = CostOf(report, kind);
  if (cost.count <= 0) return {};
  const double all = kMicro * cost.cpu_seconds / (cost.count * workers);
  return {.all = all,
          .further = all - RestMicroseconds(report, workers) * cost.seconds /
                               cost.count};
}

double QuantileOf(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share *
                                    static_cast<double>(values.size() - 1))];
}

std::vector<double> Spreads(const LoadReport& report) {
  std::vector<double> spreads;
  for (const auto& [call, period] : report.answers) {
    spreads.push_back(period.second - period.first);
  }
  return spreads;
}

absl::Status CheckCosts(int32_t workers, const LoadRun& run,
                        const ProcessCosts& with) {
  // Three connections, whatever the size of the cohort. One more of each may be
  // on its way out.
  const int64_t files = with.open_files - run.before().open_files;
  if (files < 3 * workers || files > 3 * workers + 8) {
    return absl::FailedPreconditionError(
        absl::StrCat(workers, " workers: got ", files,
                     " further files of the server, want 3 a worker"));
  }
  constexpr int64_t kThreads = 16;
  if (with.threads > run.before().threads + kThreads) {
    return absl::FailedPreconditionError(absl::StrCat(
        workers, " workers: got ", with.threads - run.before().threads,
        " further threads of the server, want at most ", kThreads));
  }
  constexpr int64_t kBytesEach = int64_t{2} << 20;
  constexpr int64_t kBytes = int64_t{64} << 20;
  const int64_t bytes = with.resident_bytes - run.before().resident_bytes;
  if (bytes > kBytesEach * workers + kBytes) {
    return absl::FailedPreconditionError(
        absl::StrCat(workers, " workers: got ", bytes / kKib,
                     " KiB more memory of the server, want at most ",
                     (kBytesEach * workers + kBytes) / kKib));
  }
  return absl::OkStatus();
}

// Each of the others has begun the step again at least once.
absl::Status CheckRepeated(int32_t others, const LoadRun& run) {
  if (!absl::GetFlag(FLAGS_check) || run.report().repeated >= others) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("got ", run.report().repeated,
                   " repeated assignments, want at least ", others));
}

// The weights are not copied for each of those that read them.
absl::Status CheckPullMemory(int64_t bytes, const LoadShape& shape) {
  constexpr int64_t kBytes = int64_t{128} << 20;
  const int64_t most = 8 * shape.elements * 4 + kBytes;
  if (!absl::GetFlag(FLAGS_check) || bytes <= most) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "got ", bytes / kKib, " KiB more memory of the server, want at most ",
      most / kKib));
}

absl::Status CostRow(int32_t workers) {
  const LoadShape shape = ShapeFor(workers);
  COHORT_ASSIGN_OR_RETURN(const std::unique_ptr<LoadRun> run,
                          LoadRun::Start(OptionsFor(workers, shape)));
  const double begin = SteadySeconds();
  const double cpu = run->ServerCpu();
  COHORT_RETURN_IF_ERROR(run->AddPacks(absl::GetFlag(FLAGS_processes)));
  COHORT_RETURN_IF_ERROR(run->WaitForStep(0, run->packs()));
  const double joined = run->report().begun.at(0) - begin;
  const double joined_cpu = run->ServerCpu() - cpu;
  COHORT_RETURN_IF_ERROR(run->WaitForStep(shape.steps() - 1, 1));
  const ProcessCosts with = run->ServerCosts();
  COHORT_RETURN_IF_ERROR(run->WaitForEnd());
  const LoadReport& report = run->report();
  const std::vector<double> spreads = Spreads(report);
  const Each push = MicrosecondsEach(report, "push", workers);
  const Each rendezvous = MicrosecondsEach(report, "rendezvous", workers);
  absl::PrintF(
      "%-8d %8.0f %8.0f %8.0f %8.1f %8.1f %7.2f %7.2f %7.2f %7.2f %7.0f %6.2f "
      "%4d\n",
      workers, RestMicroseconds(report, workers), push.all, push.further,
      rendezvous.all, rendezvous.further, 1e3 * QuantileOf(spreads, 0.5),
      1e3 * QuantileOf(spreads, 0.99), joined, 1e3 * joined_cpu / workers,
      static_cast<double>(with.resident_bytes - run->before().resident_bytes) /
          static_cast<double>(kKib * workers),
      static_cast<double>(with.open_files - run->before().open_files) / workers,
      with.threads - run->before().threads);
  std::fflush(stdout);
  if (!absl::GetFlag(FLAGS_check)) return absl::OkStatus();
  return CheckCosts(workers, *run, with);
}

absl::Status CostTable() {
  const LoadShape shape = ShapeFromFlags();
  absl::PrintF(
      "%d batch-norm layers of %d channels, %d weights. The server's CPU time\n"
      "by worker: us a second at rest; us a push and a contribution to a\n"
      "rendezvous, with and without what the same time costs at rest; ms a\n"
      "join. Of a rendezvous: ms from the first to the last answer. Start: s\n"
      "until all have begun. A worker's further memory, files and threads.\n",
      shape.layers, shape.channels, shape.elements);
  absl::PrintF("%-8s %8s %8s %8s %8s %8s %7s %7s %7s %7s %7s %6s %4s\n",
               "workers", "rest", "push", "net", "rendez.", "net", "p50 ms",
               "p99 ms", "start s", "join", "KiB", "files", "thr.");
  for (const int32_t workers : Sizes()) {
    COHORT_RETURN_IF_ERROR(CostRow(workers));
  }
  return absl::OkStatus();
}

// Runs all clients but the last `fewer` in a pack of their own.
absl::StatusOr<std::unique_ptr<LoadRun>> StartWithLast(int32_t workers,
                                                       int32_t last,
                                                       LoadShape shape) {
  shape.push_steps = std::max(shape.push_steps, 1);
  shape.rendezvous_steps = std::max(shape.rendezvous_steps, 4);
  COHORT_ASSIGN_OR_RETURN(std::unique_ptr<LoadRun> run,
                          LoadRun::Start(OptionsFor(workers, shape)));
  const int32_t processes = std::max(absl::GetFlag(FLAGS_processes), 1);
  int32_t left = workers - last;
  const int32_t share = (left + processes - 1) / processes;
  while (left > 0) {
    COHORT_RETURN_IF_ERROR(run->AddPack(std::min(left, share)));
    left -= std::min(left, share);
  }
  COHORT_RETURN_IF_ERROR(run->AddPack(last));
  return run;
}

absl::Status DeathsTable() {
  const int32_t workers = Sizes().back();
  const int32_t killed = std::min(absl::GetFlag(FLAGS_killed), workers - 1);
  const LoadShape shape = ShapeFromFlags();
  COHORT_ASSIGN_OR_RETURN(const std::unique_ptr<LoadRun> run,
                          StartWithLast(workers, killed, shape));
  const int64_t step = std::max(shape.push_steps, 1) + shape.first_push_step();
  COHORT_RETURN_IF_ERROR(run->WaitForStep(step, run->packs()));
  const double cpu = run->ServerCpu();
  const double begin = SteadySeconds();
  run->Kill(static_cast<size_t>(run->packs() - 1));
  COHORT_RETURN_IF_ERROR(run->WaitForStep(step + 1, run->packs() - 1));
  const double took = run->report().begun.at(step + 1) - begin;
  const double spent = run->ServerCpu() - cpu;
  COHORT_RETURN_IF_ERROR(run->WaitForEnd());
  absl::PrintF(
      "%d of %d workers killed in step %d: the next step began after %.2f s "
      "(%.2f s of the server's CPU time); %d assignments were repeated\n",
      killed, workers, step, took, spent, run->report().repeated);
  return CheckRepeated(workers - killed, *run);
}

absl::Status StallTable() {
  const int32_t workers = Sizes().back();
  const LoadShape shape = ShapeFromFlags();
  COHORT_ASSIGN_OR_RETURN(const std::unique_ptr<LoadRun> run,
                          StartWithLast(workers, 1, shape));
  const int64_t step = std::max(shape.push_steps, 1) + shape.first_push_step();
  COHORT_RETURN_IF_ERROR(run->WaitForStep(step, run->packs()));
  const double begin = SteadySeconds();
  const auto stalled = static_cast<size_t>(run->packs() - 1);
  run->Signal(stalled, SIGSTOP);
  COHORT_RETURN_IF_ERROR(run->WaitForStep(step + 1, run->packs() - 1));
  const double took = run->report().begun.at(step + 1) - begin;
  const int64_t peak = run->ServerPeakBytes();
  run->Signal(stalled, SIGCONT);
  COHORT_RETURN_IF_ERROR(run->WaitForEnd());
  absl::PrintF(
      "1 of %d workers stopped in step %d: the next step began after %.2f s; "
      "%d assignments were repeated; the server's memory was at most %d MiB\n",
      workers, step, took, run->report().repeated, peak >> 20);
  return CheckRepeated(workers - 1, *run);
}

absl::Status PullsTable() {
  const int32_t workers = Sizes().back();
  LoadShape shape = ShapeFromFlags();
  shape.push_steps = std::max(shape.push_steps, 1);
  COHORT_ASSIGN_OR_RETURN(const std::unique_ptr<LoadRun> run,
                          LoadRun::Start(OptionsFor(workers, shape)));
  COHORT_RETURN_IF_ERROR(run->AddPacks(absl::GetFlag(FLAGS_processes)));
  COHORT_RETURN_IF_ERROR(
      run->WaitUntil([&] { return run->report().packs_registered > 0; }));
  const double cpu = run->ServerCpu();
  int64_t peak = 0;
  COHORT_RETURN_IF_ERROR(run->WaitUntil([&] {
    peak = std::max(peak, run->ServerPeakBytes());
    return run->report().packs_pulled == run->packs();
  }));
  const LoadReport& report = run->report();
  const double bytes = 4e-6 * static_cast<double>(shape.elements) * workers;
  absl::PrintF(
      "%d workers read %d weights each: the first had them %.2f s after all "
      "had registered, the last %.2f s (%.0f MB/s, %.2f s of the server's CPU "
      "time); the server's memory was at most %d MiB\n",
      workers, shape.elements, report.pulls_begun - report.registered,
      report.pulls_ended - report.registered,
      bytes / (report.pulls_ended - report.registered), run->ServerCpu() - cpu,
      peak >> 20);
  COHORT_RETURN_IF_ERROR(run->WaitForEnd());
  return CheckPullMemory(peak - run->before().resident_bytes, shape);
}

absl::Status MakeTable() {
  const std::string table = absl::GetFlag(FLAGS_table);
  const std::vector<int32_t> sizes = Sizes();
  if (sizes.empty() || *std::min_element(sizes.begin(), sizes.end()) < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("--clients: got \"", absl::GetFlag(FLAGS_clients),
                     "\", want numbers of at least 2"));
  }
  if (table == "cost") return CostTable();
  if (table == "deaths") return DeathsTable();
  if (table == "stall") return StallTable();
  if (table == "pulls") return PullsTable();
  return absl::InvalidArgumentError(absl::StrCat(
      "--table: got \"", table, "\", want cost, deaths, stall or pulls"));
}

absl::Status RunClients() {
  return RunLoadClients({.server = absl::GetFlag(FLAGS_address),
                         .server_process = absl::GetFlag(FLAGS_server_process),
                         .first_rank = absl::GetFlag(FLAGS_first_rank),
                         .clients = Sizes().at(0),
                         .shape = ShapeFromFlags()});
}

void PrintHelp() {
  absl::PrintF(
      "cohort-load: many clients of one server\n\nExamples:\n"
      "  cohort-load\n  cohort-load --table=deaths --clients=1000\n\n"
      "Flags with their defaults:\n");
  PrintFlagsOf("load_main.cc");
}

int Main(absl::Span<char* const> arguments) {
  const absl::StatusOr<HelpRequest> help = SetFlags(arguments);
  if (!help.ok()) {
    absl::FPrintF(stderr, "cohort-load: %s\n", help.status().message());
    return ExitCodeOf(help.status());
  }
  if (help->asked) {
    PrintHelp();
    return kExitOk;
  }
  SetLogLevel(LogLevel::kWarning);
  RaiseFileLimit();
  TurnOffLockChecks();
  const absl::Status status =
      absl::GetFlag(FLAGS_address).empty() ? MakeTable() : RunClients();
  if (status.ok()) return kExitOk;
  absl::FPrintF(stderr, "cohort-load: %s\n", status.message());
  return ExitCodeOf(status) == kExitConfig ? kExitConfig : kExitFailure;
}

}  // namespace
}  // namespace cohort::bench

int main(int argc, char** argv) {
  return cohort::bench::Main(
      absl::MakeConstSpan(argv, static_cast<size_t>(argc)));
}
