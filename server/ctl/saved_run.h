#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cohort/v1/admin.pb.h"
#include "common/formats/file_system.h"

namespace cohort {

// The file in a server's --results_dir that a saved run is read from.
inline constexpr absl::string_view kSavedStatus = "status.json";

// A run as its server wrote it last.
struct SavedRun {
  // The results folder.
  std::string dir;
  v1::Status status;

  // The identifier if the run has no name.
  const std::string& name() const;
  // "done", "stopped" (ended before its last image) or "unfinished".
  std::string state() const;
  // Wall time of training, over all starts of the server.
  double seconds() const;
  // Mean over the run; 0 if it has not trained.
  double images_per_second() const;
  // In 0..1: mean IoU for pixel labels, otherwise accuracy.
  std::optional<double> test() const;
};

// Errors: those of FileSystem; DataLoss: the file is not one of a server, with
//   what is wrong.
absl::StatusOr<SavedRun> ReadSavedRun(FileSystem& files,
                                      const std::string& dir);

}  // namespace cohort
