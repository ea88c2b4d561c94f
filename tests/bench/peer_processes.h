#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cohort::bench {

// The cost of a contender's step.
struct StepCost {
  // Each timed step, in seconds.
  std::vector<double> steps;
  // CPU time of all its processes, in seconds a timed step.
  double cpu = 0;
};

struct PeerProcess {
  // Its name in messages.
  std::string name;
  std::vector<std::string> command;
};

// Runs all processes side by side until they have ended, and passes on the
// lines that they print, with the number of the process.
// Errors: Internal if one cannot start, or ends with another exit code than 0,
//   with its last line; DeadlineExceeded after 300 s. The others are then
//   ended, because a peer usually waits for the missing one.
absl::Status RunPeers(
    const std::vector<PeerProcess>& processes,
    absl::FunctionRef<void(size_t, absl::string_view)> on_line);

// A shape of the exchange for a program of another system.
struct PeerShape {
  int32_t workers = 1;
  int64_t elements = 0;
  int32_t steps = 1;
};

// Reads the times that a benchmark of ps-lite prints in a worker. Three kinds
// of lines are understood:
//   "step SECONDS"                       a program written for this table
//   "... Application goodput: X Gbps"    bytedance's tests/test_benchmark
//   "... num = N, Push average time cost: Xms", and the same of Pull
//                                        dmlc's tests/test_kv_app_benchmark,
//                                        whose N is fixed: times are scaled
//                                        to `elements`
class PsLiteLines {
 public:
  // `bytes`: what a worker sends in a step, and gets.
  PsLiteLines(int64_t elements, int64_t bytes)
      : elements_(elements), bytes_(bytes) {}

  void Add(absl::string_view line);
  // Seconds of each step so far.
  const std::vector<double>& steps() const { return steps_; }

 private:
  const int64_t elements_;
  const int64_t bytes_;
  std::vector<double> steps_;
  // Seconds of the push whose pull is not printed yet.
  double push_ = 0;
};

// Steps of a benchmark of ps-lite: a scheduler, a server and the workers, all
// the same program. It is started as
//   PROGRAM BYTES STEPS 1
// with BYTES of each of NUM_KEY_PER_SERVER keys, DMLC_ROLE and the further
// DMLC_ variables of ps-lite, and LOG_DURATION=1 TOTAL_DURATION=STEPS.
// Errors: those of RunPeers; Internal if it prints no times.
absl::StatusOr<StepCost> PsLiteSteps(const std::string& program,
                                     const PeerShape& shape);

// Steps of gloo_bench.py; `what` as there.
// Errors: as above.
absl::StatusOr<StepCost> GlooSteps(const std::string& python,
                                   const std::string& what,
                                   const PeerShape& shape);

// The first interpreter of a list that is separated by commas and has the
// module; empty if none has.
std::string PythonWith(const std::string& module,
                       const std::string& interpreters);

// CPU seconds of all processes that this one has started and that have ended.
double ChildrenCpuSeconds();
// CPU seconds of this process.
double OwnCpuSeconds();

}  // namespace cohort::bench
