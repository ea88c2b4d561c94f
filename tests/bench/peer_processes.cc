#include "tests/bench/peer_processes.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "common/status_macros.h"
#include "server/ctl/cluster/child_process.h"

namespace cohort::bench {
namespace {

constexpr int32_t kPeerSecondsMax = 300;
// Steps before the clock counts: they map fresh memory.
constexpr int32_t kPeerWarmUp = 2;

double CpuSeconds(int whose) {
  rusage used{};
  getrusage(whose, &used);
  return absl::ToDoubleSeconds(absl::DurationFromTimeval(used.ru_utime) +
                               absl::DurationFromTimeval(used.ru_stime));
}

// The number between `before` and `after` in `line`.
std::optional<double> NumberBetween(absl::string_view line,
                                    absl::string_view before,
                                    absl::string_view after) {
  const size_t begin = line.find(before);
  if (begin == absl::string_view::npos) return std::nullopt;
  line.remove_prefix(begin + before.size());
  double number = 0;
  if (!absl::SimpleAtod(line.substr(0, line.find(after)), &number)) {
    return std::nullopt;
  }
  return number;
}

// ps-lite's scheduler takes a number, and cannot say which one it got.
absl::StatusOr<int32_t> FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const bool found =
      bind(fd, generic, length) == 0 && getsockname(fd, generic, &length) == 0;
  if (fd >= 0) close(fd);
  if (!found) return absl::UnavailableError("no port is free on loopback");
  return ntohs(address.sin_port);
}

// A process of RunPeers that may have ended.
struct Running {
  std::unique_ptr<ChildProcess> child;
  std::string last_line;
  bool ended = false;
};

void AwaitOutput(const std::vector<Running>& running) {
  constexpr int kPollMs = 20;
  std::vector<pollfd> outputs;
  for (const Running& one : running) {
    if (one.ended || one.child->output() < 0) continue;
    outputs.push_back(
        {.fd = one.child->output(), .events = POLLIN, .revents = 0});
  }
  poll(outputs.data(), outputs.size(), kPollMs);
}

}  // namespace

absl::Status RunPeers(
    const std::vector<PeerProcess>& processes,
    absl::FunctionRef<void(size_t, absl::string_view)> on_line) {
  std::vector<Running> running;
  for (const PeerProcess& process : processes) {
    COHORT_ASSIGN_OR_RETURN(running.emplace_back().child,
                            ChildProcess::Start(process.command));
  }
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::seconds(kPeerSecondsMax);
  for (size_t left = running.size(); left > 0;) {
    if (std::chrono::steady_clock::now() > end) {
      return absl::DeadlineExceededError(absl::StrCat(
          processes[0].name, ": not done after ", kPeerSecondsMax, " s"));
    }
    AwaitOutput(running);
    for (size_t i = 0; i < running.size(); ++i) {
      Running& one = running[i];
      if (one.ended) continue;
      const auto note = [&](absl::string_view line) {
        one.last_line = std::string(line);
        on_line(i, line);
      };
      one.child->ReadLines(note);
      const std::optional<ProcessEnd> ended = one.child->TryReap(note);
      if (!ended.has_value()) continue;
      one.ended = true;
      --left;
      if (ended->code == 0) continue;
      return absl::InternalError(absl::StrCat(
          processes[i].name, " ", ended->Text(), ": ", one.last_line));
    }
  }
  return absl::OkStatus();
}

void PsLiteLines::Add(absl::string_view line) {
  double seconds = 0;
  absl::string_view rest = line;
  if (absl::ConsumePrefix(&rest, "step ") && absl::SimpleAtod(rest, &seconds)) {
    steps_.push_back(seconds);
    return;
  }
  // Its "Avg latency" is in us although it says ns; the rate is right.
  if (const auto gbps = NumberBetween(line, "Application goodput: ", " Gbps")) {
    steps_.push_back(8 * static_cast<double>(bytes_) / (*gbps * 1e9));
    return;
  }
  const auto count = NumberBetween(line, "num = ", ",");
  if (!count.has_value()) return;
  const double scale = 1e-3 * static_cast<double>(elements_) / *count;
  if (const auto ms = NumberBetween(line, "Push average time cost: ", "ms")) {
    push_ = *ms * scale;
  } else if (const auto pull =
                 NumberBetween(line, "Pull average time cost: ", "ms")) {
    steps_.push_back(push_ + *pull * scale);
  }
}

absl::StatusOr<StepCost> PsLiteSteps(const std::string& program,
                                     const PeerShape& shape) {
  // Keys of about 2 MiB each, as Cohort's parameters.
  constexpr int64_t kKeyElements = int64_t{1} << 19;
  const int64_t keys = (shape.elements + kKeyElements - 1) / kKeyElements;
  const int64_t key_bytes = (shape.elements + keys - 1) / keys * 4;
  COHORT_ASSIGN_OR_RETURN(const int32_t port, FreePort());
  const int32_t all_steps = shape.steps + kPeerWarmUp;
  std::vector<PeerProcess> processes;
  const auto add = [&](const char* role, const std::string& name) {
    processes.push_back(
        {.name = absl::StrCat("ps-lite's ", name),
         .command = {"/usr/bin/env", absl::StrCat("DMLC_ROLE=", role),
                     "DMLC_NUM_SERVER=1",
                     absl::StrCat("DMLC_NUM_WORKER=", shape.workers),
                     "DMLC_PS_ROOT_URI=127.0.0.1",
                     absl::StrCat("DMLC_PS_ROOT_PORT=", port),
                     "DMLC_NODE_HOST=127.0.0.1",
                     // Without a group size, bytedance's server aborts.
                     "DMLC_GROUP_SIZE=1", "SKIP_DEV_ID_CHECK=1",
                     absl::StrCat("NUM_KEY_PER_SERVER=", keys),
                     "LOG_DURATION=1",
                     absl::StrCat("TOTAL_DURATION=", all_steps), program,
                     absl::StrCat(key_bytes), absl::StrCat(all_steps), "1"}});
  };
  add("scheduler", "scheduler");
  add("server", "server");
  for (int32_t rank = 0; rank < shape.workers; ++rank) {
    add("worker", absl::StrCat("worker ", rank));
  }
  constexpr size_t kFirstWorker = 2;
  PsLiteLines lines(shape.elements, keys * key_bytes);
  const double before = ChildrenCpuSeconds();
  COHORT_RETURN_IF_ERROR(RunPeers(processes, [&](size_t i, auto line) {
    if (i == kFirstWorker) lines.Add(line);
  }));
  StepCost cost{.steps = lines.steps()};
  if (cost.steps.empty()) {
    return absl::InternalError(absl::StrCat(
        program, ": printed no times in its worker; want lines such as ",
        "\"step 0.25\" (tests/bench/README.md, \"Peers\")"));
  }
  if (cost.steps.size() > kPeerWarmUp) {
    cost.steps.erase(cost.steps.begin(), cost.steps.begin() + kPeerWarmUp);
  }
  cost.cpu =
      (ChildrenCpuSeconds() - before) / static_cast<double>(cost.steps.size());
  return cost;
}

absl::StatusOr<StepCost> GlooSteps(const std::string& python,
                                   const std::string& what,
                                   const PeerShape& shape) {
  StepCost cost;
  COHORT_RETURN_IF_ERROR(
      RunPeers({{.name = "gloo",
                 .command = {"/usr/bin/env", python, "-B",
                             COHORT_BENCH_SCRIPTS "/gloo_bench.py",
                             absl::StrCat("--what=", what),
                             absl::StrCat("--workers=", shape.workers),
                             absl::StrCat("--elements=", shape.elements),
                             absl::StrCat("--steps=", shape.steps)}}},
               [&cost](size_t, absl::string_view line) {
                 double seconds = 0;
                 if (absl::ConsumePrefix(&line, "step ")) {
                   if (absl::SimpleAtod(line, &seconds))
                     cost.steps.push_back(seconds);
                 } else if (absl::ConsumePrefix(&line, "cpu ")) {
                   if (absl::SimpleAtod(line, &seconds)) cost.cpu = seconds;
                 }
               }));
  if (!cost.steps.empty()) return cost;
  return absl::InternalError("gloo_bench.py printed no times");
}

std::string PythonWith(const std::string& module,
                       const std::string& interpreters) {
  for (const absl::string_view python : absl::StrSplit(interpreters, ',')) {
    const absl::Status found =
        RunPeers({{.name = std::string(python),
                   .command = {"/usr/bin/env", std::string(python), "-c",
                               absl::StrCat("import ", module)}}},
                 [](size_t, absl::string_view) {});
    if (found.ok()) return std::string(python);
  }
  return "";
}

double ChildrenCpuSeconds() { return CpuSeconds(RUSAGE_CHILDREN); }

double OwnCpuSeconds() { return CpuSeconds(RUSAGE_SELF); }

}  // namespace cohort::bench
