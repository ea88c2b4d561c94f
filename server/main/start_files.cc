#include "server/main/start_files.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/formats/file_system.h"

namespace cohort {
namespace {

constexpr int kAddressFileMode = 0644;

}  // namespace

absl::StatusOr<std::shared_ptr<TraceFile>> OpenTrace(
    const std::string& path, const std::string& process) {
  if (path.empty()) return nullptr;
  absl::StatusOr<std::unique_ptr<TraceFile>> trace =
      TraceFile::Create(path, process);
  if (trace.ok()) return *std::move(trace);
  return absl::FailedPreconditionError(
      absl::StrCat("--trace: ", trace.status().message()));
}

absl::Status WriteAddressFile(const std::string& path,
                              const std::string& address) {
  if (path.empty()) return absl::OkStatus();
  const std::string line = absl::StrCat(address, "\n");
  return WriteFileAtomically(RealFileSystem(), path, kAddressFileMode, line);
}

}  // namespace cohort
