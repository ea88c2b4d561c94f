#include "server/ctl/support/bundle.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/byte_rope.h"
#include "common/formats/file_system.h"
#include "common/status_macros.h"
#include "server/ctl/cluster/child_process.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;

constexpr int kFileMode = 0600;
constexpr int kDirectoryMode = 0700;

// A directory that is removed with this object, including its contents.
class Staging {
 public:
  explicit Staging(std::string path) : path_(std::move(path)) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

// Created beside the archive, so that the archive can be renamed into place.
absl::StatusOr<std::unique_ptr<Staging>> MakeStaging(const std::string& file) {
  std::string name = absl::StrCat(file, ".tmp-XXXXXX");
  if (mkdtemp(name.data()) == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("--out: got '", file,
                     "', want a file in a folder that is there and can be "
                     "written"));
  }
  return std::make_unique<Staging>(name);
}

absl::Status WriteParts(const std::string& folder,
                        absl::Span<const BundlePart> parts) {
  FileSystem& files = RealFileSystem();
  COHORT_RETURN_IF_ERROR(files.MakeDirectory(folder, kDirectoryMode));
  for (const BundlePart& part : parts) {
    if (!part.problem.empty()) continue;
    const fs::path path = fs::path(folder) / part.name;
    COHORT_RETURN_IF_ERROR(
        files.MakeDirectory(path.parent_path().string(), kDirectoryMode));
    COHORT_RETURN_IF_ERROR(files.WriteFile(path.string(), kFileMode,
                                           {ByteRope::CopyText(part.content)}));
  }
  return absl::OkStatus();
}

absl::Status RunTar(absl::Span<const std::string> arguments) {
  std::vector<std::string> command = {"/usr/bin/env", "tar"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  COHORT_ASSIGN_OR_RETURN(const std::unique_ptr<ChildProcess> tar,
                          ChildProcess::Start(command));
  std::string said;
  const auto on_line = [&said](absl::string_view line) {
    absl::StrAppend(&said, said.empty() ? "" : "; ", line);
  };
  const std::optional<ProcessEnd> end =
      tar->AwaitEnd(absl::InfiniteDuration(), on_line);
  if (end->code == 0) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("tar ", end->Text(), said.empty() ? "" : ": ", said));
}

// The archive's name without its suffix: "friday" for "/tmp/friday.tar.gz".
std::string FolderName(const std::string& path) {
  const std::string file = fs::path(path).filename().string();
  absl::string_view name = file;
  if (!absl::ConsumeSuffix(&name, ".tar.gz"))
    absl::ConsumeSuffix(&name, ".tgz");
  return std::string(name);
}

}  // namespace

absl::StatusOr<std::string> EndOfFile(const std::string& path,
                                      int64_t bytes_max) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  }
  if (!fs::is_regular_file(status)) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": is no file"));
  }
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) {
    return absl::PermissionDeniedError(absl::StrCat(path, ": cannot be read"));
  }
  const auto size = static_cast<int64_t>(file.tellg());
  const int64_t bytes = std::min(size, bytes_max);
  std::string text(static_cast<size_t>(bytes), '\0');
  file.seekg(size - bytes);
  file.read(text.data(), bytes);
  // A log may have been truncated since it was measured.
  text.resize(static_cast<size_t>(file.gcount()));
  if (bytes < size) text.erase(0, text.find('\n') + 1);
  return text;
}

std::string ContentsText(absl::Span<const BundlePart> parts) {
  std::string text =
      "Made by cohortctl support-bundle for a bug report.\n\nContents:\n";
  const auto add = [&text](const BundlePart& part, const std::string& what) {
    absl::StrAppendFormat(&text, "  %-24s %s\n", part.name, what);
  };
  bool missing = false;
  for (const BundlePart& part : parts) {
    missing |= !part.problem.empty();
    if (part.problem.empty()) add(part, part.about);
  }
  if (missing) text += "\nMissing:\n";
  for (const BundlePart& part : parts) {
    if (!part.problem.empty()) add(part, part.problem);
  }
  text +=
      "\nNot included: weights, data, and variables other than COHORT_*.\n"
      "Values of names such as token or password are [redacted]; other\n"
      "secrets are not recognised, so check the logs before you share\n"
      "this. Addresses, paths and names of data sets are included.\n";
  return text;
}

absl::StatusOr<int64_t> WriteBundle(const std::string& path,
                                    absl::Span<const BundlePart> parts) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--out: got '", path, "', a folder, want a file"));
  }
  COHORT_ASSIGN_OR_RETURN(const std::unique_ptr<Staging> staging,
                          MakeStaging(path));
  const std::string folder = FolderName(path);
  COHORT_RETURN_IF_ERROR(
      WriteParts(absl::StrCat(staging->path(), "/", folder), parts));
  const std::string archive = absl::StrCat(staging->path(), "/archive");
  COHORT_RETURN_IF_ERROR(RunTar(
      {"--create", "--gzip", "--owner=0", "--group=0", "--sort=name", "--file",
       archive, "--directory", staging->path(), "--", folder}));
  chmod(archive.c_str(), kFileMode);
  const auto bytes = static_cast<int64_t>(fs::file_size(archive, error));
  COHORT_RETURN_IF_ERROR(RealFileSystem().Rename(archive, path));
  return bytes;
}

}  // namespace cohort
