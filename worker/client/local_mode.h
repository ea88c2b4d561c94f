#pragma once

#include "absl/strings/string_view.h"

namespace cohort {

// How gradients and weights travel between a worker and a server on the same
// host.
enum class LocalMode {
  // Through shared memory if the server offers it and can be reached, else over
  // the connection to it.
  kAuto,
  // Through shared memory, or not at all.
  kSharedMemory,
  kTcp,
};

// `name` is auto, shm or tcp.
inline LocalMode LocalModeNamed(absl::string_view name) {
  if (name == "shm") return LocalMode::kSharedMemory;
  return name == "tcp" ? LocalMode::kTcp : LocalMode::kAuto;
}

}  // namespace cohort
