#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/formats/file_system.h"

namespace cohort {

// The file in a server's --results_dir that a saved run is read from.
inline constexpr absl::string_view kSavedStatus = "status.json";

// A run as its server wrote it last.
struct SavedRun {
  // The results folder.
  std::string dir;
  std::string id;
  // The identifier if the run has no name.
  std::string name;
  // Seconds since 1970.
  double written_at = 0;
  bool ended = false;
  // A sentence.
  std::string state;
  int64_t version = 0;
  int64_t samples = 0;
  int64_t samples_total = 0;
  // Wall time of training, over all starts of the server.
  double seconds = 0;
  std::optional<double> loss;
  // In 0..1: mean IoU for pixel labels, otherwise accuracy.
  std::optional<double> test;
  bool test_is_miou = false;
  std::string policy;
  std::map<std::string, std::string> settings;
};

// Errors: those of FileSystem; DataLoss: the file is not one of a server, with
//   what is wrong.
absl::StatusOr<SavedRun> ReadSavedRun(FileSystem& files,
                                      const std::string& dir);

// "done", "stopped" (ended before its last image) or "unfinished".
std::string StateOf(const SavedRun& run);

// Mean over the run; 0 if it has not trained.
double ImagesPerSecond(const SavedRun& run);

}  // namespace cohort
