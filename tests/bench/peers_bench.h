#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace cohort::bench {

struct PeersOptions {
  // As the flags of the same names.
  int64_t elements = 0;
  int32_t steps = 1;
  int32_t pairs = 1;
  int64_t channels = 1;
  int32_t rounds = 1;
  std::string server_program;
  // A benchmark that was built from ps-lite; empty: ps-lite is skipped.
  std::string ps_lite_program;
  // Interpreters to look for PyTorch in, separated by commas.
  std::string python;
  // Busy processes beside the contenders.
  int32_t load = 0;
};

// Prints steps and rendezvous of Cohort and of other systems that took turns.
// Systems that are missing are skipped, with a line that says what to install
// or pass.
// Errors: those of Cohort at once; the first of another system after the
//   tables, which then lack it.
absl::Status BenchPeers(const PeersOptions& options);

}  // namespace cohort::bench
