#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace cohort {

// The executables that a cluster on this machine is made of.
struct ClusterPrograms {
  std::string server;
  std::string worker;
};

enum class WorkerProgram {
  // cohort-worker must be there.
  kCohortWorker,
  // The workers are other programs; `worker` stays empty.
  kOther,
};

// cohort-server and cohort-worker in `folder`; empty: beside this process's
// own executable.
// Errors: FailedPrecondition naming what is missing and what to do.
absl::StatusOr<ClusterPrograms> FindPrograms(
    const std::string& folder,
    WorkerProgram worker = WorkerProgram::kCohortWorker);

}  // namespace cohort
