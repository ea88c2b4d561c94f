#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "common/formats/file_system.h"

namespace cohort {

// The fault, and the changing operation that it happens at (the first is 1;
// reading and listing are not counted).
struct FileFault {
  int32_t at = 0;
  absl::Status error = absl::InternalError("the process died");
  // If true, the operation takes effect and only its success is lost. If false,
  // it does nothing or, for a write, half of it.
  bool takes_effect = false;
  // If true, all later operations fail, as after a crash.
  bool dead_after = false;
};

// The real file system with a failure at a chosen operation.
// Thread safety: none beyond the caller's own order.
class FaultyFileSystem final : public FileSystem {
 public:
  explicit FaultyFileSystem(FileFault fault = {}) : fault_(std::move(fault)) {}

  int32_t operations() const { return operations_; }
  // Called before each changing operation, with its number.
  std::function<void(int32_t)> before;

  // Undoes creations and renames without a later SyncDirectory, as a power cut
  // would.
  void LoseUnsynced() {
    for (auto it = unsynced_.rbegin(); it != unsynced_.rend(); ++it) {
      if (it->renamed_from.empty()) {
        std::filesystem::remove_all(it->path);
      } else {
        std::filesystem::rename(it->path, it->renamed_from);
      }
    }
    unsynced_.clear();
  }

  absl::Status WriteFile(const std::string& path, int mode,
                         absl::Span<const ByteRope> content) override {
    return Run(
        [&] {
          unsynced_.push_back({.path = path});
          return RealFileSystem().WriteFile(path, mode, content);
        },
        [&] {
          std::string bytes;
          for (const ByteRope& rope : content) bytes += rope.ToString();
          const ByteRope half = ByteRope::Copy(absl::MakeConstSpan(
              reinterpret_cast<const std::byte*>(bytes.data()),
              bytes.size() / 2));
          RealFileSystem().WriteFile(path, mode, {half}).IgnoreError();
        });
  }
  absl::Status MakeDirectory(const std::string& path, int mode) override {
    return Run([&] {
      unsynced_.push_back({.path = path});
      return RealFileSystem().MakeDirectory(path, mode);
    });
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return Run([&] {
      const absl::Status status = RealFileSystem().Rename(from, to);
      if (!status.ok()) return status;
      // Files in a renamed directory move along.
      for (Change& change : unsynced_) {
        if (!absl::StartsWith(change.path, from + "/")) continue;
        change.path = to + change.path.substr(from.size());
      }
      unsynced_.push_back({.path = to, .renamed_from = from});
      return status;
    });
  }
  absl::Status SyncDirectory(const std::string& path) override {
    return Run([&] {
      const std::filesystem::path synced = Trimmed(path);
      std::erase_if(unsynced_, [&](const Change& change) {
        return std::filesystem::path(change.path).parent_path() == synced;
      });
      return RealFileSystem().SyncDirectory(path);
    });
  }
  absl::Status RemoveAll(const std::string& path) override {
    return Run([&] {
      std::erase_if(unsynced_, [&](const Change& change) {
        return change.path == path || absl::StartsWith(change.path, path + "/");
      });
      return RealFileSystem().RemoveAll(path);
    });
  }
  absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) override {
    if (dead_) return fault_.error;
    return RealFileSystem().List(path);
  }
  absl::StatusOr<ByteRope> ReadFile(const std::string& path,
                                    int64_t bytes_max) override {
    if (dead_) return fault_.error;
    return RealFileSystem().ReadFile(path, bytes_max);
  }

 private:
  struct Change {
    std::string path;
    // Empty if the path was created.
    std::string renamed_from;
  };

  static std::string Trimmed(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path;
  }

  absl::Status Run(
      const std::function<absl::Status()>& operation,
      const std::function<void()>& torn = [] {}) {
    if (dead_) return fault_.error;
    ++operations_;
    if (before) before(operations_);
    if (operations_ != fault_.at) return operation();
    if (fault_.takes_effect) {
      operation().IgnoreError();
    } else {
      torn();
    }
    dead_ = fault_.dead_after;
    return fault_.error;
  }

  const FileFault fault_;
  int32_t operations_ = 0;
  bool dead_ = false;
  // In the order of the operations.
  std::vector<Change> unsynced_;
};

}  // namespace cohort
