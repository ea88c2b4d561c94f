#include "tests/bench/exchange_bench.h"

#include <poll.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "server/ctl/cluster/child_process.h"
#include "server/ctl/cluster/programs.h"
#include "tests/bench/run_shape.h"

namespace cohort::bench {
namespace {

// The measures of worker 0, in seconds.
struct WorkerTimes {
  std::vector<double> steps;
  std::vector<double> rendezvous;
};

// Reads lines of `child` until it has ended, or until `enough` returns true.
// Errors: Internal if its exit code is not 0.
absl::Status ReadUntil(ChildProcess& child, const std::string& name,
                       const std::function<void(absl::string_view)>& on_line,
                       const std::function<bool()>& enough) {
  constexpr int kPollMs = 20;
  std::string last;
  const auto note = [&](absl::string_view line) {
    last = std::string(line);
    on_line(line);
  };
  while (!enough()) {
    const std::optional<ProcessEnd> end = child.TryReap(note);
    if (end.has_value()) {
      if (end->code == 0) return absl::OkStatus();
      return absl::InternalError(
          absl::StrCat(name, " ", end->Text(), ": ", last));
    }
    pollfd output{.fd = child.output(), .events = POLLIN, .revents = 0};
    poll(&output, child.output() < 0 ? 0 : 1, kPollMs);
    child.ReadLines(note);
  }
  return absl::OkStatus();
}

// The beginning of a command whose process has these certificates.
std::vector<std::string> With(const TlsFiles& tls) {
  if (!tls.encrypted()) return {};
  return {"/usr/bin/env", absl::StrCat("COHORT_TLS_CERT=", tls.cert),
          absl::StrCat("COHORT_TLS_KEY=", tls.key),
          absl::StrCat("COHORT_TLS_CA=", tls.ca)};
}

absl::StatusOr<std::unique_ptr<ChildProcess>> StartWith(
    const TlsFiles& tls, const std::vector<std::string>& words) {
  std::vector<std::string> command = With(tls);
  command.insert(command.end(), words.begin(), words.end());
  return ChildProcess::Start(command);
}

// Starts the server and workers as processes of their own, and waits for their
// end.
absl::StatusOr<WorkerTimes> RunShaped(const Served& served,
                                      const RunShape& shape) {
  COHORT_ASSIGN_OR_RETURN(const ClusterPrograms programs, FindPrograms(""));
  const std::string server =
      served.program.empty() ? programs.server : served.program;
  const std::string program = std::filesystem::path(programs.server)
                                  .replace_filename("cohort-exchange-worker")
                                  .string();
  std::vector<std::string> command = {
      server,
      "--listen=127.0.0.1:0",
      "--ops_listen=",
      absl::StrCat("--workers=", shape.workers),
      "--epochs=1",
      absl::StrCat("--optimizer=", served.optimizer),
      "--weight_decay=0"};
  // The program may be of a release without this flag.
  if (served.wire != "float32") {
    command.push_back(absl::StrCat("--wire=", served.wire));
  }
  COHORT_ASSIGN_OR_RETURN(const std::unique_ptr<ChildProcess> serving,
                          StartWith(served.server_tls, command));
  std::string address;
  const auto note_address = [&address](absl::string_view line) {
    const std::vector<absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits("listening on ", 1));
    if (parts.size() < 2 || !address.empty()) return;
    address = std::string(parts[1].substr(0, parts[1].find_first_of(" ,;")));
  };
  COHORT_RETURN_IF_ERROR(ReadUntil(*serving, "the server", note_address,
                                   [&address] { return !address.empty(); }));
  std::vector<std::unique_ptr<ChildProcess>> workers;
  for (int32_t rank = 0; rank < shape.workers; ++rank) {
    COHORT_ASSIGN_OR_RETURN(
        workers.emplace_back(),
        StartWith(served.worker_tls, {program, address, absl::StrCat(rank),
                                      ShapeText(shape), served.local}));
  }
  WorkerTimes times;
  const auto note_time = [&times](absl::string_view line) {
    double seconds = 0;
    if (absl::ConsumePrefix(&line, "step ")) {
      if (absl::SimpleAtod(line, &seconds)) times.steps.push_back(seconds);
    } else if (absl::ConsumePrefix(&line, "rendezvous ")) {
      if (absl::SimpleAtod(line, &seconds)) times.rendezvous.push_back(seconds);
    }
  };
  const auto never = [] { return false; };
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    COHORT_RETURN_IF_ERROR(ReadUntil(
        *workers[rank], absl::StrCat("worker ", rank),
        [&](absl::string_view line) {
          if (rank == 0) note_time(line);
        },
        never));
  }
  COHORT_RETURN_IF_ERROR(ReadUntil(
      *serving, "the server", [](absl::string_view) {}, never));
  return times;
}

}  // namespace

absl::StatusOr<std::vector<double>> ExchangeStepSeconds(const Served& server,
                                                        int32_t workers,
                                                        int64_t elements,
                                                        int32_t steps) {
  // Parameters of 2 MiB, as in a typical network of this size.
  RunShape shape{.workers = workers, .steps = steps + 2};
  constexpr int64_t kParameter = int64_t{1} << 19;
  for (int64_t left = elements; left > 0; left -= kParameter) {
    shape.parameters.push_back(std::min(left, kParameter));
  }
  COHORT_ASSIGN_OR_RETURN(const WorkerTimes times, RunShaped(server, shape));
  // The first steps map fresh memory.
  return std::vector<double>(times.steps.begin() + 2, times.steps.end());
}

absl::StatusOr<std::vector<double>> RendezvousSeconds(
    const Served& server, const RendezvousShape& shape) {
  constexpr int32_t kWarmUp = 200;
  const RunShape run{.workers = shape.workers,
                     .steps = 1,
                     .channels = shape.channels,
                     .calls = (shape.rounds + kWarmUp) * shape.together,
                     .together = shape.together,
                     .parameters = {1}};
  COHORT_ASSIGN_OR_RETURN(const WorkerTimes times, RunShaped(server, run));
  return std::vector<double>(times.rendezvous.begin() + kWarmUp,
                             times.rendezvous.end());
}

}  // namespace cohort::bench
