#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <ios>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/check.h"

namespace cohort::fuzz {

// A folder for readers that take a path, in memory where the system has such a
// place. Removed with the object.
class ScratchFolder {
 public:
  ScratchFolder() {
    const std::string shared = "/dev/shm";
    const std::string parent =
        access(shared.c_str(), W_OK) == 0
            ? shared
            : std::filesystem::temp_directory_path().string();
    std::string name = absl::StrCat(parent, "/cohort-fuzz-XXXXXX");
    COHORT_CHECK(mkdtemp(name.data()) != nullptr, name);
    path_ = name;
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }
  std::string File(absl::string_view name) const {
    return absl::StrCat(path_, "/", name);
  }
  void Write(absl::string_view name, absl::string_view content) const {
    std::ofstream file(File(name), std::ios::binary | std::ios::trunc);
    file.write(content.data(), static_cast<std::streamsize>(content.size()));
    COHORT_CHECK(file.good(), File(name));
  }

 private:
  std::string path_;
};

}  // namespace cohort::fuzz
