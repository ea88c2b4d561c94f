#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace cohort {

// How gradients and weights travel between a worker and a server on the same
// host.
enum class LocalMode {
  // Through shared memory if the server offers it and can be reached, else over
  // its Unix socket, else TCP.
  kAuto,
  // Through shared memory, or not at all.
  kSharedMemory,
  // Over a Unix socket, or not at all.
  kUnix,
  kTcp,
};

// `name` is auto, shm, unix or tcp.
inline LocalMode LocalModeNamed(absl::string_view name) {
  if (name == "shm") return LocalMode::kSharedMemory;
  if (name == "unix") return LocalMode::kUnix;
  return name == "tcp" ? LocalMode::kTcp : LocalMode::kAuto;
}

}  // namespace cohort
