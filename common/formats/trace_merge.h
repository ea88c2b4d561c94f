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
  // How far its times may be off from the server's; negative: unknown, because
  // only the wall clocks of the machines relate them.
  absl::Duration clock_error;
};

struct MergedTrace {
  std::string run;
  // In the order of their names, the server first.
  std::vector<MergedProcess> processes;
};

// Writes what TraceFile wrote in several processes of one run into `out` as one
// timeline on the server's clock, which begins at 0:
//
//   {"displayTimeUnit":"ms","traceEvents":[...]}
//
// Times of a worker are moved by what it found its clock to differ from the
// server's; of one that found nothing, by the wall clocks. A file whose process
// was killed may end anywhere.
//
// Errors: InvalidArgument: a file is no trace of Cohort, is damaged before its
//   end, or is of another run; `out` is one of `files`. Those of FileSystem.
absl::StatusOr<MergedTrace> MergeTraces(absl::Span<const std::string> files,
                                        const std::string& out);

}  // namespace cohort
