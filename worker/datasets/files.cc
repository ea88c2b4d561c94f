#include "worker/datasets/files.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

absl::Status CannotRead(const std::string& path, int error) {
  const std::string text =
      absl::StrCat(path, ": cannot read: ", std::strerror(error));
  return error == ENOENT || error == ENOTDIR ? absl::NotFoundError(text)
                                             : absl::InternalError(text);
}

}  // namespace

absl::StatusOr<std::vector<uint8_t>> ReadBytes(const std::string& path) {
  const std::unique_ptr<std::FILE, FileCloser> file(
      std::fopen(path.c_str(), "rbe"));
  if (file == nullptr) return CannotRead(path, errno);
  std::vector<uint8_t> bytes;
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  // One more than the size is asked for, so that the first read already ends
  // the file. The size is a hint only: a pipe has none.
  size_t room = error ? size_t{1} << 16 : static_cast<size_t>(size) + 1;
  size_t done = 0;
  for (;;) {
    bytes.resize(done + room);
    const size_t got = std::fread(bytes.data() + done, 1, room, file.get());
    done += got;
    if (got < room) break;
    room = done;
  }
  if (std::ferror(file.get()) != 0) return CannotRead(path, errno);
  bytes.resize(done);
  return bytes;
}

absl::StatusOr<std::vector<std::string>> ReadLines(const std::string& path) {
  COHORT_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes, ReadBytes(path));
  const absl::string_view text(reinterpret_cast<const char*>(bytes.data()),
                               bytes.size());
  std::vector<std::string> lines;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const absl::string_view bare = absl::StripAsciiWhitespace(line);
    if (!bare.empty()) lines.emplace_back(bare);
  }
  return lines;
}

absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& path) {
  std::error_code error;
  std::filesystem::directory_iterator entry(path, error);
  std::vector<std::string> names;
  for (; !error && entry != std::filesystem::directory_iterator();
       entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (name[0] != '.') names.push_back(std::move(name));
  }
  if (error) return CannotRead(path, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

bool IsFile(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

bool IsFolder(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

absl::Status CheckDataDir(const std::string& dataset, const std::string& dir,
                          const std::string& wanted) {
  if (dir.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(dataset, " has no usual place: give the folder of ",
                     wanted, " with --data_dir"));
  }
  if (IsFolder(dir)) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat(dir, ": no such folder; give the folder of ", dataset, "'s ",
                   wanted, " with --data_dir"));
}

}  // namespace cohort
