#include "tests/bench/peers_bench.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "server/ctl/cluster/child_process.h"
#include "tests/bench/exchange_bench.h"
#include "tests/bench/peer_processes.h"
#include "tests/bench/tcp_baseline.h"

namespace cohort::bench {
namespace {

constexpr char kCohortShm[] = "Cohort shm";
constexpr char kCohortTcp[] = "Cohort tcp";

struct Contender {
  std::string name;
  std::function<absl::StatusOr<StepCost>()> measure;
};

// The median of each turn of a contender.
struct Turns {
  std::vector<double> seconds;
  std::vector<double> cpu;
};

// The systems of one call of BenchPeers, and what became of them.
class Peers {
 public:
  explicit Peers(const PeersOptions& options)
      : options_(options), torch_(PythonWith("torch", options.python)) {
    if (torch_.empty()) {
      Skip("gloo", absl::StrCat("no interpreter of --python=", options.python,
                                " has PyTorch: install python3-torch, or pass "
                                "one that has"));
    }
    if (options.ps_lite_program.empty()) {
      Skip("ps-lite",
           "pass --ps_lite_program=PATH, a benchmark built from ps-lite "
           "(tests/bench/README.md, \"Peers\")");
    }
  }

  absl::Status PrintSteps(int32_t workers);
  absl::Status PrintRendezvous();
  // The first error of another system.
  const absl::Status& failed() const { return failed_; }

 private:
  using AllTurns = std::map<std::string, Turns>;

  static void Skip(const std::string& name, const std::string& why) {
    absl::PrintF("%s: skipped: %s\n", name, why);
  }

  PeerShape Shape(int32_t workers) const {
    return {.workers = workers,
            .elements = options_.elements,
            .steps = options_.steps};
  }
  // Moments of a rendezvous: 16 bytes a channel.
  PeerShape RendezvousPeerShape() const {
    return {.workers = 2,
            .elements = options_.channels * 4,
            .steps = options_.rounds};
  }

  std::vector<Contender> StepContenders(int32_t workers) const;
  std::vector<Contender> RendezvousContenders() const;
  // Lets all take turns. One that fails is left out from then on.
  absl::StatusOr<AllTurns> TakeTurns(std::vector<Contender>& contenders);

  const PeersOptions& options_;
  // An interpreter that has PyTorch; may be empty.
  const std::string torch_;
  absl::Status failed_;
};

absl::StatusOr<StepCost> CohortSteps(const PeersOptions& options,
                                     const char* local, int32_t workers) {
  const Served served{.program = options.server_program,
                      .local = local,
                      .optimizer = "momentum"};
  const double before = ChildrenCpuSeconds();
  COHORT_ASSIGN_OR_RETURN(
      std::vector<double> seconds,
      ExchangeStepSeconds(served, workers, options.elements, options.steps));
  return StepCost{.steps = std::move(seconds),
                  .cpu = (ChildrenCpuSeconds() - before) / options.steps};
}

absl::StatusOr<StepCost> TcpSteps(const PeersOptions& options,
                                  int32_t workers) {
  const double before = OwnCpuSeconds();
  COHORT_ASSIGN_OR_RETURN(
      const double seconds,
      TcpExchangeSeconds(workers, options.elements * 4, options.steps));
  return StepCost{.steps = {seconds},
                  .cpu = (OwnCpuSeconds() - before) / options.steps};
}

absl::StatusOr<StepCost> CopySteps(const PeersOptions& options) {
  const double before = OwnCpuSeconds();
  const double seconds = MemcpySeconds(options.elements * 4, options.steps);
  return StepCost{.steps = {seconds},
                  .cpu = (OwnCpuSeconds() - before) / options.steps};
}

absl::StatusOr<StepCost> CohortRendezvous(const PeersOptions& options,
                                          const char* local) {
  COHORT_ASSIGN_OR_RETURN(
      std::vector<double> waits,
      RendezvousSeconds({.program = options.server_program, .local = local},
                        {.workers = 2,
                         .channels = options.channels,
                         .rounds = options.rounds}));
  return StepCost{.steps = std::move(waits)};
}

std::vector<Contender> Peers::StepContenders(int32_t workers) const {
  std::vector<Contender> all;
  for (const bool shared : {true, false}) {
    all.push_back({shared ? kCohortShm : kCohortTcp, [this, shared, workers] {
                     return CohortSteps(options_, shared ? "shm" : "tcp",
                                        workers);
                   }});
  }
  all.push_back({"memory copy", [this] { return CopySteps(options_); }});
  all.push_back(
      {"bare TCP", [this, workers] { return TcpSteps(options_, workers); }});
  if (!options_.ps_lite_program.empty()) {
    all.push_back({"ps-lite", [this, workers] {
                     return PsLiteSteps(options_.ps_lite_program,
                                        Shape(workers));
                   }});
  }
  // A group of one has nothing to exchange.
  if (torch_.empty() || workers == 1) return all;
  all.push_back({"gloo all-reduce", [this, workers] {
                   return GlooSteps(torch_, "all_reduce", Shape(workers));
                 }});
  all.push_back({"DDP over gloo", [this, workers] {
                   return GlooSteps(torch_, "ddp", Shape(workers));
                 }});
  return all;
}

std::vector<Contender> Peers::RendezvousContenders() const {
  std::vector<Contender> all;
  for (const bool shared : {true, false}) {
    all.push_back({shared ? kCohortShm : kCohortTcp, [this, shared] {
                     return CohortRendezvous(options_, shared ? "shm" : "tcp");
                   }});
  }
  all.push_back(
      {"bare TCP", [this]() -> absl::StatusOr<StepCost> {
         COHORT_ASSIGN_OR_RETURN(
             std::vector<double> waits,
             TcpRendezvousSeconds(2, options_.channels * 16, options_.rounds));
         return StepCost{.steps = std::move(waits)};
       }});
  if (torch_.empty()) return all;
  all.push_back({"gloo all-reduce", [this] {
                   return GlooSteps(torch_, "all_reduce",
                                    RendezvousPeerShape());
                 }});
  return all;
}

absl::StatusOr<Peers::AllTurns> Peers::TakeTurns(
    std::vector<Contender>& contenders) {
  AllTurns turns;
  for (int32_t pair = 0; pair < options_.pairs; ++pair) {
    for (auto it = contenders.begin(); it != contenders.end();) {
      const absl::StatusOr<StepCost> cost = it->measure();
      if (cost.ok()) {
        turns[it->name].seconds.push_back(Quantile(cost->steps, 0.5));
        turns[it->name].cpu.push_back(cost->cpu);
        ++it;
        continue;
      }
      if (it->name == kCohortShm || it->name == kCohortTcp) {
        return cost.status();
      }
      absl::PrintF("%s: failed: %s\n", it->name, cost.status().message());
      if (failed_.ok()) failed_ = cost.status();
      it = contenders.erase(it);
    }
  }
  return turns;
}

// "0.25 (0.22-0.27)": Cohort's time as a factor of a peer's, turn by turn.
std::string Ratios(const std::vector<double>& cohort,
                   const std::vector<double>& peer) {
  std::vector<double> ratios;
  for (size_t i = 0; i < peer.size(); ++i) {
    ratios.push_back(cohort[i] / peer[i]);
  }
  return absl::StrFormat("%.2f (%.2f-%.2f)", Quantile(ratios, 0.5),
                         Quantile(ratios, 0), Quantile(ratios, 1));
}

absl::Status Peers::PrintSteps(int32_t workers) {
  std::vector<Contender> contenders = StepContenders(workers);
  COHORT_ASSIGN_OR_RETURN(AllTurns turns, TakeTurns(contenders));
  for (const Contender& contender : contenders) {
    const Turns& own = turns[contender.name];
    absl::PrintF("%-16s %7d %8.4f %8.4f  %-18s %s\n", contender.name, workers,
                 Quantile(own.seconds, 0.5), Quantile(own.cpu, 0.5),
                 Ratios(turns[kCohortShm].seconds, own.seconds),
                 Ratios(turns[kCohortTcp].seconds, own.seconds));
  }
  return absl::OkStatus();
}

absl::Status Peers::PrintRendezvous() {
  std::vector<Contender> contenders = RendezvousContenders();
  COHORT_ASSIGN_OR_RETURN(AllTurns turns, TakeTurns(contenders));
  for (const Contender& contender : contenders) {
    const Turns& own = turns[contender.name];
    absl::PrintF("%-16s %10.1f  %-18s %s\n", contender.name,
                 Quantile(own.seconds, 0.5) * 1e6,
                 Ratios(turns[kCohortShm].seconds, own.seconds),
                 Ratios(turns[kCohortTcp].seconds, own.seconds));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchPeers(const PeersOptions& options) {
  const std::string& ps_lite = options.ps_lite_program;
  if (!ps_lite.empty() && access(ps_lite.c_str(), X_OK) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--ps_lite_program: got \"", ps_lite, "\", want an executable file"));
  }
  std::vector<std::unique_ptr<ChildProcess>> busy;
  for (int32_t i = 0; i < options.load; ++i) {
    COHORT_ASSIGN_OR_RETURN(
        busy.emplace_back(),
        ChildProcess::Start({"/bin/sh", "-c", "while :; do :; done"}));
  }
  absl::PrintF(
      "\nstep of %.1f M float32 with momentum, beside other systems (p50 of "
      "%d steps,\nmedian and range of %d turns, %d busy processes beside)\n",
      static_cast<double>(options.elements) / 1e6, options.steps, options.pairs,
      options.load);
  Peers peers(options);
  if (!ps_lite.empty()) {
    absl::PrintF(
        "ps-lite: upstream's benchmarks neither add the workers' gradients "
        "nor wait for all\nof them nor update weights, so they do less than a "
        "step of Cohort\n");
  }
  absl::PrintF("%-16s %7s %8s %8s  %-18s %s\n", "contender", "workers",
               "s/step", "cpu s", "shm / it", "tcp / it");
  for (const int32_t workers : {1, 2}) {
    COHORT_RETURN_IF_ERROR(peers.PrintSteps(workers));
  }
  absl::PrintF(
      "\nrendezvous of 2 workers, %d channels, beside other systems (p50 of %d "
      "waits,\nmedian and range of %d turns)\n%-16s %10s  %-18s %s\n",
      options.channels, options.rounds, options.pairs, "contender", "us",
      "shm / it", "tcp / it");
  COHORT_RETURN_IF_ERROR(peers.PrintRendezvous());
  return peers.failed();
}

}  // namespace cohort::bench
