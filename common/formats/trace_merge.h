#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace cohort {

// One process in a merged timeline.
struct MergedProcess {
  // "worker 1".
  std::string name;
  int64_t spans = 0;
  // How far its times may be off from the server's; negative if unknown,
  // because only the wall clocks of the machines relate them.
  absl::Duration clock_error;
};

struct MergedTrace {
  std::string run;
  // Ordered by name, the server first.
  std::vector<MergedProcess> processes;
};

// Merges the files that TraceFile wrote in several processes of one run into
// `out`, as one timeline on the server's clock, which begins at 0:
//
//   {"displayTimeUnit":"ms","traceEvents":[...]}
//
// Times of a worker are shifted by the clock difference to the server that it
// measured, or by the difference of the wall clocks if it measured none. A file
// of a killed process may end anywhere.
//
// Errors: InvalidArgument: a file is not a trace of Cohort, is damaged before
//   its end, or is of another run; `out` is one of `files`. Those of
//   FileSystem.
absl::StatusOr<MergedTrace> MergeTraces(absl::Span<const std::string> files,
                                        const std::string& out);

}  // namespace cohort
