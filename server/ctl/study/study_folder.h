#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/formats/file_system.h"
#include "server/ctl/study/matrix.h"

namespace cohort {

// What all runs of a study share, besides the matrix.
struct StudyFlags {
  // --name=value of the server and of the workers, as given.
  std::vector<std::string> server;
  std::vector<std::string> worker;
  // Images of a step that --learning_rate is meant for; 0: of any step.
  int64_t reference_images = 0;

  friend bool operator==(const StudyFlags&, const StudyFlags&) = default;
};

// The files of a study, in one folder:
//   study.json      the flags that all runs share
//   runs/NAME/      a run's results and logs; run.json last, once it is done
//   study.csv, study.md, report.html and the plots, made from the runs
//
// A run is done if and only if its run.json is there, which is written
// atomically. So a study that ends in any way goes on where it stopped.
class StudyFolder {
 public:
  // Makes the folder, or opens that of an earlier study with the same flags.
  // Errors: FailedPrecondition, the flags differ (which, seen and wanted), the
  //   folder holds something else, or another study is at work in it; those
  //   of FileSystem.
  static absl::StatusOr<StudyFolder> Open(FileSystem& files,
                                          const std::string& path,
                                          const StudyFlags& flags);

  StudyFolder(StudyFolder&&) noexcept;
  ~StudyFolder();

  const std::string& path() const { return path_; }
  std::string RunPath(const StudyRun& run) const;

  // An empty folder for a run that is to be started.
  absl::Status Prepare(const StudyRun& run);
  // Its results are whole.
  absl::Status MarkDone(const StudyRun& run);
  // With all kinds that are wanted now.
  absl::StatusOr<bool> IsDone(const StudyRun& run) const;
  // Runs that are done; of this matrix or of an earlier one.
  absl::StatusOr<std::vector<std::string>> DoneNames() const;

  // With what no run could be done binds nobody: the next study here may have
  // other flags.
  absl::Status ForgetFlags();

  // Creates or replaces a file in the folder.
  absl::Status Write(const std::string& name, const std::string& content);

 private:
  // Held as long as the study goes on, however it ends.
  class Lock;

  StudyFolder(FileSystem& files, const std::string& path);

  absl::Status CheckFlags(const StudyFlags& flags);
  absl::StatusOr<std::optional<std::string>> Read(
      const std::string& name) const;

  FileSystem* files_;
  std::string path_;
  std::unique_ptr<Lock> lock_;
};

}  // namespace cohort
