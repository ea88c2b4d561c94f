#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/formats/file_system.h"

namespace cohort {

// Files in memory, for tests that read and write thousands of them. Knows no
// modes, links or disks that are full.
// Thread safety: none.
class MemoryFileSystem final : public FileSystem {
 public:
  absl::Status WriteFile(const std::string& path, int /*mode*/,
                         absl::Span<const ByteRope> content) override {
    std::string bytes;
    for (const ByteRope& rope : content) bytes += rope.ToString();
    files_[path] = std::move(bytes);
    return absl::OkStatus();
  }
  absl::Status MakeDirectory(const std::string& path, int /*mode*/) override {
    folders_.insert(path);
    return absl::OkStatus();
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    std::map<std::string, std::string> files;
    for (auto& [path, bytes] : files_) {
      files[Renamed(path, from, to)] = std::move(bytes);
    }
    std::set<std::string> folders;
    for (const std::string& path : folders_) {
      folders.insert(Renamed(path, from, to));
    }
    files_ = std::move(files);
    folders_ = std::move(folders);
    return absl::OkStatus();
  }
  absl::Status SyncDirectory(const std::string& /*path*/) override {
    return absl::OkStatus();
  }
  absl::Status RemoveAll(const std::string& path) override {
    const auto inside = [&path](const std::string& name) {
      return name == path || absl::StartsWith(name, path + "/");
    };
    std::erase_if(files_, [&](const auto& file) { return inside(file.first); });
    std::erase_if(folders_, inside);
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) override {
    std::set<std::string> names;
    const std::string prefix = path + "/";
    const auto add = [&](const std::string& name) {
      if (!absl::StartsWith(name, prefix)) return;
      names.insert(name.substr(prefix.size(),
                               name.find('/', prefix.size()) - prefix.size()));
    };
    for (const auto& [name, bytes] : files_) add(name);
    for (const std::string& name : folders_) add(name);
    if (names.empty() && !folders_.contains(path)) {
      return absl::NotFoundError(absl::StrCat(path, ": no such folder"));
    }
    return std::vector<std::string>(names.begin(), names.end());
  }
  absl::StatusOr<ByteRope> ReadFile(const std::string& path,
                                    int64_t bytes_max) override {
    const auto file = files_.find(path);
    if (file == files_.end()) {
      return absl::NotFoundError(absl::StrCat(path, ": no such file"));
    }
    if (static_cast<int64_t>(file->second.size()) > bytes_max) {
      return absl::DataLossError(absl::StrCat(path, ": too large"));
    }
    return ByteRope::CopyText(file->second);
  }

 private:
  static std::string Renamed(const std::string& path, const std::string& from,
                             const std::string& to) {
    if (path == from) return to;
    if (!absl::StartsWith(path, from + "/")) return path;
    return to + path.substr(from.size());
  }

  std::map<std::string, std::string> files_;
  std::set<std::string> folders_;
};

}  // namespace cohort
