#include "server/ctl/doctor/folder_checks.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMib = uint64_t{1} << 20;
// Room for a small network's checkpoints; with less the next one may fail.
constexpr uint64_t kRoomMin = 100 * kMib;
constexpr uint64_t kRoomWanted = 1024 * kMib;
// With a full disk or quota, an empty file may still be written.
constexpr size_t kProbeBytes = size_t{256} << 10;

// The same for all folders, so that it is printed once.
constexpr char kFreeRoom[] =
    "free some room, or pass a folder of another disk; results and "
    "checkpoints each hold the whole model";

std::string Mib(uint64_t bytes) { return absl::StrCat(bytes / kMib, " MiB"); }

// The folder itself, or the one in which it would be created.
fs::path Existing(fs::path folder) {
  std::error_code error;
  folder = fs::absolute(folder, error);
  while (!fs::exists(folder, error) && folder.has_relative_path()) {
    folder = folder.parent_path();
  }
  return folder;
}

// Writes a file and removes it. Returns the errno of the failed call, or 0.
int Probe(const fs::path& folder) {
  std::string path = (folder / ".cohort-doctor-XXXXXX").string();
  const int file = mkostemp(path.data(), O_CLOEXEC);
  if (file < 0) return errno;
  const std::string bytes(kProbeBytes, '\0');
  int failure = 0;
  for (size_t done = 0; failure == 0 && done < bytes.size();) {
    const ssize_t wrote = write(file, bytes.data() + done, bytes.size() - done);
    if (wrote < 0 && errno != EINTR) failure = errno;
    if (wrote > 0) done += static_cast<size_t>(wrote);
  }
  if (failure == 0 && fsync(file) != 0) failure = errno;
  close(file);
  unlink(path.c_str());
  return failure;
}

}  // namespace

Check CheckRoom(const std::string& flag, const std::string& folder,
                uint64_t free_bytes) {
  Check check{
      .name = flag,
      .found = absl::StrCat(folder, ": writable, ", Mib(free_bytes), " free")};
  if (free_bytes >= kRoomWanted) return check;
  check.result =
      free_bytes < kRoomMin ? Check::Result::kFailed : Check::Result::kWarning;
  check.fix = kFreeRoom;
  return check;
}

Check CheckFolder(const std::string& flag, const std::string& folder) {
  const fs::path existing = Existing(folder);
  std::error_code error;
  if (!fs::is_directory(existing, error)) {
    return Check::Failed(
        flag, absl::StrCat(folder, ": ", existing.string(), " is no folder"),
        "pass another path");
  }
  const int failure = Probe(existing);
  const bool full = failure == ENOSPC || failure == EDQUOT;
  if (failure != 0) {
    return Check::Failed(
        flag,
        absl::StrCat(folder, ": ",
                     full ? "the disk is full"
                          : "cannot be "
                            "written",
                     " (", strerror(failure), ")"),
        full ? kFreeRoom
             : absl::StrCat("let the user that runs the server write ",
                            existing.string(), ", or pass another path"));
  }
  struct statvfs disk = {};
  if (statvfs(existing.c_str(), &disk) != 0) {
    return Check::Failed(flag, absl::StrCat(folder, ": ", strerror(errno)),
                         "pass another path");
  }
  return CheckRoom(flag, folder,
                   static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize);
}

}  // namespace cohort
