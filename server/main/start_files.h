#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/formats/trace_file.h"

namespace cohort {

// The timeline of --trace; null if `path` is empty. `process` as in
// TraceFile::Create.
// Errors: FailedPrecondition: it cannot be written.
absl::StatusOr<std::shared_ptr<TraceFile>> OpenTrace(
    const std::string& path, const std::string& process);

// Writes a listening address for the process that started this one. No-op if
// `path` is empty.
absl::Status WriteAddressFile(const std::string& path,
                              const std::string& address);

}  // namespace cohort
