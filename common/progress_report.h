#pragma once

#include "absl/strings/string_view.h"

namespace cohort {

// The variable in which a supervisor passes one end of a socket pair to the
// process that it starts, as DESCRIPTOR:INODE. The process sends a byte there
// once it has made a step, so that restarts after it do not count as failed
// starts.
inline constexpr absl::string_view kProgressVariable = "COHORT_PROGRESS_FD";

// The process's side of it. Programs that this process starts do not inherit
// the descriptor.
// Thread safety: none.
class ProgressReport {
 public:
  // Reads the environment. Without the variable, or if the descriptor is
  // another file by now, Made does nothing.
  ProgressReport();

  // The process has made a step. Only the first call does anything; never
  // blocks.
  void Made();

 private:
  int fd_ = -1;
};

}  // namespace cohort
