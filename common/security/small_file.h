#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cohort {

// The text of a file of at most 1 MiB that `flag` names. Follows links:
// Kubernetes mounts the files of a Secret as links, and replaces all of them at
// once by replacing a link.
// Errors: InvalidArgument naming the flag, the file and the reason.
absl::StatusOr<std::string> ReadSmallFile(absl::string_view flag,
                                          const std::string& path);

}  // namespace cohort
