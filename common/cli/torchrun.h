#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace cohort {

// The worker's rank in the environment that torchrun and other launchers of
// torch.distributed give to a process: RANK, if WORLD_SIZE and MASTER_ADDR are
// set as well. RANK alone may be anything, and is ignored.
//
// MASTER_ADDR is the address of torch's own store, and not the server's.
// LOCAL_RANK does not set the device: it does not say that there are GPUs.
//
// Errors: InvalidArgument: RANK or WORLD_SIZE is not a number, or RANK is not
//   below WORLD_SIZE.
// Source: docs.pytorch.org/docs/stable/elastic/run.html, "Environment
//   Variables".
absl::StatusOr<std::optional<int32_t>> RankFromTorchrun(
    absl::Span<const std::string> environment);

}  // namespace cohort
