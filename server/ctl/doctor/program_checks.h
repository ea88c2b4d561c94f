#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/ctl/doctor/check.h"

namespace cohort {

// A program on this machine.
struct InstalledProgram {
  std::string name;
  // Its version and commit, such as "0.1.0 (commit 0f79f3a0b1c2)"; empty if it
  // is not there.
  std::string build;
  // Why the build is not known although the program is there.
  std::string problem;
};

// Runs `folder`/`name` --version; if it has not ended after `timeout`, it is
// killed.
InstalledProgram ReadProgram(const std::string& folder, const std::string& name,
                             absl::Duration timeout);

// Checks whether the programs with which `cohortctl run` would start a run are
// of the same build as this one. A program that is not there is no fault: a
// server's machine needs no cohort-worker.
Check CheckPrograms(absl::string_view own,
                    absl::Span<const InstalledProgram> programs);

}  // namespace cohort
