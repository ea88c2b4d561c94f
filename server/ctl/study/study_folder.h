#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/formats/file_system.h"
#include "common/formats/state_lock.h"
#include "server/ctl/study/matrix.h"

namespace cohort {

// The flags that all runs of a study share, besides the matrix.
struct StudyFlags {
  // --name=value of the server and of the workers, as given.
  std::vector<std::string> server;
  std::vector<std::string> worker;
  // Images of a step for which --learning_rate is meant; 0 for any step.
  int64_t reference_images = 0;

  friend bool operator==(const StudyFlags&, const StudyFlags&) = default;
};

// The files of a study, in one folder:
//   study.json      the flags that all runs share
//   runs/NAME/      a run's results and logs; run.json last, once it is done
//   study.csv       the numbers of all runs that are done
//
// A run is done if and only if its run.json exists, which is written
// atomically. So a study that ends for any reason can continue where it
// stopped.
class StudyFolder {
 public:
  // Creates the folder, or opens that of an earlier study with the same flags.
  // Errors: FailedPrecondition: the flags differ (which, seen and wanted), the
  //   folder contains something else, or another study is using it; those of
  //   FileSystem.
  static absl::StatusOr<StudyFolder> Open(FileSystem& files,
                                          const std::string& path,
                                          const StudyFlags& flags);

  const std::string& path() const { return path_; }
  std::string RunPath(const StudyRun& run) const;

  // Creates an empty folder for a run before it is started.
  absl::Status Prepare(const StudyRun& run);
  // Marks the run's results as complete.
  absl::Status MarkDone(const StudyRun& run);
  // True if the run is done with all kinds that are requested now.
  absl::StatusOr<bool> IsDone(const StudyRun& run) const;
  // Names of the runs that are done; of this matrix or of an earlier one.
  absl::StatusOr<std::vector<std::string>> DoneNames() const;

  // Removes the stored flags. Called if no run could be done with them, so that
  // the next study here may have other flags.
  absl::Status ForgetFlags();

  // Creates or replaces a file in the folder.
  absl::Status Write(const std::string& name, const std::string& content);

 private:
  StudyFolder(FileSystem& files, const std::string& path);

  absl::Status CheckFlags(const StudyFlags& flags);
  absl::StatusOr<std::optional<std::string>> Read(
      const std::string& name) const;

  FileSystem* files_;
  std::string path_;
  // Held while the study runs, and released however it ends.
  std::unique_ptr<StateLock> lock_;
};

}  // namespace cohort
