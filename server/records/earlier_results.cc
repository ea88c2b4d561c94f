#include "server/records/earlier_results.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;

// Everything that a server writes there.
constexpr const char* kTables[] = {"history.csv", "policy.csv", "class_iou.csv",
                                   "measures.csv", "staleness.csv"};
constexpr const char* kModels[] = {"model.safetensors",
                                   "model_average.safetensors"};
constexpr const char* kPages[] = {"report.html", "status.json"};

bool Exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// Reading a pipe would wait for its writer.
bool IsFile(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// Whether a table has more than its header. Each run has a first row in
// policy.csv.
bool HasRows(const fs::path& path) {
  if (!IsFile(path)) return false;
  std::ifstream file(path);
  std::string header;
  std::string row;
  return std::getline(file, header) && std::getline(file, row);
}

bool HoldsResults(const fs::path& dir) {
  return HasRows(dir / "history.csv") ||
         std::any_of(std::begin(kModels), std::end(kModels),
                     [&dir](const char* name) { return IsFile(dir / name); });
}

absl::Status CannotMove(const fs::path& to, const std::error_code& error) {
  return absl::FailedPreconditionError(absl::StrCat(
      "--results_dir: cannot move the results of an earlier run to ",
      to.string(), ": ", error.message(), "; name another folder"));
}

}  // namespace

absl::StatusOr<std::string> SetEarlierResultsAside(
    const std::string& results_dir) {
  const fs::path dir(results_dir);
  if (!HoldsResults(dir)) return std::string();
  int64_t number = 1;
  while (Exists(dir / absl::StrCat("earlier-", number))) ++number;
  const fs::path aside = dir / absl::StrCat("earlier-", number);
  std::error_code error;
  if (!fs::create_directory(aside, error)) return CannotMove(aside, error);
  const auto move_all = [&](auto& names) {
    for (const char* name : names) {
      if (!error && IsFile(dir / name)) {
        fs::rename(dir / name, aside / name, error);
      }
    }
  };
  move_all(kTables);
  move_all(kModels);
  move_all(kPages);
  if (error) return CannotMove(aside, error);
  return aside.string();
}

}  // namespace cohort
