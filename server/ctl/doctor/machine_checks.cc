#include "server/ctl/doctor/machine_checks.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMib = uint64_t{1} << 20;
// A worker needs a few connections, each one file; libraries need the rest.
constexpr uint64_t kOpenFilesMin = 1024;
// Room for a small network's checkpoints; with less the next one may fail.
constexpr uint64_t kRoomMin = 100 * kMib;
constexpr uint64_t kRoomWanted = 1024 * kMib;
constexpr double kMemoryShareMax = 0.9;
// With a full disk or quota, an empty file may still be written.
constexpr size_t kProbeBytes = size_t{256} << 10;

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

std::optional<uint64_t> ReadNumber(const fs::path& path) {
  std::ifstream file(path);
  std::string word;
  uint64_t number = 0;
  if (!(file >> word) || !absl::SimpleAtoi(word, &number)) return std::nullopt;
  return number;
}

// The memory control group's folder of this process, and its file names.
struct MemoryFiles {
  fs::path folder;
  const char* limit = "";
  const char* used = "";
};

std::optional<MemoryFiles> FindMemoryFiles(const std::string& root) {
  const fs::path top = fs::path(root) / "sys/fs/cgroup";
  std::ifstream groups(fs::path(root) / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t colon = line.rfind(':');
    if (colon == std::string::npos) continue;
    const fs::path own = fs::path(line.substr(colon + 1)).relative_path();
    // Inside a container the path may be that of the host.
    const auto at = [&own](const fs::path& mount) {
      std::error_code error;
      return fs::exists(mount / own, error) ? mount / own : mount;
    };
    if (absl::StartsWith(line, "0::")) {
      return MemoryFiles{
          .folder = at(top), .limit = "memory.max", .used = "memory.current"};
    }
    if (absl::StrContains(line, ":memory:")) {
      return MemoryFiles{.folder = at(top / "memory"),
                         .limit = "memory.limit_in_bytes",
                         .used = "memory.usage_in_bytes"};
    }
  }
  return std::nullopt;
}

}  // namespace

Check CheckOpenFiles() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return Check::Skipped("open files", "the system does not tell its limit");
  }
  return CheckOpenFiles(limit.rlim_cur, limit.rlim_max);
}

Check CheckOpenFiles(uint64_t soft, uint64_t hard) {
  if (soft >= kOpenFilesMin) {
    return Check::Ok("open files", "no less than 1024 may be open at once");
  }
  return Check::Warning(
      "open files", absl::StrCat("only ", soft, " may be open at once"),
      hard >= kOpenFilesMin
          ? absl::StrCat("`ulimit -n ", kOpenFilesMin,
                         "` before the program is started")
          : absl::StrCat("the hard limit is ", hard,
                         ": raise LimitNOFILE= of the service, or "
                         "/etc/security/limits.conf"));
}

Check CheckRoom(const std::string& flag, const std::string& folder,
                uint64_t free_bytes) {
  Check check{
      .name = flag,
      .found = absl::StrCat(folder, ": writable, ", Mib(free_bytes), " free")};
  if (free_bytes >= kRoomWanted) return check;
  check.result =
      free_bytes < kRoomMin ? Check::Result::kFailed : Check::Result::kWarning;
  check.fix = absl::StrCat("free some room, or give --", flag,
                           " a folder of another disk: results and "
                           "checkpoints each hold the whole model");
  return check;
}

Check CheckFolder(const std::string& flag, const std::string& folder) {
  const fs::path existing = Existing(folder);
  std::error_code error;
  if (!fs::is_directory(existing, error)) {
    return Check::Failed(
        flag, absl::StrCat(folder, ": ", existing.string(), " is no folder"),
        absl::StrCat("give --", flag, " another path"));
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
        full ? absl::StrCat("free some room, or give --", flag,
                            " a folder of another disk")
             : absl::StrCat("let the user that runs the server write ",
                            existing.string(), ", or give --", flag,
                            " another path"));
  }
  struct statvfs disk = {};
  if (statvfs(existing.c_str(), &disk) != 0) {
    return Check::Failed(flag, absl::StrCat(folder, ": ", strerror(errno)),
                         absl::StrCat("give --", flag, " another path"));
  }
  return CheckRoom(flag, folder,
                   static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize);
}

std::optional<MemoryUse> ReadMemoryUse(const std::string& root) {
  const std::optional<MemoryFiles> files = FindMemoryFiles(root);
  if (!files.has_value()) return std::nullopt;
  const std::optional<uint64_t> used = ReadNumber(files->folder / files->used);
  if (!used.has_value()) return std::nullopt;
  MemoryUse use{.used_bytes = *used};
  // Version 2 says "max", version 1 a number larger than any machine's memory.
  use.limit_bytes = ReadNumber(files->folder / files->limit);
  constexpr uint64_t kNoLimit = uint64_t{1} << 60;
  if (use.limit_bytes.has_value() && *use.limit_bytes >= kNoLimit) {
    use.limit_bytes.reset();
  }
  return use;
}

Check CheckMemory(const std::optional<MemoryUse>& use) {
  constexpr char kName[] = "memory limit";
  if (!use.has_value()) {
    return Check::Skipped(kName, "this control group tells none");
  }
  if (!use->limit_bytes.has_value()) {
    return Check::Ok(kName, "none is set for this control group");
  }
  const std::string found = absl::StrCat(Mib(use->used_bytes), " of ",
                                         Mib(*use->limit_bytes), " are used");
  if (static_cast<double>(use->used_bytes) <=
      kMemoryShareMax * static_cast<double>(*use->limit_bytes)) {
    return Check::Ok(kName, found);
  }
  return Check::Warning(
      kName, found,
      "raise the limit of the container or service, or end what else runs in "
      "it: a server needs the weights six times (momentum) and "
      "--inflight_mib");
}

}  // namespace cohort
