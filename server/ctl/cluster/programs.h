#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace cohort {

// The executables that a cluster on this machine is made of.
struct ClusterPrograms {
  std::string server;
  std::string worker;
};

// cohort-server and cohort-worker in `folder`; empty: beside this process's
// own executable.
// Errors: FailedPrecondition naming what is missing and what to do.
absl::StatusOr<ClusterPrograms> FindPrograms(const std::string& folder);

}  // namespace cohort
