#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/ctl/cluster/child_process.h"
#include "tests/bench/load_clients.h"
#include "tests/bench/process_costs.h"

namespace cohort::bench {

// What the server spent on something, and how much of that there was for each
// worker.
struct LoadCost {
  double cpu_seconds = 0;
  double seconds = 0;
  double count = 0;
};

// What the clients of a run have reported; instants as in load_clients.h.
struct LoadReport {
  int32_t packs_registered = 0;
  int32_t packs_pulled = 0;
  double registered = 0;
  double pulls_begun = 0;
  double pulls_ended = 0;
  // By step: its beginning at the first client, and the number of packs that
  // have begun it.
  std::map<int64_t, double> begun;
  std::map<int64_t, int32_t> packs_begun;
  std::map<std::string, LoadCost> costs;
  // By rendezvous: its first and last answer.
  std::map<int64_t, std::pair<double, double>> answers;
  // Assignments that were not carried through.
  int64_t repeated = 0;

  // Reads a line of a pack.
  void Add(absl::string_view line);
};

// A server and its clients, as processes of their own. If anything fails, or
// takes longer than `patience` in all, the run ends.
class LoadRun {
 public:
  struct Options {
    // "" for the one beside this program.
    std::string server_program;
    std::vector<std::string> server_flags;
    int32_t workers = 0;
    LoadShape shape;
    absl::Duration patience = absl::Minutes(10);
  };

  // Starts the server; returns once it listens.
  static absl::StatusOr<std::unique_ptr<LoadRun>> Start(Options options);

  // Starts a process with the next ranks.
  absl::Status AddPack(int32_t clients);
  // Starts as many processes as needed so that all workers are there.
  absl::Status AddPacks(int32_t processes);
  int32_t packs() const { return static_cast<int32_t>(packs_.size()); }

  // Reads what the processes report until `done` returns true.
  // Errors: Internal if one ends that should not; DeadlineExceeded.
  absl::Status WaitUntil(const std::function<bool()>& done);
  // The same for a step that `packs` processes have begun.
  absl::Status WaitForStep(int64_t version, int32_t packs);
  // The same for the end of all processes.
  absl::Status WaitForEnd();
  // Reads what arrives within `time`.
  absl::Status Watch(absl::Duration time);

  // From now on the process may end as it likes.
  void Kill(size_t pack);
  void Signal(size_t pack, int number);

  const LoadReport& report() const { return report_; }
  ProcessCosts ServerCosts() const { return CostsOf(server_->pid()); }
  int64_t ServerPeakBytes() const { return PeakBytesOf(server_->pid()); }
  double ServerCpu() const { return CpuSecondsOf(server_->pid()); }
  // The costs of the server before its first client.
  const ProcessCosts& before() const { return before_; }

 private:
  struct Process {
    std::unique_ptr<ChildProcess> child;
    std::string name;
    std::string last_line;
    bool may_fail = false;
    bool ended = false;
  };

  explicit LoadRun(Options options) : options_(std::move(options)) {}
  // Reads the lines that have arrived, after waiting a little for some.
  absl::Status ReadOnce();
  absl::Status Read(Process& process,
                    const std::function<void(absl::string_view)>& on_line);

  const Options options_;
  double deadline_ = 0;
  std::string address_;
  Process serving_;
  ChildProcess* server_ = nullptr;
  ProcessCosts before_;
  std::vector<Process> packs_;
  int32_t ranks_ = 0;
  LoadReport report_;
};

// Seconds of the machine's steady clock.
double SteadySeconds();

}  // namespace cohort::bench
