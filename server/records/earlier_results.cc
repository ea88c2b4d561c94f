#include "server/records/earlier_results.h"

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
constexpr const char* kFiles[] = {
    "history.csv",  "policy.csv",    "class_iou.csv",
    "measures.csv", "staleness.csv", "model.safetensors",
    "report.html",  "status.json",   "model_average.safetensors"};

// Reading a pipe would wait for its writer.
bool IsFile(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// Whether a table has more than its header.
bool HasRows(const fs::path& path) {
  if (!IsFile(path)) return false;
  std::ifstream file(path);
  std::string header;
  std::string row;
  return std::getline(file, header) && std::getline(file, row);
}

// A start that failed has left tables, of which only policy.csv has a row.
bool HoldsResults(const fs::path& dir) {
  return HasRows(dir / "history.csv") || IsFile(dir / "model.safetensors");
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
  std::error_code error;
  fs::path aside;
  int64_t number = 0;
  do {
    aside = dir / absl::StrCat("earlier-", ++number);
  } while (fs::exists(aside, error));
  if (!fs::create_directory(aside, error)) return CannotMove(aside, error);
  for (const char* name : kFiles) {
    if (IsFile(dir / name)) fs::rename(dir / name, aside / name, error);
    if (error) return CannotMove(aside, error);
  }
  return aside.string();
}

}  // namespace cohort
