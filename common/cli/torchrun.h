#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace cohort {

// The environment that torchrun and other launchers of torch.distributed give
// to a process, as a worker's flags by name:
//
//   rank    RANK, if WORLD_SIZE and MASTER_ADDR are set as well; RANK alone may
//           be anything
//
// MASTER_ADDR is the address of torch's own store, and not the server's.
// LOCAL_RANK does not set the device: it does not say that there are GPUs.
//
// Errors: InvalidArgument: RANK or WORLD_SIZE is not a number, or RANK is not
//   below WORLD_SIZE.
// Source: docs.pytorch.org/docs/stable/elastic/run.html, "Environment
//   Variables".
absl::StatusOr<std::map<std::string, std::string>> FlagsFromTorchrun(
    absl::Span<const std::string> environment);

}  // namespace cohort
